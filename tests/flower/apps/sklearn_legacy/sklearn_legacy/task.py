"""The model and the digits that clients and server share."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

CLASSES, FEATURES = 10, 64


def create_model(local_epochs):
    """Return a model whose parameters are all zero."""
    model = LogisticRegression(max_iter=local_epochs, warm_start=True)
    model.classes_ = np.arange(CLASSES)
    set_model_params(model, [np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)])
    return model


def get_model_params(model):
    """Return the parameters as a list of arrays."""
    return [model.coef_, model.intercept_]


def set_model_params(model, params):
    """Set the parameters of the model."""
    model.coef_, model.intercept_ = params


def load_data(partition_id=0, num_partitions=1):
    """Return the digits of one client: training images and labels, test images and labels."""
    images, labels = load_digits(return_X_y=True)
    mine = slice(partition_id, None, num_partitions)
    x_train, x_test, y_train, y_test = train_test_split(
        images[mine] / 16.0, labels[mine], test_size=0.2, random_state=7
    )
    return x_train, y_train, x_test, y_test


def slow_seconds(context):
    """Return how long this client waits after training: client 0 stands for a slow machine."""
    return context.run_config["slow-seconds"] if context.node_config["partition-id"] == 0 else 0.0
