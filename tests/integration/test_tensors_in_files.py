"""Tensors are read where they are needed, and their content is in files and not in memory."""

from __future__ import annotations

import functools
import io
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis, PerGroup, quantize_
from torchao.utils import unwrap_tensor_subclass

from etbuild.errors import BuildError
from etbuild.export import archive
from etbuild.export.kept_weights import KeptWeights
from etbuild.export.layout import MADE
from etbuild.lower import finite_weights
from etbuild.model import spilled_tensors, written_tensors
from etbuild.model.stored_tensors import StoredTensors
from etbuild.model.tensor_facts import TensorFacts
from etbuild.publishing.artifacts import scratch_in
from etplugins.comparison import graph
from etplugins.comparison.graph import Graph
from etplugins.quantize import computed_weights

TENSORS = {
    **{str(dtype): torch.arange(6.0).view(2, 3).to(dtype) for dtype in written_tensors._NAMES if dtype.itemsize > 1},
    **{str(dtype): torch.tensor([1, 0, 1, 1]).to(dtype) for dtype in (torch.int8, torch.uint8, torch.bool)},
    "float8": torch.tensor([0.5, -2.0]).to(torch.float8_e4m3fn),
    "float4": torch.arange(8, dtype=torch.uint8).view(2, 4).view(torch.float4_e2m1fn_x2),
    "empty": torch.empty(0, 3),
    "number": torch.tensor(-0.0),
    "columns": torch.arange(6.0).view(2, 3).T,
    "large": torch.arange(1 << 19, dtype=torch.int32),
}


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype == torch.float4_e2m1fn_x2:
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    return one.dtype == other.dtype and bool(torch.equal(one, other))


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    path, written = tmp_path / "some.safetensors", io.BytesIO()
    written_tensors.write(written, TENSORS)
    path.write_bytes(written.getvalue())
    found, by_safetensors = StoredTensors(path), load_file(path)
    assert found.keys() == by_safetensors.keys() == TENSORS.keys()
    assert all(same(found[name], tensor) for name, tensor in TENSORS.items())
    assert all(same(by_safetensors[name], tensor) for name, tensor in TENSORS.items())
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, path, {"format": "pt"})
    assert all(same(StoredTensors(path)[name], tensor) for name, tensor in TENSORS.items())


def test_the_order_in_which_tensors_are_made_does_not_matter() -> None:
    forms = {name: (tensor.dtype, [*tensor.shape]) for name, tensor in TENSORS.items()}
    whole, parts = io.BytesIO(), io.BytesIO()
    written_tensors.write(whole, TENSORS)
    written_tensors.write_as_made(parts, forms, sorted(TENSORS.items(), reverse=True))
    assert parts.getvalue() == whole.getvalue()
    with pytest.raises(ValueError, match="`number` is "):
        written_tensors.write_as_made(io.BytesIO(), {"number": (torch.int8, [])}, [("number", TENSORS["number"])])


def test_a_tensor_that_was_not_made_is_an_error() -> None:
    forms = {"made": (torch.float32, [3]), "absent": (torch.float32, [2])}
    with pytest.raises(ValueError, match="`absent` was not made"):
        written_tensors.write_as_made(io.BytesIO(), forms, [("made", torch.ones(3))])


