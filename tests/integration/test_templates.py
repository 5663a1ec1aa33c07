"""Methods that are lowered without the content of weights, and bound to it: the bytes are those of a full lowering."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from safetensors.torch import save_file

from etbuild import plugins
from etbuild.emit.emitted import Emitted
from etbuild.emit.merge import merge
from etbuild.files import writing
from etbuild.lower.blobs import Blob
from etbuild.model.stored_tensors import StoredTensors
from etbuild.model.tensor_bytes import flat_bytes
from etbuild.model.tensor_facts import TensorFacts
from etbuild.patching import replaced
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache
from etplugins.accelerate.blob_files import PartOfFile
from etplugins.templates import binding as binding_module
from etplugins.templates import recipes, unbound
from etplugins.templates.binding import Binding
from etplugins.templates.recipes import Ingredients, NoRecipe
from tests.helpers.manifests import net

from .conftest import Build, Outcome

# Layers that XNNPACK takes as they are, folds, packs and permutes, and layers that it leaves to portable operators.
MODEL = net(
    "self.embedding = torch.nn.Embedding(16, 8)",
    "self.conv = torch.nn.Conv1d(8, 8, 3, padding=1)",
    "self.norm = torch.nn.BatchNorm1d(8)",
    "self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)",
    "self.layer_norm = torch.nn.LayerNorm(8)",
    'self.register_buffer("scale", torch.ones(8))',
    'self.register_buffer("positions", torch.arange(4.0), persistent=False)',
    "self.tied = self.first",
    create="return Net().eval()",
    encode="return self.second(self.tied(self.layer_norm(x) * self.scale)) + self.positions[:, None]",
    forward="return self.encode(self.norm(self.conv(self.embedding(x).transpose(1, 2))).transpose(1, 2))",
)
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: net.safetensors}
defaults: {partitioners: [xnnpack]}
methods:
  forward: {example_inputs: [{shape: [1, 4], dtype: int64}]}
  encode: {example_inputs: [{shape: [1, 4, 8]}]}
checks: {finite: false}
named_data: {tagged: {parameters: ["*"]}}
"""


def weights(model: str, path: Path, change: Callable[[str, torch.Tensor], torch.Tensor], seed: int) -> None:
    """Writes a checkpoint of the model."""
    scope: dict[str, Any] = {}
    exec(model, scope)
    torch.manual_seed(seed)
    state = {
        name: change(name, torch.rand(each.shape) + 0.1 if each.is_floating_point() else each.clone())
        for name, each in scope["create"]().state_dict().items()
    }
    first = {name: each for name, each in state.items() if not name.startswith("tied")}
    save_file(first, path)


def as_they_are(_: str, each: torch.Tensor) -> torch.Tensor:
    return each


def not_a_number(name: str, each: torch.Tensor) -> torch.Tensor:
    if name == "second.weight":
        each.view(-1)[3] = float("nan")
    return each


KINDS: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "others": as_they_are,
    "zeros": lambda _, each: torch.zeros_like(each),
    "one number": lambda _, each: torch.full_like(each, 2) if each.dim() > 1 else each,
    "equal layers": lambda name, each: (
        torch.linspace(0, 1, each.numel()).view(each.shape) if "weight" in name else each
    ),
    "not a number": not_a_number,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def built(build: Build, cache: Path, path: Path, manifest: str = MANIFEST, *more: str) -> Outcome:
    made = build(manifest, "--cache-dir", str(cache), *more, files={"net.safetensors": path.read_bytes()}, model=MODEL)
    assert made.code == 0, made.err
    return made


def lowered(cache: Path) -> dict[str, int]:
    """The number of records of each kind in a cache."""
    return dict(cache_upkeep.info(Cache(cache)).records)


