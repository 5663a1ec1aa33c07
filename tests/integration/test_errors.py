"""Messages for errors in the model, its weights or a backend."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from .conftest import MANIFEST, MODEL, Build, Outcome

WITH_WEIGHTS = MANIFEST.replace('factory: "model:create"', 'factory: "model:create"\n  weights: net.safetensors')


def expect(outcome: Outcome, code: int, *fragments: str) -> None:
    for fragment in fragments:
        assert fragment in outcome.err
    assert outcome.code == code
    assert "Traceback" not in outcome.err
    assert outcome.files == []


def test_weights_name_each_parameter_that_does_not_fit(build: Build) -> None:
    state = {"linear.weight": torch.zeros(4, 9), "linear.bais": torch.zeros(4)}
    outcome = build(WITH_WEIGHTS, files={"net.safetensors": save(state)})
    expect(
        outcome,
        2,
        "model.yaml:5:12: model.weights",
        "parameter `linear.bias` float32[4] is missing in `net.safetensors`",
        "`net.safetensors` has `linear.bais`, which is not a parameter or buffer of the module",
        "did you mean `linear.bias`?",
        "parameter `linear.weight` is float32[4, 8] in the module and float32[4, 9] in `net.safetensors`",
    )


def test_weights_of_another_dtype_are_refused(build: Build) -> None:
    state = {"linear.weight": torch.zeros(4, 8).half(), "linear.bias": torch.zeros(4)}
    outcome = build(WITH_WEIGHTS, files={"net.safetensors": save(state)})
    expect(
        outcome,
        2,
        "the weights are float16, and the module is float32: `linear.weight`",
        "`dtype: float32` to convert the weights, or `dtype: float16` to convert the module",
    )


def test_a_checkpoint_of_another_dtype_gives_one_problem(build: Build) -> None:
    content = tall(lambda name, tensor: (name, tensor.bfloat16()))
    outcome = build(WITH_WEIGHTS, model=TALL, files={"net.safetensors": content})
    expect(
        outcome,
        2,
        "the weights are bfloat16, and the module is float32: 300 parameters, such as `linear.0.bias`",
        "write below `model` `dtype: float32` to convert the weights, or `dtype: bfloat16` to convert the module",
    )
    assert outcome.err.count("error") == 1


TALL = MODEL.replace("Linear(8, 4)", "Sequential(*(torch.nn.Linear(8, 8) for _ in range(150)))")
"""A module with 300 parameters."""


def tall(change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> bytes:
    """Returns a file with the weights of `TALL`, each changed."""
    shapes = {f"linear.{n}.{part}": size for n in range(150) for part, size in (("weight", (8, 8)), ("bias", (8,)))}
    content: bytes = save(dict(change(name, torch.zeros(shape)) for name, shape in shapes.items()))
    return content


@pytest.mark.parametrize(
    ("change", "problems", "fragments"),
    [
        (
            lambda name, tensor: (name, torch.zeros([size + 1 for size in tensor.shape])),
            1,
            ("`linear.0.bias` is float32[8] in the module and float32[9]", "299 more such problems here"),
        ),
        (
            lambda name, tensor: (f"model.{name}", tensor),
            2,
            (
                "is missing",
                "has `model.linear.0.bias`",
                "names in the file start with `model.`, the names in the module",
            ),
        ),
        (
            lambda name, tensor: (name.removeprefix("linear."), tensor),
            2,
            ("is missing", "has `0.bias`", "names in the module start with `linear.`, the names in the file"),
        ),
        (lambda name, tensor: (name.replace("linear", "other"), tensor), 2, ("is missing", "has `other.0.bias`")),
    ],
    ids=["other shapes", "prefix in the file", "prefix in the module", "other names"],
)
def test_a_checkpoint_that_does_not_fit_gives_one_problem_of_each_kind(
    build: Build,
    change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]],
    problems: int,
    fragments: tuple[str, ...],
) -> None:
    outcome = build(WITH_WEIGHTS, model=TALL, files={"net.safetensors": tall(change)})
    expect(outcome, 2, *fragments, f"{300 * problems} errors\n")
    assert outcome.err.count("error: ") == problems
    assert outcome.err.count("\n") <= 3 * problems + 1


def test_weights_in_two_files_must_not_overlap(build: Build) -> None:
    manifest = WITH_WEIGHTS.replace("net.safetensors", "[a.safetensors, b.safetensors]")
    a = save({"linear.weight": torch.zeros(4, 8)})
    b = save({"linear.weight": torch.zeros(4, 8), "linear.bias": torch.zeros(4)})
    expect(
        build(manifest, files={"a.safetensors": a, "b.safetensors": b}),
        2,
        "`linear.weight` is in `a.safetensors` and in `b.safetensors`",
    )


def test_one_name_of_tied_weights_is_enough(build: Build) -> None:
    model = MODEL.replace("Linear(8, 4)", "Linear(8, 8)").replace(
        "    def forward", "        self.tied = self.linear\n\n    def forward"
    )
    state = {"linear.weight": torch.ones(8, 8), "linear.bias": torch.ones(8)}
    outcome = build(WITH_WEIGHTS, model=model, files={"net.safetensors": save(state)})
    assert outcome.code == 0, outcome.err


def test_module_on_the_meta_device(build: Build) -> None:
    model = MODEL.replace("return Net()", "return Net().to('meta')")
    expect(build(model=model), 1, "`linear.weight` is on the meta device and has no content")


def test_output_of_a_model_is_not_taken_for_a_result(build: Build) -> None:
    model = MODEL.replace("return Net()", "print('hello'); __import__('os').system('echo native')\n    return Net()")
    outcome = build(MANIFEST, "--json", model=model)
    assert "hello" in outcome.err
    assert [artifact["kind"] for artifact in json.loads(outcome.out)["artifacts"]] == ["program", "report", "index"]


def test_warnings_of_a_model_are_shown_and_those_of_libraries_not(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(MANIFEST)
    warn = "warnings.warn('mind this')\n    return Net()"
    (tmp_path / "model.py").write_text("import warnings\n" + MODEL.replace("return Net()", warn))
    command = [sys.executable, "-m", "etbuild", "build", str(tmp_path / "model.yaml"), "-o", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr.splitlines() == [
        f"{tmp_path}/model.py:13: UserWarning: mind this",
        "  warnings.warn('mind this')",
    ]


def test_missing_weights_file(build: Build) -> None:
    expect(build(WITH_WEIGHTS), 2, "model.yaml:5:12", "there is no file `net.safetensors`\n    looked in: /")
    near = build(WITH_WEIGHTS, files={"nets.safetensors": b""})
    expect(near, 2, "    did you mean `nets.safetensors`?\n")


def test_damaged_weights_file(build: Build) -> None:
    expect(build(WITH_WEIGHTS, files={"net.safetensors": b"nothing"}), 2, "cannot read `net.safetensors`")


def test_weights_file_that_would_run_code(build: Build) -> None:
    buffer = io.BytesIO()
    torch.save({"linear.weight": Path("x")}, buffer)
    manifest = WITH_WEIGHTS.replace("net.safetensors", "net.pt")
    expect(
        build(manifest, files={"net.pt": buffer.getvalue()}),
        2,
        f"it needs the code of `{type(Path()).__module__}.PosixPath`",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text", "`net.pt` is not a file of torch.save"),
        (b"\x80\x02hello", "`net.pt` is damaged: its pickle cannot be read"),
    ],
)
def test_weights_file_of_text(content: bytes, message: str, build: Build) -> None:
    expect(build(WITH_WEIGHTS.replace("net.safetensors", "net.pt"), files={"net.pt": content}), 2, message)


def test_error_inside_of_a_package_names_its_line(build: Build) -> None:
    model = "import yaml\ndef create():\n    return yaml.safe_load('{')\n"
    expect(build(model=model), 1, "model.py:3, in create", "it was raised in yaml.parser, line ", ", in parse_node")


def test_a_failed_import_names_what_is_missing(build: Build) -> None:
    model = """
    try:
        import missing_one
    except ImportError as error:
        raise ModuleNotFoundError("Could not import module 'Auto'") from error
    """
    cause = "Could not import module 'Auto', because of ModuleNotFoundError: No module named 'missing_one'"
    outcome = build(model=textwrap.dedent(model))
    expect(outcome, 1, cause, "is `missing_one` a source of yours?")
    assert "`None`" not in outcome.err


def test_factory_that_raises_names_its_line(build: Build) -> None:
    model = "def create():\n    raise ValueError('no luck')\n"
    expect(build(model=model), 1, "model.yaml:4:12", "model.py:2, in create", "ValueError: no luck")


@pytest.mark.parametrize(
    "registered",
    [
        "self.register_load_state_dict_post_hook(lambda module, keys: module.missing)",
        "self.register_load_state_dict_pre_hook(lambda module, *state: module.missing)",
        "self.register_state_dict_post_hook(lambda module, *state: module.missing)",
    ],
)
def test_a_hook_of_the_model_that_raises_names_its_line(registered: str, build: Build) -> None:
    """Steps call such code in many places, also in child processes."""
    made = "        self.linear = torch.nn.Linear(8, 4)\n"
    model = MODEL.replace(made, f"{made}        {registered}\n")
    state = {"linear.weight": torch.zeros(4, 8), "linear.bias": torch.zeros(4)}
    place = "code of the model failed at model.py:7, in <lambda>: AttributeError: 'Net' object has no attribute"
    expect(build(WITH_WEIGHTS, model=model, files={"net.safetensors": save(state)}), 1, place)


def test_factory_that_returns_no_module(build: Build) -> None:
    expect(build(model="def create():\n    return 7\n"), 1, "`model:create` returned int, not a torch.nn.Module")


def test_factory_that_returns_the_owner_of_a_module(build: Build) -> None:
    model = f"{MODEL}\nclass Trainer:\n    def __init__(self):\n        self.rate, self.net = 0.1, create()\n"
    outcome = build(MANIFEST.replace("model:create", "model:Trainer"), model=model)
    hint = "its attribute `net` is a module: write a factory that returns `Trainer().net`"
    expect(outcome, 1, "`model:Trainer` returned Trainer, not a torch.nn.Module", hint)


def test_factory_that_returns_a_class_is_told_to_call_it(build: Build) -> None:
    kind = MODEL.partition("class ")[2].partition("(")[0]
    outcome = build(model=f"{MODEL}\ndef create():\n    return {kind}\n")
    expect(outcome, 1, "returned type, not a torch.nn.Module", f"call it: the factory returns the class `{kind}`")


def test_factory_that_returns_the_owner_of_several_modules(build: Build) -> None:
    model = f"{MODEL}\nclass Pair:\n    def __init__(self, rate):\n        self.one, self.other = create(), create()\n"
    outcome = build(MANIFEST.replace('"model:create"', '"model:Pair"\n  kwargs: {rate: 1}'), model=model)
    expect(outcome, 1, "its attributes `one`, `other` are modules: ", "such as `Pair(...).one`")


def test_factory_that_is_not_there(build: Build) -> None:
    expect(build(model="def creat():\n    pass\n"), 2, "`model` has no `create`", "did you mean `creat`?")


def test_source_with_a_syntax_error(build: Build) -> None:
    read = "Python {}.{} has read it".format(*sys.version_info)
    expect(build(model="def create(:\n"), 2, "`model.py` is not valid Python: line 1", read)


def test_source_that_is_not_there(build: Build) -> None:
    expect(build(MANIFEST.replace("model:create", "net:create")), 2, "module `net` is not among the declared sources")


def test_source_whose_path_is_not_utf8(build: Build, tmp_path: Path) -> None:
    place = tmp_path / "by\udcfftes"
    place.mkdir()
    (place / "net.py").write_text(MODEL)
    outcome = build(MANIFEST.replace("model:create", "net:create"), "--root", str(place))
    expect(outcome, 2, "the path of the source `net.py` is not UTF-8", "/by\\udcfftes/net.py", "rename")


def test_source_with_the_suffix_of_a_file(build: Build) -> None:
    outcome = build(MANIFEST.replace("model:create", "model.py:create"))
    expect(outcome, 2, "module `model.py` is not among the declared sources", "write `model`, without `.py`")


def test_source_that_hides_the_standard_library(build: Build) -> None:
    expect(build(model="import types\n" + MODEL, types="x = 1\n"), 2, "`types.py` hides Python's own module")


def test_module_imported_by_a_computed_name_must_be_listed(build: Build) -> None:
    model = "import importlib\nextra = importlib.import_module('ex' + 'tra')\n" + MODEL
    outcome = build(model=model, extra="x = 1\n")
    expect(outcome, 1, "model.py:2", "No module named 'extra'", "list it in `model.modules`")
    manifest = MANIFEST.replace('factory: "model:create"', 'factory: "model:create"\n  modules: [extra]')
    assert build(manifest, model=model, extra="x = 1\n").code == 0


def test_entry_that_is_not_there(build: Build) -> None:
    manifest = MANIFEST.replace("forward:", "forwrd:")
    expect(build(manifest), 2, "model.yaml:6:3: methods.forwrd: the module has no", "did you mean `forward`?")


def test_wrong_input_names_method_and_source_line(build: Build) -> None:
    outcome = build(MANIFEST.replace("[2, 8]", "[2, 9]"))
    expect(outcome, 1, "model.yaml:7:5: methods.forward.example_inputs", "model.py:9, in forward")


@pytest.mark.parametrize("strict", ["false", "true"])
def test_data_dependent_branch_names_method_and_source_line(build: Build, strict: str) -> None:
    model = MODEL.replace("return self.linear(x).relu()", "if x.sum() > 0:\n            return x\n        return -x")
    outcome = build(MANIFEST.replace("  forward:\n", f"  forward:\n    strict: {strict}\n"), model=model)
    expect(outcome, 1, "model.yaml:6:3: methods.forward: exporting `forward` failed", "model.py:9", "torch.cond")
    assert "    the line is `if x.sum() > 0:`\n" in outcome.err


def test_a_layer_of_pytorch_that_reads_values_is_named(build: Build) -> None:
    layer = "torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 8), 1, enable_nested_tensor=False)"
    model = MODEL.replace("torch.nn.Linear(8, 4)", layer).replace("self.linear(x)", "self.linear(x, mask=x @ x.T)")
    outcome = build(MANIFEST, model=model)
    expect(outcome, 1, "methods.forward: exporting `forward` failed", "model.py:9")
    assert "    PyTorch reads them at torch/nn/modules/transformer.py:" in outcome.err
    assert "`is_causal` to a TransformerEncoder\n" in outcome.err
    given = build(MANIFEST, model=model.replace("mask=x @ x.T", "mask=x @ x.T, is_causal=False"))
    assert given.code == 0, given.err


CAUGHT = """
import torch

