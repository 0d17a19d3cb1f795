"""A network with BatchNorm in PyTorch, with the message interface."""
