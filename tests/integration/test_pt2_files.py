"""A `.pt2` is data: no code in it runs, and if it cannot be read, the error is written for users."""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

from etbuild.errors import InputError
from etbuild.export import custom_ops
from etbuild.export.export_methods import load_method
from etbuild.guard.reads import watched_reads
from etbuild.inputs.sources import read_sources
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import importable
from etbuild.key.declared import Inputs
from etbuild.plan.parts import CustomOps
from etbuild.plan.plan import from_manifest
from etplugins.pt2_files import files as pt2_file
from etplugins.pt2_files.strings import UnsafePt2, _operator

from .conftest import Build

GRAPH = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"
CONSTANTS = "archive/data/constants/model_constants_config.json"
EXAMPLES = "archive/data/sample_inputs/model.pt"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.tied = torch.nn.Linear(8, 4)
        self.tied.weight = self.linear.weight
        self.register_buffer("cache", torch.zeros(2, 4))
        self.register_buffer("rows", torch.ones(1, 4).expand(3, 4))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("step", torch.ones(1, dtype=torch.int64), persistent=False)
        self.constant = torch.ones(4)

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor], unused: torch.Tensor) -> dict[str, Any]:
        y = self.linear(x) + self.tied(x) + self.constant + self.rows.sum()
        self.cache.add_(y.sum())
        with torch.no_grad():
            y = torch.cond(y.sum() > 0, torch.sin, torch.cos, (y * 2,))
        return {"y": y * self.step, "more": (more["k"] * x.shape[0], y.view(y.shape[0] * 2, -1), y.shape[0])}


