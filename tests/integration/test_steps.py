"""The steps one by one, as build rules run them: what each depends on, and that the results equal those of `build`."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime
from safetensors.torch import save_file

from etbuild import plugins
from etbuild.cli import main
from etbuild.export.layout import EXAMPLES
from etbuild.key import code
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import read_plan
from tests.helpers.drivers import TOOLCHAIN, driver_of_action
from tests.helpers.manifests import net
from tests.helpers.worker_client import Worker
from tests.helpers.workspaces import REPOSITORY

from .conftest import MANIFEST, MODEL, Build

WITH_WEIGHTS = MANIFEST.replace('factory: "model:create"', 'factory: "model:create"\n  weights: w.safetensors')


QUANTIZED = MANIFEST + "  quantize: {pt2e: {quantizers: [xnnpack], calibration: example_inputs}}\n"
BRANCHES = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.listed = [torch.nn.Sigmoid()]  # TorchDynamo knows it only by its address

    def forward(self, x):
        y = torch.sin(self.linear(x))
        return torch.cond(y.sum() > 0, lambda y: y.relu(), lambda y: y.tanh(), (y,))

    def act(self, x):
        return self.listed[0](self(x))

def create():
    return Net()
"""
KINDS = {
    "plain": MANIFEST,
    "quantized": QUANTIZED,
    "strict": MANIFEST + "  strict: true\n",
    "strict, another method": MANIFEST.replace("example_inputs", "entry: act\n    example_inputs") + "  strict: true\n",
    "quantized strictly": QUANTIZED + "  strict: true\n",
}


class Project:
    """A directory with a manifest, a model and weights, for running the steps."""

    def __init__(self, root: Path, manifest: str = MANIFEST, model: str = MODEL) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "model.yaml").write_text(textwrap.dedent(manifest), "utf-8")
        (root / "model.py").write_text(textwrap.dedent(model), "utf-8")
        self.data: dict[str, Path] = {}

    def weights(self, name: str, content: dict[str, torch.Tensor]) -> None:
        self.data[name] = self.root / name
        save_file(content, self.data[name])

    def run(self, verb: str, *arguments: object) -> None:
        assert main.main([verb, *map(str, arguments)]) == 0

    def plan(self) -> None:
        parts = ("plan", "export-plan", "lower-plan", "compare-plan", "positions")
        plans = [f"--{part}={self.root / part}.json" for part in parts]
        self.run("plan", self.root / "model.yaml", *plans)

    def export(self) -> dict[str, str]:
        """Exports, and returns the digest of each file of the export."""
        self.plan()
        source = f"--source=model.py={self.root / 'model.py'}"
        inputs = f"--inputs={self.root / 'export_inputs.json'}"
        lines = f"--lines={self.root / 'export.lines.json'}"
        self.run("export", self.root / "export-plan.json", source, inputs, lines, "-o", self.root / "export")
        files = [path for path in sorted((self.root / "export").rglob("*")) if path.is_file()]
        return {
            path.relative_to(self.root / "export").as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }

    def finish(self) -> dict[str, bytes]:
        """Lowers and reports, and returns the artifacts."""
        out, data = self.root / "out", [f"--data={name}={path}" for name, path in self.data.items()]
        export = f"--export={self.root / 'export'}"
        lines = f"--lines={self.root / 'export.lines.json'}"
        self.run("lower", self.root / "lower-plan.json", export, lines, *data, "-o", out)
        read = (f"--inputs={self.root / 'export_inputs.json'}", f"--lowering={out / 'net.lowering.json'}")
        self.run("report", self.root / "plan.json", *read, lines, "-o", out)
        return {path.name: path.read_bytes() for path in out.iterdir() if path.name != "net.lowering.json"}

    def built(self) -> dict[str, bytes]:
        """Returns the artifacts of `etbuild build` for the same inputs."""
        data = [f"--data={name}={path}" for name, path in self.data.items()]
        self.run("build", self.root / "model.yaml", "--no-cache", *data, "-o", self.root / "built")
        return {path.name: path.read_bytes() for path in (self.root / "built").iterdir()}


