"""Methods that are lowered one by one and merged have the bytes of a joint lowering. Each method is cached by
itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache
from tests.helpers import manifests
from tests.helpers.manifests import net
from tests.helpers.reasons import comparable_file
from tests.helpers.worker_client import Worker

from .conftest import Build

HEAD = f"{manifests.HEAD}defaults: {{partitioners: [xnnpack]}}\n"
TWO = """\
methods:
  embed: {example_inputs: [{shape: [2, 8]}]}
  score: {example_inputs: [{shape: [2, 8]}]}
"""
# Many layers: from ten on, names and numbers are sorted differently.
DEEP = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linears = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(11))
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("seen", torch.ones(1))

    def embed(self, x):
        for linear in self.linears:
            x = self.norm(linear(x)).cumsum(-1)
        return x

    def score(self, x):
        self.seen += 1
        return self.embed(x)[:, 1:].softmax(-1) * self.seen

    def pick(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

def create():
    return Net().eval()
"""
SHALLOW = DEEP.replace("range(11)", "range(2)")
CONVOLUTION = net(
    "torch.manual_seed(5)",
    "self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())",
    "self.head = torch.nn.Linear(4, 2)",
    create="return Net().eval()",
    embed="return self.body(x[None, None]).mean((2, 3))",
    score="return self.head(self.embed(x))",
)
IMAGES = TWO.replace("[2, 8]", "[8, 8]")
DYNAMIC = """\
methods:
  embed: {example_inputs: [{shape: [2, 8]}], dynamic_shapes: [[{dim: rows, min: 2, max: 9}, null]]}
  score: {example_inputs: [{shape: [2, 8]}]}
"""
DIFFERENT = """\
methods:
  embed: {example_inputs: [{shape: [2, 8]}], partitioners: []}
  score: {example_inputs: [{shape: [2, 8]}], partitioners: [{backend: xnnpack, options: {per_op_mode: true}}]}
constant_methods: {width: 8}
"""
CONTROL_FLOW = TWO.replace("score: {", "score: {partitioners: [], ") + (
    "  pick: {example_inputs: [{shape: [3]}], partitioners: []}\n"
)
# States that several methods write to, some with initial values; and a method that only reads views of them.
STATES = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.register_buffer("cache", torch.zeros(4, 2, 8))
        self.register_buffer("empty", torch.zeros(0, 8))
        self.register_buffer("scale", torch.arange(3.0))
        self.register_buffer("table", torch.rand(2, 8))
        self.register_buffer("count", torch.ones(1))

    def embed(self, x):
        self.cache[1:2] = x * self.table
        return x + self.scale.sum()

    def look(self, x):
        return self.cache.view(8, 8)[:2] + self.count * x + self.table

    def score(self, x):
        self.count += 1
        self.empty.mul_(2)
        self.cache.view(8, 8)[2:4].copy_(x)
        return self.cache.sum((0, 1)) + x * self.count + self.table + self.empty.sum()

def create():
    return Net().eval()
"""
SHARED = TWO + "  look: {example_inputs: [{shape: [2, 8]}]}\nshare_mutable_buffers: true\n"
# Writes that operators' schemas do not show, or that only seem to be some.
HIDDEN = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("cast", torch.arange(8.0))
        self.register_buffer("view", torch.arange(8.0))
        self.register_buffer("copied", torch.arange(8.0, dtype=torch.float64))

    def embed(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = self.cast.add_(1)
        torch.atleast_2d(self.view).add_(x[:1])
        copy = self.copied.to(torch.float32)
        copy.mul_(2)
        return x + copy + cast

    def score(self, x):
        self.empty.mul_(2)
        return x + self.cast + self.view + self.copied.to(torch.float32) + self.empty.sum()

def create():
    return Net().eval()
"""
NAMES = net(
    'self.register_buffer("constant", torch.arange(8.0))',
    'self.register_buffer("first", torch.ones(8))',
    'self.register_buffer("second", torch.ones(8))',
    create="return Net().eval()",
    embed="self.first += 1\nreturn x + self.first + self.constant",
    score="self.second += 1\nreturn x + self.second",
)
NAMED = TWO + "executorch: {emit_mutable_buffer_names: true}\n"
TAGS = "named_data: {low: {parameters: ['linears.0.*']}, high: {parameters: ['linears.1.*'], shard_size: 600}}\n"


