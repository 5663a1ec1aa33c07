"""Classifies text, such as the intent of a request."""

from backbone import Backbone
from torch import Tensor, nn


class Classifier(nn.Module):
    """A linear layer on the backbone's vector of the first token."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(self.backbone.dim, classes)

    def classify(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, length] -> probabilities, float32 [1, classes]"""
        return self.head(self.backbone(tokens)[:, 0]).softmax(-1)


def create(classes: int) -> Classifier:
    """The module that the manifest names as its factory."""
    return Classifier(classes)