def exports_of_kinds(root: Path) -> dict[str, dict[str, str]]:
    """The digests of an export of each kind."""
    return {name: Project(root / name, manifest, BRANCHES).export() for name, manifest in KINDS.items()}


def linear(value: float) -> dict[str, torch.Tensor]:
    return {"linear.weight": torch.full((4, 8), value), "linear.bias": torch.full((4,), -value)}


def test_steps_one_by_one_make_what_build_makes(tmp_path: Path) -> None:
    project = Project(tmp_path / "one", WITH_WEIGHTS)
    project.weights("w.safetensors", linear(0.5))
    project.export()
    made = project.finish()
    assert sorted(made) == ["net.index.json", "net.pte", "net.report.json"]
    assert made == project.built()


def test_an_export_depends_only_on_graphs(tmp_path: Path) -> None:
    first = Project(tmp_path / "one", WITH_WEIGHTS).export()
    assert sorted(first) == ["examples.safetensors", "methods/forward.pt2", "module.json"]
    elsewhere = Project(tmp_path / "two" / "elsewhere", WITH_WEIGHTS, "# A remark.\n\n" + MODEL)
    assert elsewhere.export() == first
    edited = Project(tmp_path / "three", WITH_WEIGHTS, MODEL.replace(".relu()", ".sigmoid()"))
    assert edited.export()["methods/forward.pt2"] != first["methods/forward.pt2"]