def artifacts(build: Build, manifest: str, model: str, *options: str) -> dict[str, bytes]:
    made = build(manifest, *options, model=model)
    assert made.code == 0, made.err
    return {
        path.relative_to(made.directory).as_posix(): comparable_file(path)
        for path in made.directory.rglob("*.*")
        if path.is_file()
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "methods"),
    [
        pytest.param(DEEP, TWO, id="deep"),
        pytest.param(SHALLOW, TWO + TAGS, id="tags"),
        pytest.param(SHALLOW, DYNAMIC, id="dynamic"),
        pytest.param(SHALLOW, DIFFERENT, id="different"),
        pytest.param(SHALLOW, CONTROL_FLOW, id="control flow"),
        pytest.param(STATES, SHARED, id="shared"),
        pytest.param(STATES, SHARED.replace("share_mutable_buffers: true", ""), id="states"),
        pytest.param(HIDDEN, TWO + "share_mutable_buffers: true\n", id="hidden"),
        pytest.param(NAMES.replace("torch.ones(8)", "torch.zeros(8)"), NAMED, id="names"),
        pytest.param(CONVOLUTION, IMAGES, id="convolution"),
        pytest.param(CONVOLUTION, IMAGES + "named_data: {all: {parameters: ['*']}}\n", id="folded"),
    ],
)
def test_the_bytes_are_those_of_a_joint_lowering(model: str, methods: str, build: Build) -> None:
    together = artifacts(build, HEAD + methods, model, "--no-accelerate")
    assert artifacts(build, HEAD + methods, model, "--jobs", "2") == together


def test_a_buffer_that_executorch_confuses_with_a_constant_is_refused(build: Build) -> None:
    """`embed` does not use `second`, which is a constant there."""
    made = build(HEAD.replace("[xnnpack]", "[]") + NAMED, model=NAMES)
    assert made.code == 1
    assert "executorch.emit_mutable_buffer_names: the buffer `second` has the initial values of a constant" in made.err


@pytest.mark.parametrize(
    "change", ["program.state_dict[name].data.mul_(2)", "program.state_dict[name] = torch.nn.Parameter(weight * 2)"]
)
def test_a_weight_that_a_pass_changes_stays_changed(change: str, build: Build, tmp_path: Path) -> None:
    passes = f"""
def change(manager):
    program = manager.exported_program("embed")
    for name, weight in list(program.state_dict.items()):
        {change}
    return []
"""
    manifest = HEAD.replace("[xnnpack]", "[]") + TWO[: TWO.index("  score")]
    manifest += "passes: {edge_manager: ['model:change']}\nchecks: {compare: {leave_out: a pass changes the weights}}\n"
    together = artifacts(build, manifest, SHALLOW + passes, "--no-accelerate")
    assert artifacts(build, manifest, SHALLOW + passes, "--cache-dir", str(tmp_path / "cache")) == together


def test_what_looks_at_several_methods_is_lowered_together(build: Build) -> None:
    """The reason is known before a method is lowered, so no method is lowered twice."""
    passes = "def none():\n    return []\n"
    made = build(HEAD + TWO + "passes: {executorch: ['model:none']}\n", "--jobs", "2", "--json", model=SHALLOW + passes)
    assert made.code == 0, made.err
    assert json.loads(made.out)["methods"] == {}


def test_an_error_names_its_method(build: Build) -> None:
    made = build(
        HEAD + TWO,
        "--jobs",
        "2",
        model=SHALLOW.replace("return self.embed(x)[:, 1:]", "self.norm.bias.add_(1); return self.embed(x)"),
    )
    assert made.code == 1
    assert "methods.score" in made.err
    assert made.files == []


