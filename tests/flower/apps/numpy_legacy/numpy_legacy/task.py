"""Softmax regression and the digits that clients and server share."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CLASSES = 10


def get_initial_parameters():
    """Return the weights and the biases, all zero."""
    return [np.zeros((64, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


def load_data(partition_id=0, num_partitions=1):
    """Return the digits of one client: training images and labels, test images and labels."""
    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    mine = slice(partition_id, None, num_partitions)
    x_train, x_test, y_train, y_test = train_test_split(images[mine], labels[mine], test_size=0.2, random_state=42)
    return x_train, y_train, x_test, y_test


def predict(parameters, images):
    """Return the probabilities of the ten digits."""
    scores = images @ parameters[0] + parameters[1]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def train(parameters, images, labels, epochs, learning_rate, batch_size=32):
    """Return the parameters after some epochs of mini-batch SGD; NumPy makes them float64."""
    weights, biases = parameters
    for _ in range(epochs):
        for start in range(0, len(labels), batch_size):
            x, y = images[start : start + batch_size], labels[start : start + batch_size]
            error = predict([weights, biases], x) - np.eye(CLASSES)[y]
            weights = weights - learning_rate * x.T @ error / len(y)
            biases = biases - learning_rate * error.mean(axis=0)
    return [weights, biases]


def test(parameters, images, labels):
    """Return (loss, accuracy)."""
    probabilities = predict(parameters, images)
    loss = -np.log(probabilities[np.arange(len(labels)), labels] + 1e-9).mean()
    return float(loss), float((probabilities.argmax(axis=1) == labels).mean())


def slow_seconds(context):
    """Return how long this client waits after training: client 0 stands for a slow machine."""
    return context.run_config["slow-seconds"] if context.node_config["partition-id"] == 0 else 0.0
