"""The pure heart: no clock, thread, file, global random state, torch, ray or flwr."""
