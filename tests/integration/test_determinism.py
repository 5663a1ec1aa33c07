"""The same inputs give the same bytes: for every example and backend, in any surroundings and after any other build."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import EXAMPLES, MANIFESTS, variant_options
from tests.helpers.commands import build, command, etbuild
from tests.helpers.computations import AVX2
from tests.helpers.manifests import HEAD
from tests.helpers.rotation import values_that_run

PARTITIONER = """\
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

def create():
    return XnnpackPartitioner()
"""
GOLDEN = Path(__file__).parents[1] / "golden/programs"
# Backends that no example uses for a whole program: mlp with other partitioners.
BACKENDS = {
    "portable": ["portable"],
    "custom": [{"backend": "custom", "options": {"factory": "partitioner:create"}}],
}
# Surroundings that must not change the bytes.
SURROUNDINGS = {
    "LC_ALL": "C",
    "LOGNAME": "two",
    "PYTHONHASHSEED": "31337",
    "TZ": "TOMORROW-24",  # in this time zone it is always another day
    "USER": "two",
}
BUILD_ALL = """\
import json
import sys
from etbuild.cli.main import main

for arguments in json.loads(sys.argv[1]):
    code = main(["build", *arguments, "--no-cache", "--no-accelerate"])
    assert code == 0, arguments