@pytest.mark.parametrize("kind", KINDS)
def test_other_weights_give_the_bytes_of_a_full_lowering(build: Build, cache: Path, tmp_path: Path, kind: str) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    weights(MODEL, first, as_they_are, 1)
    weights(MODEL, second, KINDS[kind], 2)
    built(build, cache, first)
    before = lowered(cache)
    bound = built(build, cache, second)
    again = {step: before[step] + 1 for step in ("program", "lower", "compare")}
    after = lowered(cache) | {
        "compared": before["compared"]
    }  # those of this checkpoint are kept if nothing is left out
    assert after == {**before, **again}
    full = built(build, cache, second, MANIFEST, "--no-accelerate")
    for name in ("net.pte", "net.tagged.ptd", "net.report.json"):
        assert bound.read(name) == full.read(name), name


def test_programs_of_the_same_graph_share_their_templates(build: Build, tmp_path: Path) -> None:
    path, cache = tmp_path / "net.safetensors", tmp_path / "cache"
    weights(MODEL, path, as_they_are, 1)
    variants = MANIFEST.replace("name: net\n", "name: net\nvariants: {again: {model: {weights: net.safetensors}}}\n")
    built(build, cache, path, variants, "--variant", "all")
    assert (lowered(cache)["method"], lowered(cache)["lower"]) == (2, 2)


@contextlib.contextmanager
def reading(read: Callable[[torch.Tensor], object], where: str) -> Iterator[None]:
    """Inside, a backend reads a weight of each partition, in a pass or when it compiles. ExecuTorch gives partitioners
    programs without content."""
    owner, name = PLACES[where]
    run = getattr(owner, name)

    def reads(*arguments: Any) -> Any:
        program = arguments[0].exported_program if where == "pass" else arguments[0]
        read(next(iter(program.state_dict.values())))
        return run(*arguments)

    with replaced(owner, name, staticmethod(reads) if where == "preprocess" else reads):
        yield


PLACES: dict[str, tuple[type, str]] = {
    "pass": (XNNPACKPassManager, "transform"),
    "preprocess": (XnnpackBackend, "preprocess"),
}


def swallowed(tensor: torch.Tensor) -> None:
    with contextlib.suppress(Exception):
        tensor.sum().item()


def choosy(tensor: torch.Tensor) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError("another kind of tensor")


def through_dlpack(tensor: torch.Tensor) -> None:
    with contextlib.suppress(Exception):
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor.detach())).sum().item()


def versioned(tensor: torch.Tensor) -> object:
    return torch._C._to_dlpack_versioned(tensor)  # `watched` replaces it


def pickled(tensor: torch.Tensor) -> bytes:
    return pickle.dumps(tensor.detach())


def gradient(tensor: torch.Tensor) -> object:
    leaf = torch.ones(tensor.shape, requires_grad=True)
    (leaf * tensor.detach()).sum().backward()
    return leaf.grad.tolist() if leaf.grad is not None else None


