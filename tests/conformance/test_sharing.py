"""The reported sharing of weights agrees with the bytes of the program. Partition counts are checked before backends
are called."""

from __future__ import annotations

import pytest

from tests.helpers.snippets import snippets

from .conftest import Lower, take
from .shared_layer import BIAS, MODEL, VULKAN, WEIGHT, sharing, tail, two

LINEAR = take("addmm, permute_copy", "HoldingBackend")


def message_of(page: str, start: str) -> str:
    """Returns the message on a page that begins so, in one line."""
    [found] = [each.text for each in snippets() if each.page == page and each.text.startswith(start)]
    return " ".join(found.split())


def weight() -> bytes:
    """Returns the bytes of `linear.weight`, initialized as in the model."""
    import torch

    torch.manual_seed(5)
    content: bytes = torch.nn.Linear(16, 16).weight.detach().numpy().tobytes()
    return content


ON_VULKAN = '{backend: custom, options: {factory: "vulkan:create"}}'


@pytest.mark.parametrize(
    ("prefill", "decode", "copies"),
    [
        pytest.param("[]", "[]", 1, id="portable"),
        pytest.param("[xnnpack]", "[xnnpack]", 1, id="xnnpack"),
        pytest.param(f"[{take('sin', 'JointBackend')}, xnnpack]", "[xnnpack]", 1, id="decomposed"),
        pytest.param("[]", "[xnnpack]", 2, id="portable and xnnpack"),
        pytest.param(f"[{LINEAR}]", f"[{LINEAR}]", 1, id="equal delegates"),
        pytest.param(
            f"[{take('addmm, permute_copy, sin', 'HoldingBackend')}]",
            f"[{take('addmm, permute_copy, cos', 'HoldingBackend')}]",
            2,
            id="inside two delegates",
        ),
        pytest.param(f"[{LINEAR}]", "[xnnpack]", 2, id="two backends"),
        pytest.param(f"[{ON_VULKAN}, xnnpack]", f"[{ON_VULKAN}]", 1, id="vulkan"),
        pytest.param(
            f"[{ON_VULKAN}, xnnpack]", f"[xnnpack, {take('sin', 'JointBackend')}]", 1, id="vulkan and xnnpack"
        ),
    ],
)
def test_copies_are_those_that_the_program_has(lower: Lower, prefill: str, decode: str, copies: int) -> None:
    outcome, _ = lower(tail(prefill, decode), MODEL, vulkan=VULKAN)
    found = sharing(outcome)
    assert outcome.read("net.pte").count(weight()) == copies
    assert found["expected_bytes"] == WEIGHT + BIAS
    assert found["shared_bytes"] == (WEIGHT + BIAS if copies == 1 else 0)
    assert found["duplicate_bytes"] == (copies - 1) * (WEIGHT + BIAS)


def test_weights_that_are_packed_to_another_size_are_shared(lower: Lower) -> None:
    """The module stores each 4-bit weight in a byte. XNNPACK packs two weights into a byte."""
    quantized = "defaults: {quantize: {torchao: [{config: 8da4w}]}}\n"
    model, wide = MODEL.replace("(16, 16)", "(64, 64)"), tail("[xnnpack]", "[xnnpack]", limit=0).replace("16]", "64]")
    outcome, _ = lower(wide + quantized, model)
    found = sharing(outcome)
    assert found["expected_bytes"] == found["shared_bytes"] > 64 * 64
    assert 64 * 64 // 2 in outcome.json("net.report.json")["bytes"]["named_data"].values()


def test_lost_sharing_fails_the_build(lower: Lower) -> None:
    lost, _ = lower(tail("[]", "[xnnpack]", limit=WEIGHT + BIAS - 1), MODEL)
    assert (lost.code, lost.files) == (3, [])
    assert "checks.max_duplicate_bytes: duplicate weights take 1,088 bytes; the limit is 1,087" in lost.err
    shown = message_of("docs/explanation/sharing.md", "checks.max_duplicate_bytes")
    assert shown.replace("the limit is 0", "the limit is 1,087") in " ".join(lost.err.split())
    assert lower(tail("[]", "[xnnpack]", limit=WEIGHT + BIAS), MODEL)[0].code == 0
    assert lower(tail("[xnnpack]", "[xnnpack]", limit=0), MODEL)[0].code == 0


