"""Two methods, each with its own weights."""

from torch import nn


def create() -> nn.Module:
    """up: 2 -> 4 features, down: 4 -> 2 features; all parameters differ."""
    net = nn.ModuleDict({"up": nn.Linear(2, 4), "down": nn.Linear(4, 2)})
    for value, parameter in enumerate(net.parameters(), start=1):
        nn.init.constant_(parameter, value)  # two tags cannot contain the same blob
    return net