class Picky(torch.nn.Module):
    def forward(self, x):
        if x.shape[0] != 1:
            raise ValueError("one row only")
        return x

class Signs(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.tried = torch.nn.Sequential(torch.nn.Identity(), Picky())

    def forward(self, x):
        try:
            return self.tried(x)
        except Exception:
            return self.linear(x)

def create():
    return Net()
"""


@pytest.mark.parametrize(
    ("submodule", "said"),
    [
        (
            "Picky",
            ["model.py:7, in forward", "an exception of `tried.1`, ValueError: one row only", 'raise ValueError("one'],
        ),
        (
            "Signs",
            ["model.py:12, in forward", "`tried.1`, GuardOnDataDependentSymNode", "return x if x.sum()", "torch.where"],
        ),
    ],
)
def test_an_exception_of_a_submodule_that_the_model_catches(submodule: str, said: list[str], build: Build) -> None:
    outcome = build(model=CAUGHT.replace("Identity(), Picky()", f"Identity(), {submodule}()"))
    expect(
        outcome, 1, "methods.forward: exporting `forward` failed", "call the submodule only where it does not", *said
    )
    assert "_export_root" not in outcome.err


def test_graph_break_in_strict_export(build: Build) -> None:
    model = MODEL.replace("return self", "torch._dynamo.graph_break()\n        return self")
    outcome = build(MANIFEST.replace("  forward:\n", "  forward:\n    strict: true\n"), model=model)
    expect(outcome, 1, "methods.forward: ", "model.py:9")


DYNAMIC = MANIFEST.replace(
    "- {shape: [2, 8]}", "- {shape: [2, 8]}\n    dynamic_shapes: [[{dim: batch, min: 1, max: 16}, null]]"
)


def test_dimension_that_the_model_fixes(build: Build) -> None:
    model = MODEL.replace("return self", "x = x.reshape(2, 8)\n        return self")
    expect(build(DYNAMIC, model=model), 1, "model.yaml:9:5: methods.forward.dynamic_shapes", "batch")


def test_dimension_that_the_model_narrows(build: Build) -> None:
    model = MODEL.replace("return self", "torch._check(x.shape[0] <= 7)\n        return self")
    expect(build(DYNAMIC, model=model), 1, "methods.forward.dynamic_shapes", "batch")


TAGGED = MANIFEST + "named_data:\n  weights: {parameters: ['linear.*']}\n"


def test_pattern_that_matches_nothing(build: Build) -> None:
    outcome = build(TAGGED.replace("linear.*", "linaer.weight"))
    expect(outcome, 2, "model.yaml:12:26", "matches no parameter", "did you mean `linear.weight`?")


def test_parameter_of_two_tags(build: Build) -> None:
    outcome = build(TAGGED + "  all: {parameters: ['*']}\n")
    expect(outcome, 2, "`linear.*` matches `linear.weight`, which already belongs to the tag `all`")


def custom(source: str) -> tuple[str, str]:
    entry = "{backend: custom, options: {factory: 'partitioner:create'}}"
    return MANIFEST.replace("[xnnpack]", f"[{entry}]"), source


PARTITIONER = """\
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

class Mine(Partitioner):
    def partition(self, program):
        BODY

def create():
    return Mine()
"""


def test_partitioner_factory_that_returns_something_else(build: Build) -> None:
    manifest, source = custom("def create():\n    return 7\n")
    outcome = build(manifest, partitioner=source)
    expect(outcome, 1, "methods.forward.partitioners[0]", "the partitioner of `custom` is int, not a Partitioner")


def test_an_unknown_operator_is_named(build: Build) -> None:
    entry = "{backend: vulkan, options: {operator_blocklist: [aten.add.Tensor, aten.nope.Tensor]}}"
    outcome = build(MANIFEST.replace("[xnnpack]", f"[{entry}]"))
    place = "methods.forward.partitioners[0].options.operator_blocklist[1]"
    expect(outcome, 2, place, "there is no operator `aten.nope.Tensor` in the edge dialect", "--stop-after to_edge")


def test_partitioner_that_changes_the_graph(build: Build) -> None:
    body = "next(iter(program.graph.find_nodes(op='output'))).graph.call_function(print)\n"
    body += "        return PartitionResult(program, {})"
    manifest, source = custom(PARTITIONER.replace("BODY", body))
    expect(build(manifest, partitioner=source), 1, "methods", "it may only tag nodes")


def test_partitioner_of_an_unknown_backend(build: Build) -> None:
    body = """spec = DelegationSpec('NoSuchBackend', [])
        for node in program.graph.nodes:
            if node.op == 'call_function':
                node.meta['delegation_tag'] = 'all'
        return PartitionResult(program, {'all': spec})"""
    manifest, source = custom(PARTITIONER.replace("BODY", body))
    expect(build(manifest, partitioner=source), 1, "Backend NoSuchBackend was not found")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(MANIFEST)
    (tmp_path / "model.py").write_text(MODEL.replace("(8, 4)", "(8, 40000)"))
    script = (
        "import resource, sys; from etbuild.cli.main import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); sys.exit(main())"
    )
    command = [sys.executable, "-c", script, "build", str(tmp_path / "model.yaml"), "-o", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "cannot write the file: File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_output_directory_that_is_a_file(build: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    outcome = build(MANIFEST, "-o", str(tmp_path / "file"))
    expect(outcome, 1, "file: is a file, but has to be a directory")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("place", ["forward", "partition"])
def test_a_model_that_exits_is_a_failed_build(build: Build, place: str) -> None:
    manifest, source = MANIFEST, ""
    model = MODEL
    if place == "forward":
        model = MODEL.replace(
            "return self", "if torch.compiler.is_exporting(): raise SystemExit(0)\n        return self"
        )
    else:
        manifest, source = custom(PARTITIONER.replace("BODY", "raise SystemExit(0)"))
    expect(build(manifest, model=model, partitioner=source), 1, "SystemExit")


def test_undeclared_files_beside_a_package_are_not_imported(build: Build) -> None:
    model = "import importlib\nplug = importlib.import_module('pkg.' + 'plug')\n" + MODEL
    sources = {"pkg__net": model, "pkg____init__": "", "pkg__plug": "K = 1\n"}
    expect(build(MANIFEST.replace("model:create", "pkg.net:create"), **sources), 1, "No module named 'pkg.plug'")


def test_the_cause_of_a_failed_lowering_is_shown(build: Build) -> None:
    two = "torch.conv2d(x[None, None], self.kernel) + torch.conv2d(self.kernel, self.kernel)"  # in two formats
    kernel = "self.kernel = torch.nn.Parameter(torch.ones(1, 1, 2, 2))"
    model = MODEL.replace("self.linear(x).relu()", two).replace("self.linear =", f"{kernel}; self.linear =")
    outcome = build(model=model)
    expect(outcome, 1, "methods.forward", "Cause: ")


def test_a_fill_that_the_type_cannot_hold(build: Build) -> None:
    expect(build(MANIFEST.replace("[2, 8]", "[2, 8], fill: 1.0e+300")), 1, "methods.forward.example_inputs[0]")


def test_inputs_larger_than_memory(build: Build) -> None:
    expect(build(MANIFEST.replace("[2, 8]", "[1000000, 1000000, 8]")), 1, "methods.forward.example_inputs[0]")


def test_a_lazy_module(build: Build) -> None:
    model = MODEL.replace("torch.nn.Linear(8, 4)", "torch.nn.LazyLinear(4)")
    expect(build(model=model), 1, "`linear.weight` has no shape yet")


def test_a_terminated_build_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(MANIFEST)
    (tmp_path / "model.py").write_text(
        MODEL.replace("return Net()", "print('here', flush=True)\n    __import__('time').sleep(60)")
    )
    command = [sys.executable, "-m", "etbuild", "build", str(tmp_path / "model.yaml"), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "here\n"
        process.terminate()
        assert process.wait(timeout=30) == 130
    assert list((tmp_path / "out").iterdir()) == []


def test_dtypes_that_an_operator_does_not_take_are_named(build: Build) -> None:
    model = MODEL.replace("self.linear(x).relu()", "x.to(torch.float8_e5m2).float()")
    outcome = build(MANIFEST.replace("[xnnpack]", "[]"), model=model)
    expect(
        outcome,
        1,
        "model.yaml:6:3: methods.forward: lowering forward failed",
        "takes no tensors of float8_e5m2",
        "ExecuTorch has no kernels for 8-bit floats",
        "the whole error: ",
    )
    whole = Path(outcome.err.rpartition("the whole error: ")[2].strip()).read_text()
    assert "Please make sure the dtypes of the Tensor inputs are the same" in whole


def test_a_buffer_of_a_module_in_a_plain_list_and_a_keyword_as_a_name(build: Build) -> None:
    hidden = "self.hidden = [torch.nn.BatchNorm1d(4)]\n        self.linear ="
    model = MODEL.replace("self.linear =", hidden).replace("self.linear(x).relu()", "self.hidden[0](self.linear(x))")
    expect(
        build(model=model), 1, "register it as a buffer. A module with buffers must be an attribute, or in a `torch.nn"
    )
    model = MODEL.replace("self.linear =", "self.register_buffer('class', torch.ones(4))\n        self.linear =")
    model = model.replace("self.linear(x).relu()", "self.linear(x) + getattr(self, 'class')")
    expect(build(model=model), 1, "is called like a keyword of Python, such as `for` or `class`: rename it")


@pytest.mark.parametrize(
    ("parameters", "message", "shown"),
    [
        ("self, *, x", "too many positional arguments", "(*, x)"),
        ("self, x, mask, scale=1", "missing a required argument: 'mask'", "(x, mask, scale=1)"),
        ("self", "too many positional arguments", "()"),
    ],
)
def test_inputs_that_do_not_fit_the_parameters(parameters: str, message: str, shown: str, build: Build) -> None:
    outcome = build(model=MODEL.replace("self, x", parameters))
    expect(
        outcome,
        2,
        f"model.yaml:7:5: methods.forward.example_inputs: the inputs do not fit the method: {message}",
        f"its parameters are {shown}; `example_inputs` gives them in order, `example_kwargs` by name",
    )


def test_an_operator_outside_core_aten_is_named(build: Build) -> None:
    outcome = build(model=MODEL.replace("self.linear(x).relu()", "torch.linalg.eigh(x @ x.T)[0]"))
    expect(outcome, 1, "_linalg_eigh.default is not in Core ATen opset\n", "PyTorch cannot decompose this operator")


def test_a_result_that_no_program_can_hold(build: Build) -> None:
    outcome = build(model=MODEL.replace("self.linear(x).relu()", "x, 'hello'"))
    message = "the method returns 'hello': a program cannot return a str"
    expect(outcome, 1, f"model.yaml:6:3: methods.forward: {message}", "return tensors, numbers")


@pytest.mark.parametrize("made", ["torch.jit.script(Net())", "torch.jit.trace(Net(), torch.ones(2, 8))"])
def test_a_module_of_torchscript(build: Build, made: str) -> None:
    outcome = build(model=MODEL.replace("return Net()", f"return {made}"))
    expect(outcome, 1, "model.yaml:4:12: model.factory: `model:create` returned a module of TorchScript")
    outcome = build(model=MODEL.replace("return Net()", f"net = Net()\n    net.linear = {made}\n    return net"))
    expect(outcome, 1, "`model:create` returned a module with `linear` in TorchScript")