def test_an_export_holds_no_address_of_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch keeps the addresses of graphs in the provenance of nodes. Here all graphs have the same one."""
    first = Project(tmp_path / "one", QUANTIZED).export()
    monkeypatch.setattr(torch.fx.traceback, "id", lambda graph: 7, raising=False)
    assert Project(tmp_path / "two", QUANTIZED).export() == first


def test_another_process_makes_the_same_exports(tmp_path: Path) -> None:
    """The texts of functions hold addresses, and so may sets of objects have another order."""
    elsewhere = (
        "import json, pathlib, sys; from tests.integration.test_steps import exports_of_kinds; "
        "print(json.dumps(exports_of_kinds(pathlib.Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", elsewhere, str(tmp_path / "elsewhere")]
    environment = {**os.environ, "PYTHONHASHSEED": "31337"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == exports_of_kinds(tmp_path / "here")


def test_options_of_lowering_and_checks_do_not_reach_the_export_plan(tmp_path: Path) -> None:
    Project(tmp_path / "one").plan()
    edits = {
        "partitioners: [xnnpack]": "partitioners: []",
        "name: net": 'name: net\nnamed_data: {w: {parameters: ["*"]}}\nconstant_methods: {n: 1}',
        "schema": "checks: {max_program_bytes: 1}\nreport: {blobs: false}\nschema",
    }
    for number, (old, new) in enumerate(edits.items()):
        project = Project(tmp_path / str(number), MANIFEST.replace(old, new, 1))
        project.plan()
        for part, same in (("export-plan.json", True), ("lower-plan.json", number == 2), ("plan.json", False)):
            equal = (project.root / part).read_bytes() == (tmp_path / "one" / part).read_bytes()
            assert equal is same, (old, part)


SORTS = MODEL.replace("self.linear(x).relu()", "self.linear(x).sort()[0]")
FAILS = MODEL.replace("self.linear(x).relu()", "torch.linalg.eigh(self.linear(x) @ x.T[:4])[0]")


def test_the_lines_of_an_export_are_named_by_later_steps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project = Project(tmp_path / "one", MANIFEST, SORTS)
    project.export()
    lines = tmp_path / "one" / "export.lines.json"
    said = {}
    for kept in (lines.read_bytes(), lines.read_bytes()[:50], None):
        lines.write_bytes(kept) if kept is not None else lines.unlink()
        capfd.readouterr()
        said[kept] = project.finish(), capfd.readouterr().err
        shutil.rmtree(tmp_path / "one" / "out")
    whole, damaged, missing = said.values()
    assert "\n    at model.py:9, in forward: `return self.linear(x).sort()[0]`\n" in whole[1]
    assert "no kernel for `aten::sort.values`" in missing[1]
    assert "model.py" not in missing[1]
    assert damaged == missing
    assert whole[0] == missing[0], "a line reached an artifact"


@pytest.mark.parametrize("declared", [False, True])
def test_an_error_of_the_lower_step_names_only_lines_of_files_that_it_was_given(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], declared: bool
) -> None:
    project = Project(tmp_path, MANIFEST, FAILS)
    project.export()
    words = ["lower", str(tmp_path / "lower-plan.json"), f"--export={tmp_path / 'export'}", "-o", str(tmp_path / "out")]
    files = [f"--positions={tmp_path / 'positions.json'}", f"--lines={tmp_path / 'export.lines.json'}"]
    for beside in ("lower-plan.positions.json", "lower.positions.json"):  # of an earlier version
        shutil.copy(tmp_path / "positions.json", tmp_path / beside)
    assert main.main([*words, *(files if declared else [])]) == 1
    message = capfd.readouterr().err
    line = "at model.py:9, in forward: `return torch.linalg.eigh(self.linear(x) @ x.T[:4])[0]`"
    assert (line in message) == declared
    assert ("model.yaml:" in message) == declared


def test_a_step_lists_what_only_messages_need(tmp_path: Path) -> None:
    project = Project(tmp_path, MANIFEST, MODEL)
    project.export()
    unused, (positions, lines) = tmp_path / "unused", (tmp_path / "positions.json", tmp_path / "export.lines.json")
    options = [f"--positions={positions}", f"--lines={lines}", f"--unused-inputs={unused}", "-o", tmp_path / "out"]
    project.run("lower", tmp_path / "lower-plan.json", f"--export={tmp_path / 'export'}", *options)
    assert unused.read_text() == f"{positions}\n{lines}\n"


def test_weights_without_a_file_are_in_the_export(tmp_path: Path) -> None:
    project = Project(tmp_path / "one")
    assert sorted(project.export()) == [
        "examples.safetensors",
        "made.safetensors",
        "methods/forward.pt2",
        "module.json",
    ]
    assert project.finish() == project.built()


ODD_MEMORY = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        numbers = torch.arange(1, 40, dtype=torch.float32)
        self.second = torch.nn.Parameter(numbers[1:3])  # not at a multiple of eight bytes
        self.same = torch.nn.Parameter(numbers[1:3])
        self.turned = torch.nn.Parameter(numbers[:6].clone().view(2, 3).t())
        self.odd = torch.nn.Parameter(torch.tensor([1.0, float("nan"), -0.0]))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("one", torch.tensor(7.0))

    def forward(self, x):
        x = x + self.turned[0, 1] - self.turned[1, 0]
        return x + self.second.sum() + self.same.sum() + self.odd[0] + self.flags.sum() + self.one + self.nothing.sum()

def create():
    return Net()
"""


