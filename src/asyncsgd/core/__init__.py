"""The algorithms as pure code, without a clock, threads, files, global random state, torch, ray or flwr."""