class Cached:
    """A project with two methods, and a cache."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.root, self.capfd = root, capfd
        (root / "model.py").write_text(SHALLOW)
        (root / "model.yaml").write_text(HEAD + TWO)

    def build(self) -> dict[str, str]:
        """Builds, and returns for each method whether it was lowered or cached."""
        self.capfd.readouterr()
        where = ["--cache-dir", str(self.root / "cache"), "-o", str(self.root / "out"), "--json"]
        assert main.main(["build", str(self.root / "model.yaml"), *where]) == 0
        return dict(json.loads(self.capfd.readouterr().out)["methods"])

    def check(self) -> None:
        """Compares the program with that of a clean joint build."""
        where = ["--no-cache", "--no-accelerate", "-o", str(self.root / "clean")]
        assert main.main(["build", str(self.root / "model.yaml"), *where]) == 0
        for path in (self.root / "clean").iterdir():
            assert comparable_file(path) == comparable_file(self.root / "out" / path.name), path.name


@pytest.fixture
def cached(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cached:
    return Cached(tmp_path, capfd)


OTHER_PARTITIONER = DIFFERENT.replace("partitioners: []", "partitioners: [xnnpack]")


@pytest.mark.parametrize(
    ("name", "text"),
    [("model.py", SHALLOW.replace(".softmax(-1)", ".exp()")), ("model.yaml", HEAD + OTHER_PARTITIONER)],
    ids=["source", "partitioner"],
)
def test_an_edit_to_one_method_lowers_one(cached: Cached, name: str, text: str) -> None:
    assert cached.build() == {"embed": "run", "score": "run"}
    (cached.root / name).write_text(text)
    assert cached.build() == {"embed": "cached", "score": "run"}
    cached.check()


@pytest.mark.parametrize("methods", [TWO, TWO[: TWO.index("  score")]], ids=["two", "one"])
def test_what_only_the_file_depends_on_lowers_nothing(cached: Cached, methods: str) -> None:
    (cached.root / "model.yaml").write_text(HEAD + methods)
    assert set(cached.build().values()) == {"run"}
    file = "constant_methods: {width: 8, steps: [1, 2]}\nexecutorch: {segment_alignment: 64}\n"
    (cached.root / "model.yaml").write_text(HEAD + methods + file)
    assert set(cached.build().values()) == {"cached"}
    cached.check()


def test_a_constant_that_code_computes_lowers_nothing(cached: Cached) -> None:
    (cached.root / "model.yaml").write_text(HEAD + TWO + 'constant_methods: {width: {factory: "model:width"}}\n')
    for value, how in (("8", "run"), ("[1, 2]", "cached"), ("torch.ones(2)", "cached")):
        (cached.root / "model.py").write_text(f"{SHALLOW}\ndef width():\n    return {value}\n")
        assert set(cached.build().values()) == {how}
    cached.check()


def test_a_damaged_method_is_lowered_again(cached: Cached) -> None:
    cached.build()
    cache = Cache(cached.root / "cache")
    assert (
        cache_upkeep.info(cache).records["method"] == 3
    )  # `score` also with the content of weights: it writes to a buffer
    record = next((cached.root / "cache/records/method").rglob("*/*"))
    for kind in ("program", "lower"):
        for path in (cached.root / "cache/records" / kind).rglob("*/*"):
            path.unlink()
    entry = json.loads(record.read_bytes().partition(b"\n")[2])["files"][0]
    blob = cached.root / "cache/blobs" / entry["sha256"][:2] / entry["sha256"]
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    assert sorted(cached.build().values()) in (["cached", "run"], ["run", "run"])
    cached.check()


OPERATOR = """\
import torch

