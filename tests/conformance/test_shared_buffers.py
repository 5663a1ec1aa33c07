"""`share_mutable_buffers` if backends take buffers that methods write to: they are shared, or refused with a hint."""

from __future__ import annotations

import pytest

from etbuild import backends
from tests.helpers.manifests import net
from tests.integration.conftest import Outcome

from .conftest import Lower

MODEL = net(
    'self.register_buffer("cache", torch.zeros(2, 16))',
    'self.register_buffer("steps", torch.zeros(2, 16))',
    prefill="self.cache.copy_(x * 2)\nreturn x + 1",
    decode="self.cache.add_(x)\nreturn self.cache.sin()",
    peek="return self.cache + x",
    count="self.steps.add_(x)\nreturn self.steps.sin()",
)
COREML = "{{backend: coreml, options: {{minimum_deployment_target: iOS18{}}}}}"
DEMO = '{backend: custom, options: {factory: "demo_backend:take_state", kwargs: {operators: [add, sin]}}}'


def tail(share: bool = True, **partitioners: str) -> str:
    lines = [
        f"  {method}: {{example_inputs: [{{shape: [2, 16]}}], partitioners: [{entry}]}}\n"
        for method, entry in partitioners.items()
    ]
    return "methods:\n" + "".join(lines) + f"share_mutable_buffers: {str(share).lower()}\n"


def places(outcome: Outcome) -> dict[str, list[tuple[int, int]]]:
    """Returns, by method, where the memory plan puts values that are neither activations nor constants."""
    from etbuild.files import program_file

    assert outcome.code == 0, outcome.err
    program = program_file.read_program(outcome.read("net.pte")).program
    tensors = {
        plan.name: [value.val for value in plan.values if hasattr(value.val, "allocation_info")]
        for plan in program.execution_plan
    }
    return {
        method: sorted(
            {
                (tensor.allocation_info.memory_id, tensor.allocation_info.memory_offset_low)
                for tensor in found
                if tensor.allocation_info is not None and tensor.allocation_info.memory_id > 1
            }
        )
        for method, found in tensors.items()
    }


def test_core_ml_names_the_option_that_shares(lower: Lower) -> None:
    taken = COREML.format("")
    outcome, _ = lower(tail(prefill=taken, decode=taken, peek=""), MODEL)
    assert (outcome.code, outcome.files) == (1, [])
    told = "methods.decode.partitioners: CoreMLBackend keeps `cache` inside its delegate, so `peek` and `prefill`"
    assert told in outcome.err
    assert "write `take_over_mutable_buffer: false` into the options of `coreml`" in outcome.err
    left = COREML.format(", take_over_mutable_buffer: false")
    shared = places(lower(tail(prefill=left, decode=left, peek=""), MODEL)[0])
    assert shared == {method: [(2, 0)] for method in ("decode", "peek", "prefill")}


@pytest.mark.parametrize("other", ["", DEMO], ids=["portable", "demo"])
@pytest.mark.parametrize("method", ["prefill", "peek"])
@pytest.mark.parametrize("merged", [False, True])
def test_a_buffer_inside_a_delegate_is_not_shared(
    lower: Lower, monkeypatch: pytest.MonkeyPatch, method: str, other: str, merged: bool
) -> None:
    """For each other use of the buffer: by another delegate, or by portable operators that write to it or only read
    it."""
    if merged:
        monkeypatch.setattr(backends.BACKENDS["custom"], "separable", True)
    outcome, _ = lower(tail(True, decode=DEMO, **{method: other}), MODEL, *(["--jobs", "2"] if merged else []))
    assert (outcome.code, outcome.files) == (1, [])
    told = f": SingleBackend keeps `cache` inside its delegate, so `{method}` cannot share it"
    assert f"methods.decode.partitioners{told}" in outcome.err
    assert "lowered together" not in outcome.err


def test_a_buffer_of_only_one_method_may_be_inside_a_delegate(lower: Lower) -> None:
    found = places(lower(tail(count=DEMO, decode="", peek=""), MODEL)[0])
    assert found["decode"] == found["peek"] == [(2, 0)]


def test_methods_that_share_nothing_may_have_states_of_their_own(lower: Lower) -> None:
    assert lower(tail(share=False, decode=DEMO, prefill=DEMO), MODEL)[0].code == 0
