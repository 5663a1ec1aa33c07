"""A model of three methods, and manifests that say which of them goes to which backend."""

from __future__ import annotations

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linear = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4))

    def a(self, x):
        return x.sin().exp().cos().sin()

    def b(self, x):
        return x.cos().exp()

    def c(self, x):
        return self.linear(x).relu()

    def scaled(self, x):
        return (x * self.scale + self.shift).exp()

    def twice(self, x):
        return (x.exp() * self.scale).cos()

    def cond(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    def map(self, x):
        from functorch.experimental.control_flow import map
        return map(lambda row: row.sin() + 1, x)

    def scan(self, x):
        from torch._higher_order_ops.scan import scan
        return scan(lambda carry, row: (carry + row.sin(), carry.cos()), torch.zeros(4), x)[1]

    def while_loop(self, x):
        from torch._higher_order_ops.while_loop import while_loop
        return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x.sin()), (torch.zeros((), dtype=torch.int64), x))[1]

def create():
    return Net()
"""
INPUT = "example_inputs: [{shape: [3, 4], fill: ones}]"


def methods(**partitioners: str) -> str:
    """Returns a manifest's methods, each with or without its own list of partitioners."""
    lines = [
        f"  {name}: {{{INPUT}" + (f", partitioners: {listed}" if listed else "") + "}\n"
        for name, listed in partitioners.items()
    ]
    return "methods:\n" + "".join(lines)