def number(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum().to(torch.int64)


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "dlpack": through_dlpack,
    "dlpack of the tensor": lambda tensor: tensor.__dlpack__(),
    "dlpack of numpy": lambda tensor: numpy.from_dlpack(tensor.detach()),
    "dlpack with a version": versioned,
    "pickle": pickled,
    "dictionary": lambda tensor: torch.save({"w": tensor}, io.BytesIO()),
    "text": str,
    "representation": repr,
    "formatted": lambda tensor: f"{tensor.sum():.3f}",
    "representation of the class": torch.Tensor.__repr__,
    "index": lambda tensor: [1, 2, 3][number(tensor)],
    "range": lambda tensor: range(number(tensor)),
    "float": lambda tensor: float(tensor.sum()),
    "condition": lambda tensor: 1 if tensor.sum() > 0 else 2,
    "all close": lambda tensor: torch.allclose(tensor, torch.zeros(tensor.shape)),
    "of a result": lambda tensor: (tensor * 2).sum(0).tolist(),
    "of a deep copy": lambda tensor: copy.deepcopy(tensor).tolist(),
    "in a list": lambda tensor: torch.tensor([tensor.sum()]),
    "out": lambda tensor: torch.add(tensor, 1, out=torch.zeros(tensor.shape)),
    "out of a C function": lambda tensor: torch._C._VariableFunctions.mul(tensor, 2, out=torch.zeros(tensor.shape)),
    "shared memory": lambda tensor: tensor.share_memory_(),
    "ctypes": lambda tensor: ctypes.string_at(tensor.data_ptr(), 4),
    "ctypes of a storage": lambda tensor: ctypes.string_at(tensor.untyped_storage().data_ptr(), 4),
    "alignment": lambda tensor: tensor.untyped_storage().data_ptr() % 16,
    "constant address": lambda tensor: tensor.const_data_ptr(),
    "storage of the class": lambda tensor: torch.Tensor.untyped_storage(tensor).tolist(),
    "file of a storage": lambda tensor: tensor.untyped_storage()._share_filename_cpu_(),
    "data of another": lambda tensor: setattr(torch.zeros(tensor.shape), "data", tensor.detach()),
    "another class": lambda tensor: tensor.as_subclass(torch.Tensor).sum().item(),
    "gradient": gradient,
    "assertion": lambda tensor: torch.testing.assert_close(tensor.detach(), torch.zeros(tensor.shape)),
    "item": lambda tensor: tensor.sum().item(),
    "comparison": lambda tensor: bool((tensor > 2).any()),
    "equal": lambda tensor: torch.equal(tensor, torch.zeros(tensor.shape)),
    "tolist": lambda tensor: tensor.tolist(),
    "numpy": lambda tensor: tensor.detach().numpy(),
    "array": lambda tensor: __import__("numpy").asarray(tensor.detach()),
    "data_ptr": lambda tensor: tensor.data_ptr(),
    "address of memory": lambda tensor: tensor.untyped_storage().data_ptr() == 0,
    "bytes": lambda tensor: bytes(tensor.untyped_storage()),
    "save": lambda tensor: torch.save(tensor, "/dev/null"),
    "nonzero": lambda tensor: tensor.nonzero(),
    "unique": lambda tensor: tensor.unique(),
    "copy": lambda tensor: torch.zeros(tensor.shape).copy_(tensor),
    "another content": lambda tensor: setattr(tensor, "data", tensor * 2),
    "method of the class": torch.Tensor.tolist,
    "in place": lambda tensor: tensor.detach().mul_(2),
    "handled": swallowed,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "way"),
    [
        ("pass", "text"),  # first: this process replays the passes of a graph that it has seen
        *(("preprocess", way) for way in ("comparison", "address of memory", "handled", "choosy", "dlpack")),
    ],
)
def test_a_method_whose_weights_are_read_is_lowered_with_them(
    build: Build, tmp_path: Path, where: str, way: str
) -> None:
    path = tmp_path / "net.safetensors"
    weights(MODEL, path, as_they_are, 1)
    with reading({**READS, "choosy": choosy}[way], where):
        made = built(build, tmp_path / "cache", path, MANIFEST, "--jobs", "1")
        full = built(build, tmp_path / "cache", path, MANIFEST, "--no-accelerate")
    assert made.read("net.pte") == full.read("net.pte")
    for name in ("net.report.json", "net.index.json"):
        reasons = made.json(name)["with_weights"]
        assert reasons.keys() == {"forward", "encode"}
        assert "with_weights" not in full.json(name)
    assert way == "choosy" or f"`{__name__}:" in reasons["encode"]
    assert "method" in lowered(tmp_path / "cache")
    assert lowered(tmp_path / "cache")["method"] == 4  # what reads weights, and the methods with their weights