library = torch.library.Library("separate", "DEF")
library.define("thrice(Tensor x) -> Tensor")
library.define("thrice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
library.impl("thrice", lambda x: x * 3, "CompositeExplicitAutograd")
library.impl("thrice.out", lambda x, out: out.copy_(x * 3), "CompositeExplicitAutograd")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linear = torch.nn.Linear(8, 8)

    def embed(self, x):
        return self.linear(x)

    def score(self, x):
        return torch.ops.separate.thrice(self.linear(x))

def create():
    return Net().eval()
"""


class Steps:
    """The steps of a project, each in its own process, as build rules run them."""

    def __init__(self, root: Path, model: str, worker: Worker) -> None:
        self.root = root
        self.worker = worker
        (root / "model.py").write_text(model)
        (root / "model.yaml").write_text(HEAD + TWO)
        self.run("plan", "model.yaml", *(f"--{part}={part}" for part in ("plan", "export-plan", "lower-plan")))
        methods = [f"--method={name}={name}.pt2" for name in ("embed", "score")]
        self.run("export", "export-plan", "--source=model.py=model.py", "--inputs=in", *methods, "-o", "export")

    def run(self, *arguments: str, expect: int = 0) -> str:
        response = self.worker.ask(*arguments, sandbox_dir=str(self.root))
        assert response.exit_code == expect, response.output
        return str(response.output)

    def lower(self, *arguments: str, expect: int = 0) -> str:
        exported = [f"--exported={name}={name}.pt2" for name in ("embed", "score")]
        return self.run("lower", "lower-plan", "--export=export", *exported, *arguments, expect=expect)

    def merge(self, expect: int = 0) -> str:
        return self.lower("--lowered=apart", "-o", "out", expect=expect)


def test_methods_with_operators_of_the_model_are_merged(tmp_path: Path, etbuild_worker: Worker) -> None:
    steps = Steps(tmp_path, OPERATOR, etbuild_worker)
    steps.lower("--templates", "-o", "apart")
    steps.merge()
    steps.lower("--no-accelerate", "-o", "plain")
    assert (tmp_path / "out/net.pte").read_bytes() == (tmp_path / "plain/net.pte").read_bytes()


def test_a_lowered_method_is_the_same_each_time_and_damage_is_noticed(tmp_path: Path, etbuild_worker: Worker) -> None:
    steps = Steps(tmp_path, SHALLOW, etbuild_worker)
    for out in ("apart", "again"):
        steps.lower("--templates", "--with-weights", "-o", out)
    apart = tmp_path / "apart"
    files = sorted(path.relative_to(apart) for path in apart.rglob("*") if path.is_file())
    assert {file.parts[0] for file in files} == {"methods.txt", "embed", "score", "score.weights"}
    for file in files:
        assert (apart / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file
    score = apart / "score.weights"
    for path in (next((score / "blobs").iterdir()), score / "emitted.json"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert f"{path.name} is damaged" in steps.merge(expect=2)
        path.write_bytes(content)
    steps.merge()
    shutil.copy(apart / "embed/method.json", score)
    assert "methods.score: the lowered method is `embed`, not this one" in steps.merge(expect=2)
    (apart / "methods.txt").unlink()
    assert "apart: not what `etbuild lower --templates` wrote" in steps.merge(expect=2)


def test_without_acceleration_nothing_lowered_comes_from_the_cache(cached: Cached) -> None:
    cached.build()
    where = ["--cache-dir", str(cached.root / "cache"), "-o", str(cached.root / "out"), "--json"]
    cached.capfd.readouterr()
    assert main.main(["build", str(cached.root / "model.yaml"), "--no-accelerate", *where]) == 0
    assert json.loads(cached.capfd.readouterr().out)["steps"] == {
        "export": "cached",
        "lower": "run",
        "compare": "run",
        "report": "run",
    }


def test_other_versions_lower_together(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    from etbuild import releases
    from etbuild.processes import forked

    tasks = list[str]()
    original = forked.run

    def run(work: Mapping[str, Callable[[], Any]], *more: Any) -> dict[str, Any]:
        tasks.extend(work)
        return original(work, *more)

    monkeypatch.setattr(releases, "fitting", lambda: False)
    monkeypatch.setattr(forked, "run", run)
    assert build(HEAD + TWO, "--jobs", "2", model=SHALLOW).code == 0
    assert tasks
    assert all(task.startswith(("comparing ", "the build")) for task in tasks)


def test_the_verbs_that_build_rules_run(tmp_path: Path, build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    whole = artifacts(build, HEAD + TWO, SHALLOW)
    project = tmp_path / "project1"
    plans = [f"--{part}={tmp_path / part}" for part in ("plan", "export-plan", "lower-plan")]
    plans += [f"--method-plan={name}={tmp_path / name}" for name in ("embed", "score")]

    def run(*arguments: object) -> int:
        return main.main([str(argument) for argument in arguments])

    assert run("plan", project / "model.yaml", *plans) == 0
    source = f"--source=model.py={project / 'model.py'}"
    assert (
        run("export", tmp_path / "export-plan", source, f"--inputs={tmp_path / 'in'}", "-o", tmp_path / "export") == 0
    )
    lower = ("lower", tmp_path / "lower-plan", f"--export={tmp_path / 'export'}")
    for name in ("embed", "score"):
        one = ("lower", tmp_path / name, f"--export={tmp_path / 'export'}")
        assert run(*one, "--templates", "-o", tmp_path / f"{name}.lowered") == 0
    lowered = [f"--lowered={tmp_path / name}.lowered" for name in ("embed", "score")]
    assert run(*lower, *lowered, "-o", tmp_path / "out") == 0
    assert (tmp_path / "out/net.pte").read_bytes() == whole["net.pte"]
    capfd.readouterr()
    assert run(*lower, lowered[0], "-o", tmp_path / "no") == 2
    assert "--lowered has embed; the plan has embed, score" in capfd.readouterr().err
    (tmp_path / "embed.lowered/embed/emitted.json").write_bytes(b"{}")
    assert run(*lower, *lowered, "-o", tmp_path / "no") == 2
    assert "cannot load the lowered method" in capfd.readouterr().err
