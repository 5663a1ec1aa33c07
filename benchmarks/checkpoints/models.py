"""Models with many equal layers, or with many weights: those whose builds take longest."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConformerBlock(nn.Module):
    """Attention and a depthwise convolution between two halves of a feed-forward network."""

    def __init__(self, dim: int, heads: int = 4, kernel: int = 15) -> None:
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
            for _ in range(2)
        )
        self.heads = heads
        self.attention_norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.convolution_norm, self.widen = nn.LayerNorm(dim), nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.batch_norm, self.mix, self.norm = nn.BatchNorm1d(dim), nn.Conv1d(dim, dim, 1), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, frames, dim] -> the same shape"""
        x = x + 0.5 * self.halves[0](x)
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        wide = F.glu(self.widen(self.convolution_norm(x).transpose(1, 2)), dim=1)
        x = x + self.mix(F.silu(self.batch_norm(self.depthwise(wide)))).transpose(1, 2)
        return self.norm(x + 0.5 * self.halves[1](x))


class Conformer(nn.Module):
    """Characters and features of a sound."""

    def __init__(self, layers: int, dim: int) -> None:
        super().__init__()
        self.shrink = nn.Conv1d(80, dim, 3, stride=2, padding=1)
        self.blocks, self.head = nn.Sequential(*(ConformerBlock(dim) for _ in range(layers))), nn.Linear(dim, 64)

    def features(self, sound: Tensor) -> Tensor:
        """sound: a spectrogram, float32 [1, 80, frames] -> float32 [1, frames / 2, dim]"""
        return self.blocks(self.shrink(sound).transpose(1, 2))

    def characters(self, sound: Tensor) -> Tensor:
        """sound: a spectrogram, float32 [1, 80, frames] -> scores, float32 [1, frames / 2, 64]"""
        return self.head(self.features(sound))


class ScanBlock(nn.Module):
    """A state-space layer, whose scan over the text is a loop."""

    def __init__(self, dim: int, states: int = 8) -> None:
        super().__init__()
        self.norm, self.enter, self.out = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.convolution = nn.Conv1d(dim, dim, 4, padding=3, groups=dim)
        self.select, self.step = nn.Linear(dim, 2 * states, bias=False), nn.Linear(dim, dim)
        self.rates, self.skip = nn.Parameter(torch.rand(dim, states)), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, seq, dim] -> the same shape"""
        values, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        values = F.silu(self.convolution(values.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, (into, out) = F.softplus(self.step(values)), self.select(values).chunk(2, dim=-1)
        decay = torch.exp(-step.unsqueeze(-1) * self.rates)
        added = (step * values).unsqueeze(-1) * into.unsqueeze(-2)
        state, found = torch.zeros_like(added[:, 0]), []
        for at in range(x.shape[1]):
            state = decay[:, at] * state + added[:, at]
            found.append((state * out[:, at].unsqueeze(-2)).sum(-1))
        return x + self.out((torch.stack(found, dim=1) + self.skip * values) * F.silu(gate))


class Scan(nn.Module):
    """A language model of state-space layers with three entry points."""

    def __init__(self, layers: int, dim: int) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(256, dim), nn.LayerNorm(dim)
        self.blocks, self.head = nn.Sequential(*(ScanBlock(dim) for _ in range(layers))), nn.Linear(dim, 256)

    def states(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, seq] -> float32 [1, seq, dim]"""
        return self.norm(self.blocks(self.tokens(tokens)))

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, seq] -> the next token's logits, float32 [1, 256]"""
        return self.head(self.states(tokens)[:, -1])

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [1, seq] -> the embedding of the whole text, float32 [1, dim]"""
        return self.states(tokens).mean(1)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, into: int, width: int, out: int, stride: int) -> None:
        super().__init__()
        sizes = ((into, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in sizes)
        changes = into != out or stride != 1
        self.shortcut = nn.Conv2d(into, out, 1, stride, bias=False) if changes else nn.Identity()
        self.shortcut_norm = nn.BatchNorm2d(out) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, into, height, width] -> [1, out, height / stride, width / stride]"""
        shortcut = self.shortcut_norm(self.shortcut(x))
        for index, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(convolution(x))
            x = F.relu(x) if index < 2 else x
        return F.relu(x + shortcut)


class WideResNet(nn.Module):
    """Wide ResNet-50-2: 69 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, into = [], 64
        for number, count in enumerate((3, 4, 6, 3)):
            for index in range(count):
                stride = 2 if index == 0 and number else 1
                blocks.append(Bottleneck(into, 128 << number, 256 << number, stride))
                into = 256 << number
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(into, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """image: float32 [1, 3, height, width] -> scores, float32 [1, 1000]"""
        x = F.max_pool2d(F.relu(self.stem_norm(self.stem(image))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3), keepdim=True).flatten(1))


def create(name: str, **kwargs: int) -> nn.Module:
    """The module that the manifests name as their factory."""
    return {"conformer": Conformer, "scan": Scan, "wide_resnet": WideResNet}[name](**kwargs).eval()