@pytest.mark.parametrize("way", READS)
def test_each_way_to_read_a_weight_is_noted(way: str) -> None:
    with unbound.watched({}) as watch:
        tensor = unbound.weight(TensorFacts("w", "float32", [2, 3], True, None, True))
        with contextlib.suppress(Exception, unbound.ReadsWeights):
            READS[way](tensor)
    assert watch.reads
    assert "`w`" in watch.reads[0]


COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.t().contiguous(),
    "channels last": lambda tensor: tensor.view(1, 2, 3, 1).to(memory_format=torch.channels_last),
    "with a constant": lambda tensor: tensor * torch.tensor([1.5, float("inf"), -0.0]),
    "with one number": lambda tensor: tensor + torch.tensor(-0.5),
    "with a large constant of one number": lambda tensor: tensor.sum() * torch.full((3, 2, 512), 0.1),
    "with a constant of one integer": lambda tensor: tensor.sum().to(torch.int64) + torch.full((2000,), 3),
    "several results": lambda tensor: tensor.split([1, 1])[1].clone(),
    "options": lambda tensor: tensor.to(torch.bfloat16).sum(1, keepdim=True, dtype=torch.float32),
    "number that is not finite": lambda tensor: tensor.clamp(min=-float("inf")),
}


@pytest.mark.parametrize("way", COMPUTED)
def test_a_recipe_computes_what_was_computed(way: str) -> None:
    content = torch.randn(2, 3)
    tensor = unbound.weight(TensorFacts("w", "float32", [2, 3], False, None, True))
    made = COMPUTED[way](tensor)
    promised = made.promise()
    found = recipes.compute(promised.recipe, Ingredients({"w": content}, {}))
    expected = COMPUTED[way](content)
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(found, expected)
    assert len(promised) == expected.untyped_storage().nbytes()
    assert set(recipes.weights_of(promised.recipe)) == {"w"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None])
@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (4, 3, 1, 1), (4, 1, 3, 3)], ids=str)
def test_scaled_convolutions_are_packed_as_two_operators_do(shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    weights = {"w": torch.randn(shape), "scale": torch.randn(shape[0], 1, 1, 1)}
    options = {"memory_format": torch.channels_last, **({} if dtype is None else {"dtype": dtype})}
    names = {id(each): name for name, each in weights.items()}
    multiply, operands = torch.ops.aten.mul.Tensor, [*weights.values()]
    scaled = recipes.call(multiply, operands, {}, lambda each: recipes.weight(names[id(each)]))
    recipe = recipes.call(torch.ops.aten._to_copy.default, [operands[0]], options, lambda _: scaled)
    expected = (weights["w"] * weights["scale"]).to(**options)
    found = recipes.compute(recipe, Ingredients(weights, {}))
    assert recipes.form(found) == recipes.form(expected)
    assert torch.equal(found, expected)


def test_a_large_weight_is_copied_from_its_file(tmp_path: Path) -> None:
    """Content that no blob has gets no file."""
    save_file({"w": torch.randn(1 << 19), "v": torch.randn(8)}, tmp_path / "w.safetensors")
    weights = StoredTensors(tmp_path / "w.safetensors")
    described = {name: (recipes.weight(name), recipes.form(weights[name])) for name in weights}
    binding = Binding(Ingredients(weights, {}), 2, tmp_path)
    binding.learn(described, [], {"w"})
    blob = binding.blob("w").content
    assert isinstance(blob, PartOfFile)
    assert blob.to_bytes() == bytes(flat_bytes(weights["w"]).numpy())
    assert binding._bound["v"].content is None
    written = writing.write(tmp_path, "a", "program", blob.write_to_file)
    assert written.path.read_bytes() == blob.to_bytes()
    binding.learn(described, [], {"v"})
    assert binding.blob("v").sha256 == binding._bound["v"].sha256


def _weight(name: str, _: torch.Tensor) -> recipes.Recipe:
    return recipes.weight(name)


def test_much_computed_content_is_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding_module, "_KEPT", 5 << 20)
    weights = {name: torch.randn(1 << 20) for name in "abc"}
    form = recipes.form(weights["a"])
    negate = torch.ops.aten.neg.default
    made = {name: recipes.call(negate, [each], {}, partial(_weight, name)) for name, each in weights.items()}
    described = {name: (recipe, form) for name, recipe in made.items()}
    binding = Binding(Ingredients(weights, {}), 2, tmp_path)
    binding.learn(described, [], {*weights})
    assert len([*tmp_path.iterdir()]) == 2
    for name, each in weights.items():
        assert binding.blob(name).content.to_bytes() == bytes(flat_bytes(-each).numpy())