"""


def with_backend(directory: Path, name: str) -> Path:
    """Writes a manifest like that of mlp, with another partitioner."""
    shutil.copytree(EXAMPLES / "mlp", directory)
    manifest = yaml.safe_load((directory / "model.yaml").read_text())
    manifest["name"] = name
    manifest["methods"]["forward"]["partitioners"] = BACKENDS[name]
    (directory / "model.yaml").write_text(yaml.safe_dump(manifest))
    (directory / "partitioner.py").write_text(PARTITIONER)
    return directory / "model.yaml"


def turned_round(manifest: Path) -> None:
    """Writes a manifest again, with its methods in reverse order."""
    content = yaml.safe_load(manifest.read_text())
    content["methods"] = dict(reversed(content["methods"].items()))
    manifest.write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.fixture(scope="module")
def built_elsewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs that this run compares, built one after the other in one process, in other surroundings and with
    unmodified ExecuTorch. The first program is built again at the end."""
    chosen = {"mlp"} | values_that_run(request, "name")
    root = tmp_path_factory.mktemp("another and longer path")
    shutil.copytree(EXAMPLES, root / "examples", ignore=shutil.ignore_patterns("bazel-*", "monorepo"))
    manifests = {name: root / "examples" / path.relative_to(EXAMPLES) for name, path in reversed(MANIFESTS.items())}
    manifests |= {name: with_backend(root / name, name) for name in BACKENDS}
    manifests = {name: path for name, path in manifests.items() if name in chosen}
    for manifest in set(manifests.values()):
        turned_round(manifest)
    builds = [[str(path), *variant_options(name), "-o", str(root / "out" / name)] for name, path in manifests.items()]
    command = [sys.executable, "-c", BUILD_ALL, json.dumps([*builds, builds[0]])]
    environment = {**os.environ, **SURROUNDINGS}
    done = subprocess.run(command, env=environment, umask=0o077, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root / "out"


def artifacts(directory: Path, name: str) -> dict[str, bytes]:
    paths = (
        path for path in directory.glob(f"{name}.*") if path.suffix != ".html"
    )  # `--html` may be added to any build
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_example_has_the_same_bytes_elsewhere(
    name: str, cli_built: Callable[[str], Path], built_elsewhere: Path
) -> None:
    made = artifacts(cli_built(name).parent, name)
    assert {f"{name}.pte", f"{name}.index.json", f"{name}.report.json"} <= made.keys()
    assert made == artifacts(built_elsewhere / name, name)


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_example_has_the_bytes_that_were_written_down(
    name: str, cli_built: Callable[[str], Path], update_golden: bool
) -> None:
    """Changes that intend to change bytes must update the golden files. `tests/bazel` compares the digests with what
    Bazel builds. What `inspect` shows stands beside them, so that a review can read what a change of bytes changed."""
    program = cli_built(name)
    files = sorted(path for path in program.parent.rglob("*.pt*") if path.is_file())
    digests = {
        path.relative_to(program.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    made = {
        f"{name}.inspect.json": etbuild("inspect", "--json", program).stdout,
        f"{name}.json": json.dumps(digests, indent=2) + "\n",
    }
    for file, text in made.items():
        if update_golden:
            (GOLDEN / file).write_text(text)
        assert (GOLDEN / file).read_text() == text


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_has_the_same_bytes_elsewhere(name: str, tmp_path: Path, built_elsewhere: Path) -> None:
    build(with_backend(tmp_path / "in", name), tmp_path / "out")
    assert artifacts(tmp_path / "out", name) == artifacts(built_elsewhere / name, name)


def test_a_calibrated_method_has_the_same_bytes_on_another_processor(
    tmp_path: Path, cli_built: Callable[[str], Path]
) -> None:
    """One machine can only simulate this: the environment asks the libraries for the instructions of another
    processor."""
    build(MANIFESTS["spotter_int8"], tmp_path, environment={**os.environ, **AVX2})
    assert (tmp_path / "spotter_int8.pte").read_bytes() == cli_built("spotter_int8").read_bytes()


def test_what_a_model_computes_is_the_same_on_every_processor(tmp_path: Path) -> None:
    """Also shows that the computations differ there if nothing holds them, for each library."""
    computations = Path(__file__).parents[1] / "helpers/computations.py"
    shutil.copy(computations, tmp_path)
    (tmp_path / "model.py").write_text(
        "import json, computations, torch\n\ndef create():\n"
        "    print('computed', json.dumps(computations.digests()))\n    return torch.nn.Linear(2, 2)\n"
    )
    (tmp_path / "model.yaml").write_text(HEAD + "methods: {forward: {example_inputs: [{shape: [1, 2]}]}}\n")
    other = {**os.environ, **AVX2}

    def built(surroundings: dict[str, str], *before: str) -> dict[str, str]:
        words = command("build", tmp_path / "model.yaml", "--no-cache", "-o", tmp_path / "out")
        done = subprocess.run([*before, *words], env=surroundings, capture_output=True, text=True, check=True)
        [line] = [line for line in done.stderr.splitlines() if line.startswith("computed ")]
        return dict(json.loads(line.removeprefix("computed ")))

    held = built(other)
    assert held == built(dict(os.environ), "taskset", "-c", str(min(os.sched_getaffinity(0))))
    done = subprocess.run([sys.executable, computations], env=other, capture_output=True, check=True)
    found = json.loads(done.stdout)
    differ = {name for name in held if held[name] != found[name]}
    assert {"orthogonal", "conv2d", "sigmoid of float32", "math"} <= differ  # MKL and threads, oneDNN, ATen, libm
    assert {"numpy.matmul of float32", "numpy.exp of float32", "numpy power"} <= differ  # OpenBLAS, numpy, libm


def test_no_artifact_holds_a_path(built_elsewhere: Path) -> None:
    files = [path for path in built_elsewhere.rglob("*") if path.is_file()]
    assert "mlp.pte" in {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert str(built_elsewhere.parent).encode() not in content, path.name
        assert b"site-packages" not in content, path.name


def test_a_set_in_a_model_has_one_order(tmp_path: Path) -> None:
    model = (
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        for name in {'sin', 'cos', 'tanh', 'relu', 'abs', 'neg'}:\n            x = getattr(torch, name)(x)\n"
        "        return x\n\ndef create():\n    return Net()\n"
    )
    manifest = HEAD + "methods: {forward: {example_inputs: [{shape: [2]}]}}\n"
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "model.yaml").write_text(manifest)
    made = set()
    for seed in ("1", "2"):  # in which the set has two orders
        build(tmp_path / "model.yaml", tmp_path / seed, environment={**os.environ, "PYTHONHASHSEED": seed})
        made.add((tmp_path / seed / "net.pte").read_bytes())
    assert len(made) == 1
