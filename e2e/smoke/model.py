"""The model of the README."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, kernel_size=3, stride=2)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, image):
        return self.head(self.conv(image).relu().mean((2, 3)))


def create():
    return Net()
