"""Sleeping clients for Flower's FedAvg and for asyncsgd."""
