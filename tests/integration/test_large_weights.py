"""Large weights of the model in eager PyTorch are in memory only while an operator reads them."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from etplugins.comparison import large_weights
from etplugins.comparison.large_weights import LargeWeights
from tests.helpers import packed

from .conftest import Build

Read = Callable[[nn.Module], Any]

READS: dict[str, Read] = {
    "layers": lambda m: m.linear(m.table(torch.arange(6))),
    "transposed": lambda m: torch.ones(2, 8) @ m.table.weight.t(),
    "a part": lambda m: m.linear.weight[1:, ::2].sum(0),
    "parts": lambda m: torch.cat([each * 2 for each in m.linear.weight.chunk(3)]),
    "bits": lambda m: m.linear.weight.detach().view(torch.int32)[3] + 1,
    "bytes": lambda m: m.linear.weight.detach().flatten()[5:].view(torch.uint8).long().sum(),
    "a list": lambda m: torch.stack([m.linear.weight, m.linear.weight + 1]),
    "a number": lambda m: m.linear.weight[2, 3].item(),
    "a copy": lambda m: m.linear.weight.detach().clone().add_(1),
    "into another": lambda m: torch.zeros(6, 8).add_(m.linear.weight, alpha=2),
    "a keyword": lambda m: torch.add(torch.ones(6, 8), other=m.linear.weight),
    "an einsum": lambda m: torch.einsum("ij,kj->ik", m.linear.weight, m.table.weight),
    "a batch": lambda m: torch.nn.functional.linear(torch.ones(2, 3, 8), m.linear.weight, m.linear.bias),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.table = nn.Linear(8, 6), nn.Embedding(6, 8)


def taken(module: nn.Module) -> tuple[LargeWeights, list[torch.Tensor]]:
    """Takes the matrices of a module. The list gets each tensor that is made again."""
    weights, made = LargeWeights(), list[torch.Tensor]()

    def again(content: torch.Tensor) -> torch.Tensor:
        made.append(content.clone())
        return made[-1]

    for tensor in module.parameters():
        content = tensor.data
        if tensor.dim() > 1:
            tensor.data = weights.take(content, partial(again, content))
    return weights, made


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_weights, "_SMALL", 0)
    monkeypatch.setattr(large_weights, "_KEPT", 0)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_an_operator_gets_the_content(read: Read) -> None:
    module = Net()
    with torch.no_grad():
        expected = read(module)
        weights, made = taken(module)
        assert weights
        with weights:
            found = read(module)
    assert made
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))


def test_views_and_facts_need_no_content() -> None:
    module = Net()
    weights, made = taken(module)
    with weights, torch.no_grad():
        weight = module.linear.weight
        assert weight.t()[2:].unsqueeze(0).shape == (1, 6, 6)
        assert weight.is_contiguous()
        assert weight.detach().data_ptr() == weight.data_ptr()
    assert not made


def test_weights_of_which_some_fit_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_weights, "_KEPT", 48 * 4 + 20)
    weights, first, second = LargeWeights(), torch.ones(48), torch.ones(48)
    assert weights.take(first, first.clone) is first
    assert not weights
    assert weights.take(second, second.clone) is not second
    monkeypatch.setattr(large_weights, "_SMALL", 8)
    assert (one := torch.ones(1)) is weights.take(one, one.clone)


def test_tied_weights_stay_tied_when_all_are_given() -> None:
    module = Net()
    module.other = module.table
    content = {name: each.clone() for name, each in module.state_dict().items()}
    weights, made = taken(module)
    weights.give_all(module)
    assert len(made) == 2
    assert all(torch.equal(each, content[name]) for name, each in module.state_dict().items())


@pytest.mark.parametrize("read", [lambda w: w.numpy().sum(), lambda w: w.zero_(), lambda w: w.tolist()])
def test_another_way_to_read_or_write_ends_the_process(read: Callable[[torch.Tensor], Any]) -> None:
    module = Net()
    weights, _ = taken(module)
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # it would write about the crash
        with weights, torch.no_grad():
            read(module.linear.weight.detach())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (-signal.SIGSEGV, -signal.SIGBUS)


def nothing(self: LargeWeights, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Gives operators no content."""
    return func(*args, **(kwargs or {}))


dispatch = LargeWeights.__torch_dispatch__


@pytest.mark.parametrize("given", [dispatch, nothing], ids=["content", "nothing"])
def test_only_a_model_with_all_weights_in_memory_can_fail(
    build: Build, given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
    packed.write(tmp_path / "net", packed.model(), packed.gptq(), quantization)
    inputs = [{"shape": [1, 8], "dtype": "int64", "fill": "zeros"}]
    huggingface = {"class": "AutoModelForCausalLM", "config": "net/config.json"}
    document = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {"huggingface": huggingface, "weights": "net", "dtype": "float32"},
        "defaults": {"partitioners": ["xnnpack"], "quantize": {"torchao": [{"config": "packed"}]}},
        "methods": {"forward": {"example_inputs": inputs}},
    }
    all_given, give_all = tmp_path / "given", LargeWeights.give_all

    def noted(self: LargeWeights, module: nn.Module) -> None:
        all_given.touch()
        give_all(self, module)

    monkeypatch.setattr(LargeWeights, "__torch_dispatch__", given)
    monkeypatch.setattr(LargeWeights, "give_all", noted)
    built = build(
        json.dumps(document), files={f"net/{each.name}": each.read_bytes() for each in (tmp_path / "net").iterdir()}
    )
    assert built.code == 0, built.err
    assert "is quantized: SQNR" in built.err
    assert all_given.exists() is (given is not dispatch)