@pytest.mark.parametrize("prefill", ["[]", "[xnnpack]"])
def test_methods_that_are_lowered_one_by_one_have_the_same_report(lower: Lower, prefill: str) -> None:
    made = [lower(tail(prefill, "[xnnpack]"), MODEL, *how)[0] for how in (("--no-accelerate",), ("--jobs", "2"))]
    assert sharing(made[0]) == sharing(made[1])
    assert made[0].read("net.report.json") == made[1].read("net.report.json")


def test_sharing_follows_a_tag_to_its_file(lower: Lower) -> None:
    outcome, _ = lower(tail("[xnnpack]", "[xnnpack]", limit=0) + "named_data: {all: {parameters: ['*']}}\n", MODEL)
    assert sharing(outcome)["shared_bytes"] == WEIGHT + BIAS
    assert outcome.read("net.all.ptd").count(weight()) == 1


BIASES = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        for name in ("one", "other"):
            setattr(self, name, torch.nn.Linear(16, 16))
            torch.nn.init.zeros_(getattr(self, name).bias)

    def prefill(self, x):
        return self.one(x)

    def decode(self, x):
        return self.other(x)

    def both(self, x):
        return self.one(x) + self.other(x)

def create():
    return Net()
"""


def test_biases_of_zeros_of_two_layers_are_no_copies_of_one(lower: Lower) -> None:
    """A bias of zeros counts as a duplicate only if it is the same bias, as for any weight."""
    assert sharing(lower(tail("[xnnpack]", "[]", limit=0), BIASES)[0])["expected_bytes"] == 0
    found = sharing(lower(tail("[xnnpack]", "[]").replace("decode:", "both:"), BIASES)[0])
    assert {each["weight"]: each["bytes"] for each in found["duplicates"]} == {"one.weight": WEIGHT, "one.bias": BIAS}


def pairing(operators: str, equal: bool) -> str:
    entry = take(operators, "PairingBackend")
    return f"[{entry.replace('options: {', 'options: {equal_partitions: true, ')}]" if equal else f"[{entry}]"


def test_other_partition_counts_are_refused_before_the_backend_is_called(lower: Lower) -> None:
    outcome, calls = lower(two(pairing("sin", equal=True)), MODEL)
    assert (outcome.code, calls) == (1, [])
    assert (
        "methods.short.partitioners[0]: PairingBackend needs the same number of partitions in each method"
        in outcome.err
    )
    shown = message_of("docs/conformance.md", "methods.short.partitioners[0]")
    assert shown in " ".join(outcome.err.split())


def test_the_layer_is_named_where_methods_part(lower: Lower) -> None:
    outcome, _ = lower(two(pairing("sin, addmm, permute_copy", equal=True)), MODEL)
    assert "but would get 3 of `long`, 1 of `plain`, 2 of `short`" in outcome.err
    assert "`long` has `aten::sigmoid` of `front.1`, which it leaves out; `plain` has `aten::cos`" in outcome.err


def test_other_cuts_between_the_same_operators_are_noticed(lower: Lower) -> None:
    """A factory with different `kwargs` is one backend, which is called once for both methods."""
    together = pairing("addmm, permute_copy", equal=True)
    separate = together.replace("backend: PairingBackend", "backend: PairingBackend, separately: true")
    outcome, calls = lower(tail(together, separate), MODEL)
    assert (outcome.code, calls) == (1, [])
    assert "would get 2 of `decode`, 1 of `prefill`" in outcome.err
    assert (
        "`decode` has `aten::addmm` of `linear`, which it takes; `prefill` has `aten::addmm` of `linear`" in outcome.err
    )


def test_partitions_inside_control_flow_count(lower: Lower) -> None:
    branches = MODEL.replace(
        "self.linear(x).sin()", "torch.cond(x.sum() > 0, lambda x: x.cos(), lambda x: x.cos().exp(), (x,))"
    )
    entry = pairing("cos", equal=True)
    outcome, calls = lower(tail(entry, entry), branches)
    assert (outcome.code, calls) == (1, [])
    assert "would get 1 of `decode`, 2 of `prefill`" in outcome.err


def test_without_our_check_the_backend_gives_a_shorter_error(lower: Lower) -> None:
    outcome, _ = lower(two(pairing("sin", equal=False)), MODEL)
    assert outcome.code == 1
    assert "the same number of partitions is required" in outcome.err


def test_equal_partition_counts_pass(lower: Lower) -> None:
    """The third method has no partition: the backend does not see it."""
    outcome, calls = lower(two(pairing("sigmoid", equal=True)), MODEL)
    assert outcome.code == 0, outcome.err
    assert list(calls[0]["operators"]) == ["long", "short"]
