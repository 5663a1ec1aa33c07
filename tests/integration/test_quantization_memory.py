"""Quantization needs little memory beside the weights, and changes no bit to save it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.multiprocessing.reductions import StorageWeakRef
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)

from etbuild.model import tensor_files
from etbuild.quantize import by_rows, originals

HQQ = {"intx_choose_qparams_algorithm": "hqq_scale_only"}
IN_GROUPS = {"weight_dtype": torch.int4, "weight_granularity": PerGroup(32)}
PER_ROW = {"weight_dtype": torch.int8, "granularity": PerAxis(0)}


def quantized(weight: torch.Tensor, config: Any) -> Any:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    quantize_(layer, config)
    return layer.weight


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(Int8DynamicActivationIntxWeightConfig(**IN_GROUPS), id="groups"),
        pytest.param(Int8DynamicActivationIntxWeightConfig(**IN_GROUPS, **HQQ), id="groups by HQQ"),
        pytest.param(IntxWeightOnlyConfig(**PER_ROW), id="rows"),
        pytest.param(IntxWeightOnlyConfig(**PER_ROW, **HQQ), id="rows by HQQ"),
    ],
)
@pytest.mark.parametrize("rows", [7, 64, 501])
def test_parts_of_a_weight_have_the_bits_of_the_whole(config: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_rows, "_PART_SIZE", 640)
    numbers = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, 96, generator=numbers)
    weight[0], weight[1], weight[2, :40] = 0.0, 0.25, 1e-30
    if rows == 64:
        weight[3, 5] = float("nan")  # HQQ then runs all of its rounds
    whole = quantized(weight, config)
    with by_rows.by_rows():
        parts = quantized(weight, config)
    for name in whole.tensor_data_names:
        one, other = getattr(whole, name), getattr(parts, name)
        assert one.stride() == other.stride()
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
    assert parts.dtype == whole.dtype
    assert parts.activation_quantization == whole.activation_quantization


def test_weights_are_freed_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals, "_MOST_PENDING", 0)
    embedding, first, last = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 64)
    last.weight = embedding.weight
    module = torch.nn.ModuleDict(
        {"embedding": embedding, "first": first, "second": torch.nn.Linear(32, 32), "last": last}
    )
    contents = {name: StorageWeakRef(tensor.untyped_storage()) for name, tensor in module.named_parameters()}
    seen: list[set[str]] = []

    def freed() -> set[str]:
        return {name for name, content in contents.items() if content.expired()}

    def wanted(kind: type[torch.nn.Module]) -> originals.Filter:
        def chosen(layer: torch.nn.Module, name: str) -> bool:
            seen.append(freed())
            return isinstance(layer, kind)

        return chosen

    kept = originals.Originals(module, free=True)
    quantize_(module, Int8DynamicActivationIntxWeightConfig(**IN_GROUPS), kept.watched(wanted(torch.nn.Linear)))
    assert seen[-1] == {"first.weight"}
    kept.free()
    assert freed() == {"first.weight", "second.weight"}
    quantize_(module, IntxWeightOnlyConfig(**PER_ROW), kept.watched(wanted(torch.nn.Embedding)))
    kept.free()
    assert freed() == {"embedding.weight", "first.weight", "second.weight"}


def test_a_converted_checkpoint_does_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "_MAX_READ", 2 << 20)
    written = {f"weight_{number}": torch.full((1 << 19,), number, dtype=torch.bfloat16) for number in range(16)}
    written["small"] = torch.arange(3.0)
    path = tmp_path / "model.safetensors"
    save_file(written, path)
    opened = tensor_files.open_checkpoint(path.name, path, ("model", "weights"))
    read = {name: opened.take(name).float() for name in opened.names}
    resident = [
        int(line.split()[1])
        for area in Path("/proc/self/smaps").read_text().split("VmFlags")
        if str(path) in area
        for line in area.splitlines()
        if line.startswith("Rss:")
    ]
    assert sum(resident) < 4 << 10  # kB; the file has 16 MB
    assert all(torch.equal(read[name], tensor.float()) for name, tensor in written.items())


def test_parameters_that_are_loaded_are_not_drawn() -> None:
    pytest.importorskip("transformers")
    from transformers import initialization

    from etplugins.transformers.empty_parameters import parameters_left_empty

    before = dict(initialization.TORCH_INIT_FUNCTIONS), torch.nn.init.normal_
    parameter, buffer = torch.nn.Parameter(torch.zeros(4)), torch.zeros(4)
    for place in (torch.nn.init, initialization):
        with parameters_left_empty():
            for tensor in (parameter, buffer.zero_()):
                place.normal_(tensor)
            assert not parameter.any()
            assert buffer.all()
    assert (dict(initialization.TORCH_INIT_FUNCTIONS), torch.nn.init.normal_) == before
