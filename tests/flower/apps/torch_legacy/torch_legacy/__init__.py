"""A network with BatchNorm in PyTorch, with a NumPyClient."""
