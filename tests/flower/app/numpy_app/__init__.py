"""A Flower app for tests."""
