"""After an edit, exactly the actions that depend on it run again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.workspaces import WORKERS, Workspace

BUILD = """\
load("//rules:defs.bzl", "executorch_lock", "executorch_program")

executorch_program(
    name = "net",
    srcs = ["model.py", "unused.py"],
    manifest = "net.yaml",
    named_data = ["up"],
    plugins = [],
    sharded_named_data = ["down"],
    tokenizer = ["tokenizer.json"],
    weights = ["net.safetensors"],
)

executorch_program(
    name = "adapted",
    srcs = ["model.py"],
    adapters_as = {"adapter_model.safetensors": "lora/math/adapter_model.safetensors"},
    data_as = {"adapter_config.json": "lora/math/adapter_config.json"},
    manifest = "adapted.yaml",
    methods = ["forward", "forward_math"],
    named_data = ["math"],
    plugins = ["lora"],
    weights = ["net.safetensors"],
)

executorch_lock(
    name = "update",
    lock = "net.lock.json",
    program = ":net",
)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", weights: net.safetensors}
defaults: {partitioners: [xnnpack]}
methods:
  forward: {example_inputs: [{shape: [1, 8]}]}
named_data:
  up: {parameters: ["up.*"]}
  down: {parameters: ["down.*"], shard_size: 64}
tokenizer: tokenizer.json
"""
ADAPTED = """\
schema: executorch-model/v1
name: adapted
model:
  factory: "model:create"
  weights: net.safetensors
  adapters: {math: lora/math}
defaults: {partitioners: [xnnpack]}
methods:
  forward: {example_inputs: [{shape: [1, 8]}]}
  forward_math: {entry: forward, adapter: math, example_inputs: [{shape: [1, 8]}]}
"""
MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.down(self.up(x).relu())

def create():
    return Net()
"""
PLAN, EXPORT, LOWER, COMPARE, REPORT = (
    f"Executorch{step}" for step in ("Plan", "Export", "Lower", "Compare", "Report")
)


def write_weights(path: Path, value: float) -> None:
    shapes = {"up.weight": (16, 8), "up.bias": (16,), "down.weight": (4, 16), "down.bias": (4,)}
    made = {name: torch.full(shape, number + value) for number, (name, shape) in enumerate(shapes.items(), start=1)}
    save_file(made, path)


