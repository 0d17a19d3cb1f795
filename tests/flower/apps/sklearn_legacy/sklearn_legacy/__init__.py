"""Logistic regression of scikit-learn, with a Client."""