def test_tensors_of_a_factory_are_saved_wherever_their_memory_is(build: Build) -> None:
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods: {forward: {example_inputs: [{shape: [1]}]}}
"""
    made = build(manifest, model=ODD_MEMORY)
    assert made.code == 0, made.err
    assert "exported again" not in made.err
    method = Runtime.get().load_program(made.directory / "net.pte").load_method("forward")
    assert method is not None
    assert method.execute([torch.zeros(1)])[0].tolist() == [4.0 - 2.0 + 2.0 + 3.0 + 2.0 + 3.0 + 1.0 + 2.0 + 7.0]


@pytest.mark.parametrize("shape", ["[2, 8]", "[3, 8]"])
def test_code_that_loads_weights_runs_before_the_export(tmp_path: Path, shape: str) -> None:
    """Such code may change the graph, so lowering exports the model itself. The export step only passes the sources
    on."""
    model = MODEL.replace("    def forward", "    scale = 1.0\n\n    def forward").replace(
        "x).relu", "x).mul(self.scale).relu"
    )
    hook = (
        "    def _load_from_state_dict(self, state, *rest):\n"
        "        self.scale = float(state['linear.bias'][0])\n"
        "        super()._load_from_state_dict(state, *rest)\n\n"
    )
    manifest = WITH_WEIGHTS.replace("[2, 8]", shape)
    project = Project(tmp_path / "one", manifest, model.replace("    scale", hook + "    scale"))
    project.weights("w.safetensors", linear(2.0))
    assert sorted(project.export()) == [
        "examples.safetensors",
        "export_plan.json",
        "module.json",
        "sources/model.py",
    ]
    made = project.finish()
    by_hand = Project(tmp_path / "two", manifest, model.replace("scale = 1.0", "scale = -2.0"))
    by_hand.weights("w.safetensors", linear(2.0))
    by_hand.export()
    assert made["net.pte"] == by_hand.finish()["net.pte"]
    assert made["net.pte"] == project.built()["net.pte"]


def test_a_state_dict_with_names_of_its_own(tmp_path: Path) -> None:
    renaming = (
        "        self.register_state_dict_post_hook(lambda m, state, *_: state.update(\n"
        "            {'old.' + key: state.pop(key) for key in list(state)}))\n"
        "        self.register_load_state_dict_pre_hook(lambda m, state, *_: state.update(\n"
        "            {key[4:]: state.pop(key) for key in list(state)}))\n"
    )
    linear_made = "        self.linear = torch.nn.Linear(8, 4)\n"
    project = Project(tmp_path / "one", WITH_WEIGHTS, MODEL.replace(linear_made, linear_made + renaming))
    project.weights("w.safetensors", {f"old.{name}": tensor for name, tensor in linear(0.25).items()})
    plain = Project(tmp_path / "two", WITH_WEIGHTS)
    plain.weights("w.safetensors", linear(0.25))
    for each in (project, plain):
        each.export()
    assert project.finish()["net.pte"] == plain.finish()["net.pte"]


def test_an_operator_of_the_model_is_registered_before_the_method_is_loaded(
    tmp_path: Path, etbuild_worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = """\
        import torch

        library = torch.library.Library("steps_test", "DEF")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        library.define("thrice(Tensor x) -> Tensor")
        library.define("thrice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl("thrice", lambda x: x * 3, "CompositeExplicitAutograd")
        library.impl("thrice.out", lambda x, out: out.copy_(x * 3), "CompositeExplicitAutograd")

        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.ops.steps_test.thrice(x)

        def create():
            return Net()
    """
    project = Project(tmp_path / "one", MANIFEST, model)

    def run(verb: str, *arguments: object) -> None:
        """Runs a step in a process without the operators of the previous step."""
        response = etbuild_worker.ask(verb, *arguments)
        assert response.exit_code == 0, response.output

    monkeypatch.setattr(project, "run", run)
    assert "sources/model.py" in project.export()
    assert "net.pte" in project.finish()


def test_sources_of_a_custom_partitioner_go_with_the_export(tmp_path: Path) -> None:
    partitioner = """\
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        def create():
            return XnnpackPartitioner()
    """
    manifest = MANIFEST.replace("[xnnpack]", '[{backend: custom, options: {factory: "partitioner:create"}}]')
    project = Project(tmp_path / "one", manifest)
    (project.root / "partitioner.py").write_text(textwrap.dedent(partitioner))
    project.plan()
    sources = [f"--source={name}={project.root / name}" for name in ("model.py", "partitioner.py")]
    export = project.root / "export"
    project.run(
        "export",
        project.root / "export-plan.json",
        *sources,
        f"--inputs={project.root / 'export_inputs.json'}",
        "-o",
        export,
    )
    assert [path.name for path in (export / "sources").iterdir()] == ["partitioner.py"]
    assert project.finish()["net.pte"] == project.built()["net.pte"]


def test_tensors_keep_their_identity(build: Build) -> None:
    """Tied weights stay one tensor, and two caches of zeros stay two."""
    model = """\
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(8, 8, bias=False)
                self.b = nn.Linear(8, 8, bias=False)
                self.b.weight = self.a.weight
                self.register_buffer("k", torch.zeros(2, 8), persistent=False)
                self.register_buffer("v", torch.zeros(2, 8), persistent=False)

            def forward(self, x):
                self.k.add_(self.a(x))
                self.v.sub_(self.b(x))
                return self.k + self.v

        def create():
            return Net()
    """
    made = build(MANIFEST, model=model)
    assert made.code == 0
    blobs = made.json("net.report.json")["bytes"]["named_data"]
    assert list(blobs.values()) == [8 * 8 * 4]


@pytest.mark.parametrize("tied", ["self.linear.weight", "torch.nn.Parameter(self.linear.weight.data)"])
def test_tied_weights_that_differ_in_the_file_are_refused(tied: str, build: Build) -> None:
    """They are one parameter, or two with one memory."""
    model = MODEL.replace(
        "        self.linear = torch.nn.Linear(8, 4)\n",
        "        self.linear = torch.nn.Linear(8, 4)\n        self.twin = torch.nn.Linear(8, 4)\n"
        f"        self.twin.weight = {tied}\n",
    )
    content = {**linear(1.0), "twin.weight": torch.full((4, 8), 2.0), "twin.bias": torch.zeros(4)}
    file = io.BytesIO()
    torch.save(content, file)
    made = build(WITH_WEIGHTS.replace("w.safetensors", "w.pt"), model=model, files={"w.pt": file.getvalue()})
    assert made.code == 2
    assert "are one tied parameter of the module, but they differ in `w.pt`" in made.err


def test_a_source_that_changes_while_it_is_built_is_kept_under_the_digest_of_what_was_built(tmp_path: Path) -> None:
    """Its content is in memory from the beginning."""
    edits = "with open(__file__, 'w') as file:\n        file.write('raise ValueError')\n    return Net()"
    project = Project(tmp_path / "one", MANIFEST, MODEL.replace("return Net()", edits))
    source = (project.root / "model.py").read_text()
    arguments = ["build", str(project.root / "model.yaml"), "--cache-dir", str(tmp_path / "cache")]
    assert main.main([*arguments, "-o", str(tmp_path / "first")]) == 0
    assert main.main([*arguments, "-o", str(tmp_path / "second")]) == 1
    (project.root / "model.py").write_text(source)
    assert main.main([*arguments, "-o", str(tmp_path / "third")]) == 0
    assert (tmp_path / "third/net.pte").read_bytes() == (tmp_path / "first/net.pte").read_bytes()
    assert (project.root / "model.py").read_text() == source  # it was a hit


def test_a_tokenizer_travels_with_the_program_of_a_build_rule(tmp_path: Path) -> None:
    project = Project(tmp_path / "steps", f"{MANIFEST}tokenizer: tokenizer.json\n")
    tokenizer = project.root / "tokenizer.json"
    tokenizer.write_text("{}")
    project.export()
    project.run("lower", project.root / "lower-plan.json", f"--export={project.root / 'export'}", "-o", tmp_path)
    report = ["report", str(project.root / "plan.json"), f"--inputs={project.root / 'export_inputs.json'}"]
    report += [f"--lowering={tmp_path / 'net.lowering.json'}", "-o", str(tmp_path)]
    assert main.main(report) == 2  # the rule declares no tokenizer
    project.run(*report, f"--data=tokenizer.json={tokenizer}")
    project.run("build", project.root / "model.yaml", "--no-cache", "-o", tmp_path / "built")
    for name in ("net.tokenizer/tokenizer.json", "net.index.json"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "built" / name).read_bytes()


LOGGED = """\
import os, sys

class Log:
    def __init__(self):
        self.file = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def find_spec(self, name, path=None, target=None):
        if name.startswith(("etbuild.", "etplugins.")):
            os.write(self.file, f"{name}\\n".encode())

sys.meta_path.insert(0, Log())
from etbuild import plugins
from etbuild.cli import main
sys.exit(main.main(sys.argv[1:]))
"""


class LoggedProject(Project):
    """A project whose steps run in processes that have the drivers of their actions, and that write down which modules
    they import of them."""

    def run(self, verb: str, *arguments: object) -> None:
        driver = self.root / f"{verb}.driver"
        files = [each for name in sorted(driver_of_action(verb)) for each in (name, TOOLCHAIN / name)]
        copy = [TOOLCHAIN / "copy_driver.py", "without_texts", driver, self.root / f"{verb}.together", *files]
        subprocess.run([sys.executable, *map(str, copy)], check=True)
        command = [sys.executable, "-c", LOGGED, self.root / f"{verb}.imports", verb, *arguments]
        subprocess.run([*map(str, command)], env={**os.environ, "PYTHONPATH": str(driver)}, check=True)

    def compare(self) -> None:
        """Compares what `finish` has made."""
        made = (f"--lowering={self.root / 'out/net.lowering.json'}", f"--program={self.root / 'out/net.pte'}")
        examples = f"--examples={self.root / 'export' / EXAMPLES}"
        source = f"--source=model.py={self.root / 'model.py'}"
        export = f"--export={self.root / 'export'}"
        plan, out = self.root / "compare-plan.json", self.root / "compared"
        self.run("compare", plan, export, examples, source, *made, "-o", out)

    def packages(self, verb: str) -> set[str]:
        """The packages of `etbuild` that a verb has imported, and plug-ins. A module beside the packages has none."""
        names = (self.root / f"{verb}.imports").read_text("utf-8").split()
        paths = {name: TOOLCHAIN / Path(*name.split(".")[:2]) for name in names}
        found = {".".join(name.split(".")[:2]) for name in names if paths[name].is_dir()}
        return {name.removeprefix("etbuild.") for name in found}


@pytest.mark.parametrize("quantize", ["", "  quantize: {torchao: [{config: 8da4w, group_size: 32}]}\n"])
def test_files_of_an_export_may_be_links_as_in_sandboxes_of_bazel(tmp_path: Path, quantize: str) -> None:
    """Methods are lowered in processes that may only open what their step has."""
    methods = "methods:\n  second:\n    example_inputs:\n      - {shape: [1, 32]}\n"
    manifest = MANIFEST.replace("methods:\n", methods).replace("[2, 8]", "[2, 32]") + quantize
    parts = "self.linear = torch.nn.Linear(32, 32)\nself.second = self.forward"
    project = Project(tmp_path, manifest, net(parts, forward="return self.linear(x).relu()"))
    project.export()
    (tmp_path / "elsewhere").mkdir()
    for number, path in enumerate(sorted(path for path in (tmp_path / "export").rglob("*") if path.is_file())):
        path.symlink_to(path.rename(tmp_path / f"elsewhere/{number}"))
    assert project.finish()["net.pte"]


def test_a_step_imports_what_its_key_and_its_action_have_and_no_more(tmp_path: Path) -> None:
    project = LoggedProject(tmp_path)
    project.export()
    project.finish()
    project.compare()
    around = {"cli", "processes", "publishing", "key", "guard", "version"}
    around |= {"etplugins.guard", "manifest"}  # the types of its data
    plan = read_plan(tmp_path / "plan.json", Plan)
    for step in ("plan", "export", "lower", "report", "compare"):
        rows = {package for package, steps in code.packages().items() if step in steps}
        of_sections = {plugin.package for plugin in plugins.group("manifest_section").values()}
        used = of_sections if step == "plan" else plan.plugins_of(step)  # a plan is in keys as it is
        rows |= {plugin.package for plugin in plugins.with_used(used)}
        assert project.packages(step) - rows - around == set(), step