def test_a_file_of_computed_weights_is_whole_or_absent(tmp_path: Path) -> None:
    file = tmp_path / "computed.safetensors"
    with pytest.raises(ValueError, match="`absent` was not made"):
        computed_weights._written(KeptWeights(file, scratch_in), {"absent": (torch.float32, [2])}, [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [5, 1 << 19])
def test_a_reader_of_computed_weights_keeps_its_file_when_another_process_writes(size: int, tmp_path: Path) -> None:
    file, weight = tmp_path / "computed.safetensors", torch.arange(size)
    first = computed_weights._written(KeptWeights(file, scratch_in), {"one": (torch.int64, [size])}, [("one", weight)])
    mapped = first["one"]
    other = computed_weights._written(
        KeptWeights(file, scratch_in), {"other": (torch.int8, [1])}, [("other", torch.ones(1, dtype=torch.int8))]
    )
    assert torch.equal(mapped, weight)
    assert torch.equal(first["one"], weight)
    assert [*other] == [*StoredTensors(file)] == ["other"]
    assert [*tmp_path.iterdir()] == [file]


def test_what_is_read_can_be_changed_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save_file({"large": TENSORS["large"]}, path)
    found = StoredTensors(path)
    found["large"].zero_()
    assert torch.equal(found["large"], TENSORS["large"])


def exchanged(write: Any, file: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes each tensor in the place of another one."""
    write(file, dict(zip(tensors, reversed(list(tensors.values())), strict=True)))


def changed(write: Any, file: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Changes a tensor after it was written, as a thread of the model may do."""
    write(file, tensors)
    tensors["one"][3] = 7


@pytest.mark.parametrize("wrong", [exchanged, changed])
def test_what_an_export_saves_reads_back_as_its_tensors(
    wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"one": torch.ones(5), "other": torch.arange(5.0)}
    facts = [TensorFacts(name, "float32", [5], False, None, False) for name in content]
    monkeypatch.setattr(written_tensors, "write", functools.partial(wrong, written_tensors.write))
    with pytest.raises(BuildError, match="`one` has other content than was written") as error:
        archive._save_new_tensors(tmp_path, content, facts)
    assert "does a thread of the model change it" in str(error.value)


def test_an_export_saves_tensors_of_each_dtype(tmp_path: Path) -> None:
    facts = [
        TensorFacts(name, str(each.dtype).removeprefix("torch."), [*each.shape], False, None, False)
        for name, each in TENSORS.items()
    ]
    zeros = archive._save_new_tensors(tmp_path, TENSORS, facts)
    assert zeros == ["empty"]
    assert StoredTensors(tmp_path / MADE).keys() == TENSORS.keys() - {"empty"}


def anonymous_memory() -> int:
    return 1024 * int(re.findall(r"Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())[0])


def test_a_spilled_tensor_takes_no_memory_and_keeps_what_is_written_to_it(tmp_path: Path) -> None:
    size = 64 << 20
    spilled = spilled_tensors.spilled(torch.ones(size, dtype=torch.uint8), tmp_path)
    before = anonymous_memory()
    assert not list(tmp_path.iterdir())  # nothing has to be removed
    assert spilled.sum() == size
    spilled[7] = 3
    spilled_tensors.release(spilled)
    assert spilled[7] == 3
    assert anonymous_memory() - before < size // 4
    small = torch.ones(3)
    assert spilled_tensors.spilled(small, tmp_path) is small
    assert spilled_tensors.spilled(spilled, None) is spilled


def test_a_fork_does_not_change_a_spilled_tensor(tmp_path: Path) -> None:
    size = 2 << 20
    spilled = spilled_tensors.spilled(torch.ones(size, dtype=torch.uint8), tmp_path)
    child = os.fork()
    if child == 0:
        spilled.zero_()
        spilled_tensors.release(spilled)
        os._exit(int(spilled.any()))
    assert os.waitpid(child, 0)[1] == 0
    assert bool(spilled.all())


def resident_memory() -> int:
    return 1024 * int(re.findall(r"Rss: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text())[0])


def test_what_was_read_of_a_spilled_tensor_is_given_back(tmp_path: Path) -> None:
    size = 64 << 20
    spilled = spilled_tensors.spilled(torch.ones(size, dtype=torch.uint8), tmp_path)
    before = resident_memory()
    assert spilled.sum() == size
    spilled_tensors.release(spilled)
    assert resident_memory() - before < size // 4


def test_the_mapping_of_a_spilled_tensor_ends_with_it(tmp_path: Path) -> None:
    spilled = spilled_tensors.spilled(torch.ones(2 << 20, dtype=torch.uint8), tmp_path)
    address, rows = spilled.data_ptr(), spilled.view(2, -1)[1]
    del spilled
    assert address in spilled_tensors._spilled
    assert rows.all()
    del rows
    assert address not in spilled_tensors._spilled


@pytest.mark.parametrize("fault", [b"other", OSError])
def test_a_spilled_tensor_is_read_back(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(2 << 20, dtype=torch.uint8)

    def sync(file: int) -> None:
        if fault is OSError:  # the disk could not take what the kernel had kept
            raise OSError
        os.pwrite(file, fault, 1 << 20)

    monkeypatch.setattr(os, "fsync", sync)
    if fault is OSError:
        assert spilled_tensors.spilled(tensor, tmp_path) is tensor
        return
    with pytest.raises(BuildError, match="a tensor has other content in a file than was written"):
        spilled_tensors.spilled(tensor, tmp_path)


def test_unused_zeros_take_no_memory_and_no_file(tmp_path: Path) -> None:
    size, before = 64 << 20, anonymous_memory()
    zeros = spilled_tensors.unused(torch.Size([size // 1024, 256]), torch.float32)
    assert spilled_tensors.spilled(zeros, tmp_path) is zeros
    assert not zeros.any()
    zeros[1, 2] = 5
    spilled_tensors.release(zeros)
    assert zeros[1, 2] == 5
    assert anonymous_memory() - before < size // 4
    assert spilled_tensors.unused(torch.Size([0, 3]), torch.int8).shape == (0, 3)


def test_a_tensor_stays_in_memory_where_it_cannot_be_spilled(tmp_path: Path) -> None:
    large = TENSORS["large"]
    assert spilled_tensors.spilled(large, tmp_path / "missing") is large


class Read(Mapping[str, torch.Tensor]):
    """Tensors that are copied when they are asked for. Counts those that exist."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.now, self.most = 0, 0

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self.tensors[name].clone()
        self.now += 1
        self.most = max(self.most, self.now)
        weakref.finalize(found, self._gone)
        return found

    def _gone(self) -> None:
        self.now -= 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_a_graph_has_one_weight_in_memory_at_a_time() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(5)))
    program: Any = torch.export.export(layers, (torch.randn(2, 8),))
    weights = Read(dict(program.state_dict))
    for name in weights:
        program._state_dict[name] = torch.empty(0)  # as in an export without weights
    given = torch.randn(2, 8)
    with torch.no_grad():
        expected = layers(given)
    for _ in range(2):
        [actual], _ = Graph(program, {}, weights).call([given])
        assert torch.equal(actual, expected)
    assert (weights.most, weights.now) == (1, 0)


@pytest.mark.parametrize("config", [{"weight_granularity": PerGroup(32)}, {"weight_granularity": PerAxis(0)}])
def test_a_weight_that_is_dequantized_in_parts_has_the_bits_of_the_whole(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "_AT_ONCE", 200)
    layer = torch.nn.Linear(64, 31, bias=False)
    quantize_(layer, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, **config))
    unwrap_tensor_subclass(layer)
    given = torch.randn(3, 64)
    program = torch.export.export(layer, (given,))
    assert any(str(node.target) == "torchao.dequantize_affine.default" for node in program.graph.nodes)
    [actual], _ = Graph(program, {}, {}).call([given])
    with torch.no_grad():
        assert torch.equal(actual, program.module()(given))


def test_a_tensor_that_is_rounded_in_parts_moves_as_far_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    value, numbers = torch.rand(64, 8) + 1, torch.arange(512).view(64, 8).to(torch.int8) // 2
    whole = graph.Rounding(3).of(value)
    monkeypatch.setattr(graph, "_AT_ONCE", 100)
    parts = graph.Rounding(3).of(value)
    assert torch.equal(parts, whole)
    own = value.clone()
    assert graph.Rounding(3).of(own, own=True) is own
    assert torch.equal(own, whole)
    assert (parts != value).float().mean() > 0.5
    assert graph.Rounding(3).of(numbers) is numbers


def test_a_weight_in_the_memory_of_a_freed_one_is_looked_at() -> None:
    tensors = {f"weight_{number}": torch.ones(1 << 16) for number in range(8)}
    tensors["weight_5"][3] = float("nan")
    assert finite_weights.counted(Read(tensors)).keys() == {"weight_5"}