@pytest.fixture(scope="module")
def records() -> dict[str, bytes]:
    torch.manual_seed(0)
    program = torch.export.export(
        Net().eval(),
        (torch.rand(3, 8), {"k": torch.ones(2)}, torch.ones(1)),
        dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=20)}, "more": {"k": None}, "unused": None},
    )
    saved = io.BytesIO()
    torch.export.save(program, saved)
    with zipfile.ZipFile(saved) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class Payload:
    """An object that makes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.canary,)


def code(canary: Path) -> str:
    return f"__import__('pathlib').Path('{canary}').touch()"


def write(file: Path, records: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return file


def edited(records: dict[str, bytes], name: str, edit: Callable[[Any], None]) -> dict[str, bytes]:
    content = json.loads(records[name])
    edit(content)
    return {**records, name: json.dumps(content).encode()}


def node(graph: Any, index: int = 1) -> Any:
    return graph["graph_module"]["graph"]["nodes"][index]


def signature(graph: Any) -> Any:
    return graph["graph_module"]["module_call_graph"][0]["signature"]


def tree(kind: str, context: Any) -> str:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


def some_size(graph: Any, expression: Any) -> None:
    sizes = graph["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
    sizes[0]["as_expr"]["expr_str"] = expression


def rename_input(graph: Any, name: str) -> None:
    """Gives the last input another name, which `torch.fx` writes to the signature of a function."""
    text = (
        json.dumps(graph)
        .replace('"name": "unused"', f'"name": {json.dumps(name)}')
        .replace('"unused": {', f"{json.dumps(name)}: {{")
    )
    graph.update(json.loads(text))


def test_a_program_is_read_as_torch_reads_it(records: dict[str, bytes], tmp_path: Path) -> None:
    file = write(tmp_path / "net.pt2", records)
    ours, torchs = pt2_file.load(file), torch.export.load(file)
    assert str(ours.graph) == str(torchs.graph)
    assert ours.graph_signature == torchs.graph_signature
    assert ours.range_constraints == torchs.range_constraints
    for own, other in ((ours.state_dict, torchs.state_dict), (ours.constants, torchs.constants)):
        assert list(own) == list(other)
        for name in own:
            assert own[name].stride() == other[name].stride()
            assert type(own[name]) is type(other[name])
            torch.testing.assert_close(own[name], other[name], rtol=0, atol=0)
    assert ours.state_dict["tied.weight"].data_ptr() == ours.state_dict["linear.weight"].data_ptr()


def test_weights_are_aligned_as_torch_aligns_them(records: dict[str, bytes], tmp_path: Path) -> None:
    """The alignment of memory decides which kernels run, and so it affects the last bits of results."""
    file = write(tmp_path / "net.pt2", records)
    for _ in range(5):
        tensors = pt2_file.load(file).state_dict.values()
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors if tensor.numel())


class Sizes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return x * n**0.5, x * torch.sym_sqrt(n), x * (n & 3), x * (n | 1), x * torch.sym_float(n) ** -0.5


def test_arithmetic_on_sizes_is_read(tmp_path: Path) -> None:
    file, shapes = tmp_path / "net.pt2", ({0: torch.export.Dim("n", min=2, max=20)},)
    torch.export.save(torch.export.export(Sizes(), (torch.ones(5),), dynamic_shapes=shapes), file)
    read = pt2_file.load(file).module()
    for size in (2, 7):
        torch.testing.assert_close(read(torch.ones(size)), Sizes()(torch.ones(size)))


def test_names_that_modules_may_have_are_read(tmp_path: Path) -> None:
    names = ("a b", "conv-1", "\u00fc(1)[x]*", "50%", "a=b")
    net = torch.nn.Sequential(collections.OrderedDict((name, torch.nn.Linear(2, 2)) for name in names))
    file = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net, (torch.ones(1, 2),)), file)
    program = pt2_file.load(file)
    assert {f"{name}.weight" for name in names} <= set(program.state_dict)
    torch.testing.assert_close(program.module()(torch.ones(1, 2)), net(torch.ones(1, 2)))


class Shifted(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[1:] + y


def test_a_dimension_of_another_one_is_named(tmp_path: Path) -> None:
    size, file = torch.export.Dim("n", min=2, max=20), tmp_path / "net.pt2"
    shapes = ({0: size + 1}, {0: size})
    torch.export.save(torch.export.export(Shifted(), (torch.ones(6), torch.ones(5)), dynamic_shapes=shapes), file)
    with pytest.raises(UnsafePt2, match=r"computed from another one .* give it a `Dim` of its own"):
        pt2_file.load(file)


class Scan(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return associative_scan(torch.add, x, 0, combine_mode="generic")


def test_a_scan_is_named(tmp_path: Path) -> None:
    file = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Scan(), (torch.ones(4, 3),)), file)
    with pytest.raises(UnsafePt2, match=r"`associative_scan` and `torch\.func` are not supported"):
        pt2_file.load(file)


DECLARED = """\
import torch

@torch.library.custom_op("pt2_declared::lookup", mutates_args=())
def lookup(x: torch.Tensor, path: str) -> torch.Tensor:
    return x + len(path)

@lookup.register_fake
def _(x, path):
    return torch.empty_like(x)
