"""The first layer of a vision transformer, with PyTorch only."""

from torch import Tensor, nn


class Patches(nn.Module):
    """Embeds patches of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 8 * 8, 16)
        nn.init.constant_(self.embed.weight, 0.01)
        nn.init.zeros_(self.embed.bias)

    def forward(self, image: Tensor) -> Tensor:
        """image: float32 [batch, 3, height, width] -> float32 [batch, patches, 16]"""
        batch, channels, height, width = image.shape
        cut = image.reshape(batch, channels, height // 8, 8, width // 8, 8).permute(0, 2, 4, 3, 5, 1)
        return self.embed(cut.reshape(batch, (height // 8) * (width // 8), 8 * 8 * channels))


def create() -> nn.Module:
    return Patches().eval()