def write_adapter(path: Path, value: float) -> None:
    """Writes the weights of an adapter of the layer `up`."""
    shapes = {"A": (2, 8), "B": (16, 2)}
    save_file({f"base_model.model.up.lora_{name}.weight": torch.full(shapes[name], value) for name in shapes}, path)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for a disk cache, which restores results when an edit is undone, and for workers.

    Workers run the same actions faster than sandboxes; test_worker.py compares their results.
    """
    return [f"--disk_cache={tmp_path_factory.mktemp('edits')}", *WORKERS]


@pytest.fixture(scope="module")
def net(checkout: Workspace, options: list[str]) -> Iterator[Workspace]:
    """A package `edits` with one program that is already built."""
    directory = checkout.directory / "edits"
    for name, text in {
        "BUILD": BUILD,
        "net.yaml": MANIFEST,
        "model.py": MODEL,
        "unused.py": "",
        "tokenizer.json": "{}",
    }.items():
        checkout.write(f"edits/{name}", text)
    write_weights(directory / "net.safetensors", 0.0)
    first = checkout.build("//edits:net", *options)
    assert first.mnemonics == [PLAN, EXPORT, LOWER, LOWER, COMPARE, REPORT]
    yield checkout
    for path in directory.iterdir():
        path.unlink()


def after(net: Workspace, options: list[str], path: str, old: str, new: str) -> list[str]:
    """Makes an edit, builds, and undoes the edit. Returns the actions that ran."""
    net.edit(f"edits/{path}", old, new)
    try:
        return net.build("//edits:net", *options).mnemonics
    finally:
        net.edit(f"edits/{path}", new, old)
        assert net.build("//edits:net", *options).mnemonics == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "old", "new", "run"),
    [
        pytest.param("net.yaml", "name: net", "name: net  # a remark", [PLAN], id="comment"),
        pytest.param(
            "net.yaml", "methods:", "checks: {max_program_bytes: 90000}\nmethods:", [PLAN, REPORT], id="check"
        ),
        pytest.param(
            "net.yaml",
            "methods:",
            "checks: {compare: {work: 0}}\nmethods:",
            [PLAN, COMPARE, REPORT],
            id="comparison",
        ),
        pytest.param("net.yaml", "methods:", "report: {blobs: false}\nmethods:", [PLAN, REPORT], id="report option"),
        pytest.param("net.yaml", "[xnnpack]", "[portable]", [PLAN, LOWER, LOWER, COMPARE, REPORT], id="partitioner"),
        pytest.param("net.yaml", "[1, 8]", "[2, 8]", [PLAN, EXPORT, LOWER, LOWER, COMPARE, REPORT], id="example input"),
        pytest.param(
            "model.py", "import torch", "# A remark.\nimport torch", [EXPORT, COMPARE, REPORT], id="source comment"
        ),
        pytest.param("model.py", ".relu()", ".sigmoid()", [EXPORT, LOWER, LOWER, COMPARE, REPORT], id="source"),
        pytest.param("tokenizer.json", "{}", "{ }", [REPORT], id="tokenizer"),
    ],
)
def test_an_edit_runs_what_it_reaches(
    net: Workspace, options: list[str], path: str, old: str, new: str, run: list[str]
) -> None:
    assert after(net, options, path, old, new) == run


def test_a_flag_keeps_the_lines_out_of_keys(net: Workspace) -> None:
    """Without it they are inputs, but `test_an_edit_runs_what_it_reaches` finds no action that runs because of them."""

    def inputs(*flags: str) -> set[str]:
        action = f"mnemonic('{EXPORT}|{LOWER}|{REPORT}', //edits:net)"
        # In another mode, which was not built: Bazel shows no unused inputs of an action that has run.
        done = net.bazel("aquery", net.override, "--compilation_mode=opt", *flags, action)
        assert done.returncode == 0, done.stderr
        return {path for line in re.findall("Inputs: .*", done.stdout) for path in re.findall(r"net\.[\w.]+", line)}

    lines = {"net.positions.json", "net.export.lines.json"}
    assert inputs() - inputs("--//toolchain:lines=false") == lines


def test_a_plugin_that_a_program_does_not_use_is_no_input(net: Workspace, options: list[str]) -> None:
    file = "toolchain/etplugins/lora/changes.py"
    text = (net.directory / file).read_text("utf-8")
    net.write(file, f"{text}\n# An edit.\n")
    try:
        done = net.build("//edits:net", *options)
    finally:
        net.write(file, text)
    assert (done.mnemonics, done.hits) == ([], [])
    net.write("edits/adapted.yaml", ADAPTED)  # its later actions have what planning hands on
    for name, used in (("net", set()), ("adapted", {"lora"})):
        for steps, expected in (("Plan", used), ("Export|Lower|Compare|Report", set())):
            shown = net.bazel("aquery", net.override, f"mnemonic('Executorch({steps})', //edits:{name})")
            assert shown.returncode == 0, shown.stderr
            actions = re.findall("Inputs: .*", shown.stdout)
            assert [set(re.findall(r"sources_plugins/(\w+)", line)) for line in actions] == [expected] * len(actions)
            handed = [re.findall(rf"edits/{name}\.(\w+)\.plugins", line) for line in actions]
            assert steps == "Plan" or {*map(tuple, handed)} == {("export",), ("lower",)}


def test_a_source_that_nothing_imports_lowers_nothing(net: Workspace, options: list[str]) -> None:
    net.write("edits/unused.py", "x = 1\n")
    try:
        assert net.build("//edits:net", *options).mnemonics == [EXPORT]
    finally:
        net.write("edits/unused.py", "")


def test_new_weights_lower_no_method(net: Workspace, options: list[str]) -> None:
    weights = net.directory / "edits/adapter_model.safetensors"
    net.write("edits/adapted.yaml", ADAPTED)
    net.write("edits/adapter_config.json", json.dumps({"peft_type": "LORA", "r": 2, "target_modules": ["up"]}))
    write_adapter(weights, 0.5)
    first = net.build("//edits:adapted", *options)
    assert first.mnemonics == [PLAN, EXPORT, LOWER, LOWER, LOWER, COMPARE, REPORT]
    before = [net.output(f"edits/adapted{suffix}").read_bytes() for suffix in (".pte", ".math.ptd")]
    write_adapter(weights, 0.25)
    assert net.build("//edits:adapted", *options).mnemonics == [LOWER, COMPARE, REPORT]
    after = [net.output(f"edits/adapted{suffix}").read_bytes() for suffix in (".pte", ".math.ptd")]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]
    write_weights(net.directory / "edits/net.safetensors", 0.5)
    try:  # the methods were lowered without weights; only the action that writes the program reads them
        assert net.build("//edits:adapted", *options).mnemonics == [LOWER, COMPARE, REPORT]
        assert net.output("edits/adapted.pte").read_bytes() != before[0]
    finally:
        write_weights(net.directory / "edits/net.safetensors", 0.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lora/maths", "names `lora/math/adapter_model.safetensors`, and the target lists `lora/maths/adapter_model.s"),
        ("lora/../math", "write a relative path without `..`"),
    ],
)
def test_an_adapter_under_another_name_is_an_error(net: Workspace, options: list[str], name: str, message: str) -> None:
    net.write("edits/adapted.yaml", ADAPTED)
    net.write("edits/adapter_config.json", "{}")
    net.write("edits/adapter_model.safetensors", "")
    net.edit("edits/BUILD", '"lora/math/adapter_model', f'"{name}/adapter_model')
    try:
        said = net.build("//edits:adapted", *options, expect=1)
    finally:
        net.edit("edits/BUILD", f'"{name}/adapter_model', '"lora/math/adapter_model')
    assert message in said.err
    assert EXPORT not in said.mnemonics


def test_changed_weights_export_nothing_again(net: Workspace, options: list[str]) -> None:
    weights = net.directory / "edits/net.safetensors"
    before = {path.name for path in net.output("edits/net.down").iterdir()}
    write_weights(weights, 0.5)
    try:
        assert net.build("//edits:net", *options).mnemonics == [LOWER, COMPARE, REPORT]
        assert len(before) == 2
        assert not before & {path.name for path in net.output("edits/net.down").iterdir()}
    finally:
        write_weights(weights, 0.0)


def test_the_tokenizer_is_an_output_that_the_index_lists(net: Workspace) -> None:
    index = json.loads(net.output("edits/net.index.json").read_text())
    [artifact] = [entry for entry in index["artifacts"] if entry["kind"] == "tokenizer"]
    assert net.output(f"edits/{artifact['file']}").read_text() == "{}"


def test_a_target_without_the_tokenizer_of_its_manifest_is_an_error(net: Workspace, options: list[str]) -> None:
    net.edit("edits/BUILD", '["tokenizer.json"]', "[]")
    try:
        said = net.build("//edits:net", *options, expect=1).err
    finally:
        net.edit("edits/BUILD", "tokenizer = []", 'tokenizer = ["tokenizer.json"]')
    assert 'write `tokenizer = ["tokenizer.json"]` into the BUILD file' in said


def test_a_broken_check_fails_the_target(net: Workspace, options: list[str]) -> None:
    net.edit("edits/net.yaml", "methods:", "checks: {max_program_bytes: 9}\nmethods:")
    try:
        said = [net.build("//edits:net", *options, expect=1).err]
        # Later Bazels run the checks even if only the program is built; Bazel 4 needs an option for that.
        only_program = ("--output_groups=pte", "--experimental_run_validations")
        said.append(net.build("//edits:net", *options, *only_program, expect=1).err)
    finally:
        net.edit("edits/net.yaml", "checks: {max_program_bytes: 9}\nmethods:", "methods:")
    for message in said:
        assert "edits/net.yaml:5:29: checks.max_program_bytes: the program has" in message


def test_a_lockfile_is_written_checked_and_says_what_changed(net: Workspace, options: list[str]) -> None:
    lock = net.directory / "edits/net.lock.json"
    test = ("//edits:update_test", *options, "--test_output=errors")
    assert "bazel run //edits:update" in net.run("test", *test, expect=3).out
    net.run("run", "//edits:update", *options)
    net.run("test", *test)
    net.edit("edits/net.yaml", "[1, 8]", "[2, 8]")
    try:
        said = net.run("test", *test, expect=3).out
        assert "net.pte: " in said
        assert "if this is intended: bazel run //edits:update" in said
    finally:
        net.edit("edits/net.yaml", "[2, 8]", "[1, 8]")
        lock.unlink()


def test_a_program_that_is_not_reproducible_is_detected(net: Workspace, options: list[str]) -> None:
    verified = BUILD.replace(
        "    weights", '    methods = ["again", "forward"],\n    verify_reproducible = True,\n    weights', 1
    )
    net.write("edits/BUILD", verified)
    net.edit("edits/net.yaml", "methods:\n", "methods:\n  again: {entry: forward, example_inputs: [{shape: [2, 8]}]}\n")
    named = "return type(f'Net{__import__(\"time\").time_ns()}', (Net,), {})()"
    surroundings = (
        "import os\n        x = x * len(os.environ['PATH'] + os.environ.get('TZ', ''))\n        return self.down"
    )
    try:
        ran = net.build("//edits:net", *options).mnemonics
        assert sorted(ran) == sorted([PLAN, EXPORT, LOWER, LOWER, LOWER, COMPARE, "ExecutorchVerify", REPORT])
        net.edit("edits/model.py", "return Net()", named)
        message = net.build("//edits:net", *options, expect=1).err
        assert "a second build differs in `net.export.again.pt2`: archive/models/model.json" in message
        net.write("edits/model.py", MODEL.replace("return self.down", surroundings))
        assert "a second build differs in `net" in net.build("//edits:net", *options, expect=1).err
    finally:
        net.write("edits/BUILD", BUILD)
        net.write("edits/net.yaml", MANIFEST)
        net.write("edits/model.py", MODEL)
