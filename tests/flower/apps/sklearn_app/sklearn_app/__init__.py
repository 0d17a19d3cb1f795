"""Logistic regression of scikit-learn, with the message interface."""
