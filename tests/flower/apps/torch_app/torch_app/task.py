"""The model and the digits that clients and server share."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small network with BatchNorm: 64 pixels in, ten digits out."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.bn1 = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn1(self.fc1(x))))


def load_data(partition_id=0, num_partitions=1):
    """Return the digits of one client as two loaders: for training and for tests."""
    images, labels = load_digits(return_X_y=True)
    mine = slice(partition_id, None, num_partitions)
    x, y = torch.tensor(images[mine] / 16.0, dtype=torch.float32), torch.tensor(labels[mine])
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=42)
    train = DataLoader(TensorDataset(x_train, y_train), batch_size=32, shuffle=True, drop_last=True)
    return train, DataLoader(TensorDataset(x_test, y_test), batch_size=64)


def train(net, trainloader, epochs, lr, device):
    """Train the model and return the mean loss."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (len(trainloader) * epochs)


def test(net, testloader, device):
    """Return (loss, accuracy)."""
    net.to(device)
    net.eval()
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += criterion(outputs, labels.to(device)).item()
            correct += (outputs.argmax(dim=1) == labels.to(device)).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)


def slow_seconds(context):
    """Return how long this client waits after training: client 0 stands for a slow machine."""
    return context.run_config["slow-seconds"] if context.node_config["partition-id"] == 0 else 0.0
