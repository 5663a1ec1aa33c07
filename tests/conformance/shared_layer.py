"""A model whose two methods share a layer, and the sharing that the report of its program lists."""

from __future__ import annotations

from typing import Any

from tests.helpers.manifests import net
from tests.integration.conftest import Outcome

MODEL = net(
    "torch.manual_seed(5)",
    "self.linear = torch.nn.Linear(16, 16)",
    "self.front = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Sigmoid())",
    prefill="return self.linear(x).sin()",
    decode="return self.linear(x).cos()",
    long="return self.front(x).sin().exp().sin()",
    short="return self.front(x).sin().cos()",
)
INPUT = "example_inputs: [{shape: [2, 16]}]"


def tail(prefill: str, decode: str, limit: int | None = None) -> str:
    checks = "" if limit is None else f"checks: {{max_duplicate_bytes: {limit}}}\n"
    return (
        f"methods:\n  prefill: {{{INPUT}, partitioners: {prefill}}}\n  decode: {{{INPUT}, partitioners: {decode}}}\n"
        + checks
    )


def sharing(outcome: Outcome) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err
    return dict(outcome.json("net.report.json")["sharing"])


VULKAN = """\
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

def create():
    return VulkanPartitioner()
"""
WEIGHT, BIAS = 16 * 16 * 4, 16 * 4


def two(partitioners: str) -> str:
    return (
        f"methods:\n  long: {{{INPUT}}}\n  short: {{{INPUT}}}\n  plain: {{{INPUT}, entry: decode}}\n"
        f"defaults: {{partitioners: {partitioners}}}\n"
    )