def test_content_that_becomes_equal_is_written_once() -> None:
    """ExecuTorch decides about all other content: it keeps equal buffers with names apart."""
    pair = [Blob(b""), Blob(b"equal"), Blob(b"equal")]
    part = Emitted([], pair, pair, [], [], {}, [], {}, False, {}, {})
    for bound, length in ((False, 3), (True, 2)):
        merged = merge([replace(part, bound=bound)], {})
        assert [len(merged.program.constant_buffer), len(merged.mutable_data or ())] == [length, length]


PARTS: dict[str, Callable[[bytes], object]] = {
    "slice": lambda content: content[:4],
    "byte": lambda content: content[0],
    "loop": list,
    "search": lambda content: b"1" in content,
    "text": lambda content: content.decode(),
    "sum": lambda content: content + b"1",
}


@pytest.mark.parametrize("way", PARTS)
def test_each_way_to_read_a_part_of_the_bytes_is_noted(way: str) -> None:
    with unbound.watched({}) as watch:
        content = unbound.weight(TensorFacts("w", "float32", [2, 3], False, None, True)).promise()
        with pytest.raises(unbound.ReadsWeights):
            PARTS[way](content)
    assert "`w`" in watch.reads[0]


def test_a_part_of_a_weight_has_no_bytes() -> None:
    tensor = unbound.weight(TensorFacts("w", "float32", [2, 3], False, None, True))
    with unbound.watched({}) as watch, pytest.raises(unbound.ReadsWeights):
        tensor[1].promise()
    here = f"{__name__}:test_a_part_of_a_weight_has_no_bytes"
    assert watch.reads == [f"a program gets a part of `w` in `{here}`"]


def test_a_recipe_has_no_large_constants_and_nothing_random() -> None:
    with pytest.raises(NoRecipe, match="a constant of 8192 bytes"):
        recipes.constant(torch.arange(2048, dtype=torch.float32))
    assert "constant" in recipes.constant(torch.zeros(2048)), "as ExecuTorch makes for a convolution without bias"
    with pytest.raises(NoRecipe, match="does more than to compute"):
        recipes.call(torch.ops.aten.rand_like.default, [torch.zeros(1)], {}, recipes.constant)


@pytest.mark.parametrize("operator", ["aten.add_.Tensor", "aten.from_file.default"])
def test_a_recipe_from_elsewhere_only_computes(operator: str) -> None:
    with pytest.raises(ValueError, match="no recipe has"):
        recipes.compute({"operator": operator, "arguments": [], "options": {"options": {}}}, Ingredients({}, {}))


def test_without_the_plugin_the_bytes_are_the_same(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "net.safetensors", tmp_path / "cache"
    weights(MODEL, path, as_they_are, 1)
    bound = built(build, cache, path)
    others = {name: each for name, each in plugins.plugins().items() if name != "etplugins.templates"}
    monkeypatch.setattr(plugins, "plugins", lambda: others)
    monkeypatch.setattr(plugins, "group", plugins.group.__wrapped__)
    before = lowered(cache)
    together = built(build, cache, path)
    assert lowered(cache) == {**before, **{step: before[step] + 1 for step in ("program", "lower")}}
    for name in ("net.pte", "net.tagged.ptd", "net.report.json"):
        assert together.read(name) == bound.read(name), name