"""


def test_a_declared_operator_may_name_its_arguments_as_it_likes(tmp_path: Path) -> None:
    source = tmp_path / "lookup_ops.py"
    source.write_text(DECLARED)
    with importable(read_sources({"lookup_ops.py": source}), [], watched_reads):
        custom_ops.load(CustomOps((), ("lookup_ops",)), StepContext(Inputs()))
    assert custom_ops.is_declared("pt2_declared::lookup")
    _operator("torch.ops.pt2_declared.lookup.default")


def test_example_inputs_and_guards_are_not_read(records: dict[str, bytes], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile = edited(records, GRAPH, lambda graph: graph.update(guards_code=[code(canary)]))
    saved = io.BytesIO()
    torch.save(((Payload(canary),), {}), saved)
    file = write(tmp_path / "net.pt2", {**hostile, EXAMPLES: saved.getvalue()})
    program = pt2_file.load(file)
    program.module()
    program.run_decompositions({})
    assert not canary.exists()
    with contextlib.suppress(Exception):  # any error is fine: the code ran
        torch.export.load(file)
    assert canary.exists()


IN_GRAPHS: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "expression": (lambda g, c: some_size(g, code(c)), "not an expression over sizes"),
    "expression_of_a_symbol": (lambda g, c: some_size(g, f"Symbol({code(c)})"), "not an expression over sizes"),
    "expressions": (lambda g, c: some_size(g, [code(c)]), "`expr_str` is not of type str"),
    "symbol": (lambda g, _: some_size(g, "Symbol('os')"), "is not the name of a size"),
    "bomb": (lambda g, _: some_size(g, "Pow(Integer(9), Pow(Integer(9), Integer(9)))"), "not an expression over sizes"),
    "tower": (
        lambda g, _: some_size(g, "Pow(Pow(Pow(Integer(9), Integer(64)), Integer(64)), Integer(64))"),
        "not an expression over sizes",
    ),
    "shift": (lambda g, _: some_size(g, "LShift(Integer(1), Integer(9999999999))"), "not an expression over sizes"),
    "system": (lambda g, _: node(g).update(target="torch.os.system"), "`torch.os.system`, which is not an operator"),
    "load": (lambda g, _: node(g).update(target="torch.load"), "is not an operator"),
    "library": (lambda g, _: node(g).update(target="torch.ops.load_library"), "is not an operator"),
    "attribute": (lambda g, _: node(g).update(target="torch.ops.aten.__class__.__init__"), "is not an operator"),
    "caller": (lambda g, _: node(g).update(target="_operator.methodcaller"), "is not an operator"),
    "extension": (lambda g, _: node(g).update(target="#torchao:x"), "is not an operator"),
    "higher_order": (
        lambda g, _: node(g).update(target="torch.ops.higher_order.triton_kernel_wrapper_mutation"),
        "is not an operator",
    ),
    "file": (lambda g, _: node(g).update(target="torch.ops.aten.from_file.default"), "which opens files"),
    "operator_argument": (
        lambda g, _: node(g)["inputs"].append({"name": "y", "arg": {"as_operator": "torch.os.system"}}),
        "is not an operator",
    ),
    "source": (
        lambda g, _: node(g)["metadata"].update(source_fn_stack="x,torch.__dict__"),
        "not the name of a function",
    ),
    "node": (lambda g, c: node(g).update(name=f"x\n{code(c)}"), "is not an identifier"),
    "input": (lambda g, c: rename_input(g, f"unused={code(c)}"), "is not an identifier"),
    "keyword": (
        lambda g, c: node(g)["inputs"][0].update(name=f"a={code(c)}, b", kind=2),
        "is not an identifier",
    ),
    "names_of_arguments": (
        lambda g, c: signature(g).update(forward_arg_names=["x", f"y={code(c)}"]),
        "is not an identifier",
    ),
    "keyword_of_the_tree": (
        lambda g, c: signature(g).update(
            in_spec=json.dumps(
                [
                    1,
                    {
                        "type": "builtins.tuple",
                        "context": "null",
                        "children_spec": [
                            {"type": "builtins.tuple", "context": "null", "children_spec": []},
                            {"type": "builtins.dict", "context": json.dumps([f"a={code(c)}"]), "children_spec": []},
                        ],
                    },
                ]
            )
        ),
        "is not an identifier",
    ),
    "weight": (
        lambda g, c: g["graph_module"]["signature"]["input_specs"][0]["parameter"].update(
            parameter_name=f'a"+{code(c)}+"'
        ),
        "names of weights and modules cannot have",
    ),
    "enumeration": (
        lambda g, _: signature(g).update(
            out_spec=tree("builtins.tuple", '{"__enum__": true, "fqn": "antigravity:x", "name": "y"}')
        ),
        "name an enumeration",
    ),
    "default_dict": (
        lambda g, _: signature(g).update(
            out_spec=tree("collections.defaultdict", {"default_factory_module": "antigravity"})
        ),
        "`collections.defaultdict`, which cannot be read",
    ),
    "verifiers": (lambda g, _: g.update(verifiers=[]), "it names no dialect"),
    "dialect": (lambda g, _: g.update(verifiers=["EDGE"]), "its dialect is `EDGE`"),
    "object": (
        lambda g, _: g["graph_module"]["graph"]["inputs"].append({"as_custom_obj": {"name": "o", "class_fqn": "a.B"}}),
        "an object of its own class",
    ),
    "counter": (
        lambda g, _: g["range_constraints"].update(u99999999999={"min_val": 0, "max_val": 1}),
        "is not the name of a size",
    ),
    "range": (lambda g, c: g["range_constraints"].update(s1={"min_val": code(c), "max_val": 1}), "is not of type int"),
    "two_kinds": (lambda g, _: node(g)["inputs"][0]["arg"].update(as_int=1), "2 kinds of Argument"),
    "unknown_kind": (lambda g, _: node(g)["inputs"][0].update(arg={"as_code": 1}), "unknown kind `as_code`"),
    "no_mapping": (lambda g, _: g.update(graph_module=[]), "`graph_module` is not of type dict"),
}


@pytest.mark.parametrize("attack", IN_GRAPHS)
def test_a_graph_that_would_run_code_is_refused(attack: str, records: dict[str, bytes], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    edit, reason = IN_GRAPHS[attack]
    file = write(tmp_path / "net.pt2", edited(records, GRAPH, lambda graph: edit(graph, canary)))
    with pytest.raises(UnsafePt2) as refused:
        pt2_file.load(file)
    assert reason in str(refused.value)
    assert str(refused.value).isprintable()
    assert not canary.exists()


@pytest.mark.parametrize("attack", ["expression", "input"])
def test_the_attacks_are_ones(attack: str, records: dict[str, bytes], tmp_path: Path) -> None:
    """The attacks work: if PyTorch reads the same files, their code runs."""
    canary = tmp_path / "canary"
    edit, _ = IN_GRAPHS[attack]
    file = write(tmp_path / "net.pt2", edited(records, GRAPH, lambda graph: edit(graph, canary)))
    with contextlib.suppress(Exception):
        torch.export.load(file)
    assert canary.exists()


def pickled(kind: str) -> Callable[[Any], None]:
    def edit(table: Any) -> None:
        entry = next(iter(table["config"].values()))
        entry.update(use_pickle=True, path_name={"weight": "weight_0", "constant": "tensor_0"}.get(kind, f"{kind}_0"))
        if kind in ("custom_obj", "opaque_obj"):
            entry["tensor_meta"] = None

    return edit


@pytest.mark.parametrize("kind", ["weight", "constant", "custom_obj", "opaque_obj"])
def test_a_pickle_is_refused(kind: str, records: dict[str, bytes], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    saved = io.BytesIO()
    torch.save(Payload(canary), saved)
    table = WEIGHTS if kind == "weight" else CONSTANTS
    hostile = edited(records, table, pickled(kind))
    record = next(iter(json.loads(hostile[table])["config"].values()))["path_name"]
    content = pickle.dumps(Payload(canary)) if kind == "opaque_obj" else saved.getvalue()
    folder = table.rpartition("/")[0]
    file = write(tmp_path / "net.pt2", {**hostile, f"{folder}/{record}": content})
    with pytest.raises(UnsafePt2, match=rf"its record `data/\w+/{record}`"):
        pt2_file.load(file)
    assert not canary.exists()


def of_weight(**facts: Any) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def edit(table: Any) -> None:
        entry = table["config"]["linear.weight"]
        entry.update({key: value for key, value in facts.items() if key in entry})
        entry["tensor_meta"].update({key: value for key, value in facts.items() if key not in entry})

    return lambda records: edited(records, WEIGHTS, edit)


ARCHIVES: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "elsewhere": (of_weight(path_name="../../../../../etc/hostname"), "it has no record"),
    "absolute": (of_weight(path_name="/etc/hostname"), "it has no record"),
    "larger": (of_weight(sizes=[{"as_int": 4}, {"as_int": 9}]), "larger than its record"),
    "far": (of_weight(storage_offset={"as_int": 2**70}), "larger than its record"),
    "endless": (of_weight(sizes=[{"as_int": 2**40}], strides=[{"as_int": 0}]), "larger than its record"),
    "negative": (of_weight(strides=[{"as_int": -8}, {"as_int": 1}]), "the form of"),
    "wide": (of_weight(sizes=[{"as_int": 1}], strides=[{"as_int": 2**80}]), "the form of"),
    "symbolic": (of_weight(sizes=[{"as_expr": {"expr_str": "Integer(3)"}}]), "the form of"),
    "dtype": (of_weight(dtype=99), "the form of"),
    "sparse": (of_weight(layout=1), "the form of"),
    "without_content": (lambda r: {**r, "archive/data/weights/weight_0": b""}, "has no content"),
    "without_table": (lambda r: {n: c for n, c in r.items() if n != WEIGHTS}, "it has no record"),
    "no_json": (lambda r: {**r, GRAPH: b"{"}, "is not JSON"),
    "twice": (lambda r: {**r, WEIGHTS: b'{"config": {}, "config": {}}'}, 'the key "config" occurs twice'),
    "deep": (lambda r: {**r, GRAPH: b"[" * 100_000}, "nested too deeply"),
    "long_number": (lambda r: {**r, GRAPH: b'{"verifiers": ' + b"9" * 5000 + b"}"}, "is not JSON"),
    "list": (lambda r: {**r, GRAPH: b"[]"}, "`it` is not of type dict"),
    "two_programs": (lambda r: {**r, "archive/models/other.json": r[GRAPH]}, "it holds 2 programs"),
    "no_program": (lambda r: {n: c for n, c in r.items() if n != GRAPH}, "it holds no exported program"),
    "old": (lambda _: {"version": b"8.8", "serialized_exported_program.json": b"{}"}, "save the program again"),
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_an_archive_that_torch_did_not_write_is_refused(what: str, records: dict[str, bytes], tmp_path: Path) -> None:
    edit, reason = ARCHIVES[what]
    with pytest.raises(UnsafePt2) as refused:
        pt2_file.load(write(tmp_path / "net.pt2", edit(records)))
    assert reason in str(refused.value)


def test_the_tricks_of_archives(records: dict[str, bytes], tmp_path: Path) -> None:
    file = write(tmp_path / "net.pt2", records)
    good = file.read_bytes()
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(GRAPH, b"{}")
    with pytest.raises(UnsafePt2, match="two of its records have the same name"):
        pt2_file.load(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:  # 20 MB in 20 kB
        archive.writestr(GRAPH, b"[" + b"0," * 10_000_000 + b"0]")
    with pytest.raises(UnsafePt2, match="compressed"):
        pt2_file.load(file)
    for damaged in (
        good[: len(good) // 2],
        good.replace(b"PK\x01\x02", b"PK\x01\x03"),
        b"PK\5\6",
    ):
        file.write_bytes(damaged)
        with pytest.raises(UnsafePt2, match="damaged"):
            pt2_file.load(file)
    file.write_bytes(good.replace(records["archive/data/weights/weight_0"], b"\1" * 128))
    with pytest.raises(UnsafePt2, match="damaged: BadZipFile: Bad CRC-32"):
        pt2_file.load(file)


def read(file: Path) -> None:
    plan = from_manifest({"name": "net", "methods": {"forward": {"program": file.name}}})
    load_method(plan.export_plan, "forward", Inputs({}, {file.name: file}))


def test_damage_is_an_error_of_the_input(records: dict[str, bytes], tmp_path: Path) -> None:
    chance, file, canary = random.Random(0), tmp_path / "net.pt2", tmp_path / "canary"
    good = write(file, records).read_bytes()
    read(file)
    for _ in range(40):
        damaged = bytearray(good)
        for _ in range(chance.choice((1, 20))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))])
        refused_or_read(file)
    values: list[Any] = [None, True, -1, 2**63, 1e300, "", "x", code(canary), [], {}, "aten", "as_int"]
    tables = {name: json.loads(records[name]) for name in (GRAPH, WEIGHTS, CONSTANTS)}
    for _ in range(80):
        name = chance.choice(list(tables))
        table = copy.deepcopy(tables[name])
        mutate(table, chance, values)
        write(file, {**records, name: json.dumps(table).encode()})
        refused_or_read(file)
    assert not canary.exists()


def refused_or_read(file: Path) -> None:
    with contextlib.suppress(InputError):
        read(file)


def mutate(content: Any, chance: random.Random, values: list[Any]) -> None:
    """Replaces one part of JSON data by another value."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        key = chance.choice(keys)
        inner = content[key]
        if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.1:
            content[key] = copy.deepcopy(chance.choice(values))
            return
        content = inner


