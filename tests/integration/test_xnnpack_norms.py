"""XNNPACK gets norms, with all digits, and nothing of them stays outside of its delegate."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch import nn

from etplugins.upstream import lowering, xnnpack

Rows = {0: torch.export.Dim("n", min=1, max=4)}


def lowered(net: nn.Module, x: torch.Tensor, sizes: Any = None, **options: Any) -> tuple[list[str], Callable[..., Any]]:
    """The operators outside of delegates, and a call in the runtime."""
    program = torch.export.export(net.eval(), (x,), dynamic_shapes=(sizes,))
    partitioners = {"forward": [XnnpackPartitioner(**options)]}
    with xnnpack.around(partitioners):
        edge = to_edge_transform_and_lower({"forward": program}, partitioner=partitioners)
    lowering.finish(edge)
    nodes = edge.exported_program().graph.nodes
    names = [str(getattr(node.target, "__name__", "")) for node in nodes if node.op == "call_function"]
    loaded = Runtime.get().load_program(bytes(edge.to_executorch().buffer))
    method = loaded.load_method("forward")
    outside = [name for name in names if name not in ("getitem", "executorch_call_delegate")]
    return outside, lambda given: (loaded, method.execute([given])[0])[1]


def inputs(x: torch.Tensor, mean: float) -> list[torch.Tensor]:
    """Random numbers with a mean, a flat tensor, and one with a first number that is far from the others."""
    far = x.clone()
    far.view(far.shape[0], -1)[:, 0] = 1000
    return [x + mean, torch.full_like(x, mean + 0.3), far + mean]


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(24), (3, 8, 24)),
    "without weights": (lambda: nn.LayerNorm(24, eps=1e-12, elementwise_affine=False), (3, 8, 24)),
    "of several dimensions": (lambda: nn.LayerNorm((8, 24)), (3, 8, 24)),
    "of an image": (lambda: nn.LayerNorm(24), (2, 3, 8, 24)),
    "of long rows": (lambda: nn.LayerNorm(3072), (3, 3072)),
    "group norm": (lambda: nn.GroupNorm(2, 8), (2, 8, 5, 6)),
    "group norm of a large image": (lambda: nn.GroupNorm(2, 8), (1, 8, 64, 96)),
    "instance norm": (lambda: nn.InstanceNorm2d(8), (2, 8, 5, 6)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_in_the_delegate_and_keep_their_digits(name: str) -> None:
    make, shape = NORMS[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(shape)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    outside, run = lowered(net, x)
    assert outside == []
    double = make().double()
    double.load_state_dict(net.state_dict())
    for mean in (0.0, 1e2, 1e4, 1e6):
        for given in inputs(x, mean):
            # A difference of two large numbers is rounded, and a norm of a flat tensor multiplies it.
            torch.testing.assert_close(run(given), double(given.double()).float(), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("net", [nn.LayerNorm(24), nn.LayerNorm((8, 24))])
def test_norms_with_a_dynamic_size_are_in_the_delegate(net: nn.Module) -> None:
    x = torch.randn(3, 8, 24, generator=torch.Generator().manual_seed(0)) + 1000
    outside, run = lowered(net, x, Rows)
    assert outside == []
    for rows in (1, 2, 4):
        given = torch.randn(rows, 8, 24) + 1000
        torch.testing.assert_close(run(given), net(given), atol=1e-3, rtol=1e-3)


def test_rms_norms_are_in_the_delegate() -> None:
    for size in (24, 2048):
        net, x = nn.RMSNorm(size, eps=1e-6), torch.randn(3, 8, size)
        outside, run = lowered(net, x)
        assert outside == []
        torch.testing.assert_close(run(x), net(x), atol=1e-5, rtol=1e-5)


class Images(nn.Module):
    """Norms between convolutions, whose results are channels_last in the delegate."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.group, self.layer = nn.GroupNorm(4, 8), nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A residual block, and a mean over rows."""
        first, second, third = self.convolutions
        y = first(x)
        y = y + second(torch.nn.functional.silu(self.group(y)))
        y = self.layer(y) * y
        return third(y - y.mean(-1, keepdim=True))


def test_norms_read_images_in_the_right_order() -> None:
    torch.manual_seed(0)
    net, x = Images(), torch.randn(2, 8, 10, 12)
    outside, run = lowered(net, x)
    assert outside == []
    torch.testing.assert_close(run(x), net(x), atol=1e-5, rtol=1e-4)


def test_a_chosen_partitioner_takes_no_norms() -> None:
    """If the manifest chooses the operators or the precision, norms stay outside, and keep their digits too."""
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(0)) + 1e4
    net = nn.LayerNorm(24)
    outside, run = lowered(net, x, config_precisions=[ConfigPrecisionType.STATIC_QUANT])
    assert "aten.native_layer_norm.default" in outside
    torch.testing.assert_close(run(x), net.double()(x.double()).float(), atol=1e-4, rtol=1e-3)
