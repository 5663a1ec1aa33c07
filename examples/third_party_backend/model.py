"""Two methods with one layer in common."""

import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 8)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(x).relu()

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.shared(x).relu()).softmax(-1)


def create() -> Net:
    return Net()