def test_a_build_names_the_file_and_the_error(build: Build, records: dict[str, bytes], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile = edited(records, GRAPH, lambda graph: some_size(graph, code(canary)))
    content = write(tmp_path / "net.pt2", hostile).read_bytes()
    text = "schema: executorch-model/v1\nname: net\nmethods: {forward: {program: net.pt2}}\n"
    made = build(text, files={"net.pt2": content})
    assert made.code == 2
    assert "model.yaml:3:30: methods.forward.program: cannot read `net.pt2`: `__import__(" in made.err
    assert "is not an expression over sizes: it would run as Python code" in made.err
    assert made.files == []
    assert not canary.exists()


QUANTIZED = """\
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

def create():
    module = torch.nn.Sequential(torch.nn.Linear(32, 32)).eval()
    quantize_(module, Int8WeightOnlyConfig())
    return module
"""


@pytest.mark.parametrize("saved", [False, True])
def test_a_weight_of_a_class_of_its_own_is_named(saved: bool, build: Build, tmp_path: Path) -> None:
    manifest = (
        "schema: executorch-model/v1\nname: net\nmodel: {factory: 'model:create'}\n"
        "methods: {forward: {example_inputs: [{shape: [1, 32], dtype: float32}]}}\n"
    )
    if saved:
        manifest = "schema: executorch-model/v1\nname: net\nmethods: {forward: {program: net.pt2}}\n"
        made: dict[str, Any] = {}
        exec(QUANTIZED, made)
        torch.export.save(torch.export.export(made["create"](), (torch.ones(1, 32),)), tmp_path / "net.pt2")
    files = {"net.pt2": (tmp_path / "net.pt2").read_bytes()} if saved else None
    failed = build(manifest, model=QUANTIZED, files=files)
    assert failed.code == 1
    assert "`0.weight` is a `Int8Tensor`" in failed.err
    assert "torchao.utils.unwrap_tensor_subclass(module)" in failed.err


def test_tensors_whose_elements_share_memory_have_a_limit_together(tmp_path: Path) -> None:
    """A small file could ask for any amount of memory."""

    class Many(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for index in range(5):
                self.register_buffer(f"b{index}", torch.zeros(1).expand(2**26))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + sum(buffer[:2] for buffer in self.buffers())

    torch.export.save(torch.export.export(Many(), (torch.ones(2),)), tmp_path / "many.pt2")
    with pytest.raises(UnsafePt2, match="its tensors up to `b4` are larger than their records by 1,342,177,260 bytes"):
        pt2_file.load(tmp_path / "many.pt2")
