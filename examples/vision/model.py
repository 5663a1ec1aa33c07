"""An image classifier similar to MobileNetV2: inverted residuals of depthwise separable convolutions."""

import torch.nn.functional as F
from torch import Tensor, nn

# Expansion, channels out and stride of each inverted residual.
BLOCKS = ((1, 16, 1), (4, 24, 2), (4, 24, 1), (4, 32, 2), (4, 32, 1), (4, 64, 2))


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution and its BatchNorm, which XNNPACK folds into the convolution's weights."""
    padding = (kernel - 1) // 2
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class InvertedResidual(nn.Module):
    """Expand 1x1, filter each channel 3x3, project 1x1; with a shortcut where the shapes allow one."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [*conv(inputs, hidden, 1), nn.ReLU6()] if expansion > 1 else []
        self.layers = nn.Sequential(
            *expand,
            *conv(hidden, hidden, 3, stride, groups=hidden),
            nn.ReLU6(),
            *conv(hidden, outputs, 1),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, inputs, height, width] -> [batch, outputs, height / stride, width / stride]"""
        return x + self.layers(x) if self.shortcut else self.layers(x)


class MobileNet(nn.Module):
    """The network. `features` returns the input of the last layer, which an application can compare."""

    def __init__(self, classes: int, channels: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv(3, 16, 3, stride=2), nn.ReLU6()]
        inputs = 16
        for expansion, outputs, stride in BLOCKS:
            layers.append(InvertedResidual(inputs, outputs, stride, expansion))
            inputs = outputs
        self.backbone = nn.Sequential(*layers, *conv(inputs, channels, 1), nn.ReLU6())
        self.classifier = nn.Linear(channels, classes)

    def features(self, image: Tensor) -> Tensor:
        """image: float32 [1, 3, 64, 64], RGB in [-1, 1] -> float32 [1, channels]"""
        return F.adaptive_avg_pool2d(self.backbone(image), 1).flatten(1)

    def classify(self, image: Tensor) -> Tensor:
        """image: float32 [1, 3, 64, 64], RGB in [-1, 1] -> logits, float32 [1, classes]"""
        return self.classifier(self.features(image))


def create(classes: int) -> MobileNet:
    """The module that the manifest names as its factory."""
    return MobileNet(classes)
