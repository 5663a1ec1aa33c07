"""The core with each older release of ExecuTorch that `etbuild.releases` names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.zoo import zoo
from benchmarks.zoo.zoo import MODELS
from etbuild.files.digests import file_digest
from etbuild.releases import SUPPORTED
from tests.conftest import EXAMPLES, MANIFESTS
from tests.helpers import commands

CACHE = Path(__file__).parents[2] / ".cache"
GOLDEN = Path(__file__).parents[1] / "golden/programs"


@pytest.fixture(scope="module", params=SUPPORTED[:-1])
def release(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """A release, and the environment that imports it. All other packages are those of the developer's environment."""
    directory = CACHE / f"executorch-{request.param}"
    if not (directory / "ready").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(directory)]
        lock = EXAMPLES.parent / f"toolchain/requirements-executorch-{request.param}.lock"
        done = subprocess.run([*pip, "--require-hashes", "-r", str(lock)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"ExecuTorch {request.param} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        (directory / "ready").touch()
    return request.param, {**os.environ, "PYTHONPATH": str(directory)}


@pytest.mark.parametrize("name", ["encoder_decoder", "spotter_int8"])
def test_programs_have_the_bytes_of_the_newest_release(
    name: str, release: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    version, environment = release
    commands.build(MANIFESTS[name], tmp_path, environment=environment)
    index = json.loads((tmp_path / f"{name}.index.json").read_text())
    assert index["versions"]["executorch"] == version
    found = {path.name: file_digest(path) for path in tmp_path.iterdir() if path.suffix in (".pte", ".ptd")}
    assert found == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo_have_the_bytes_of_the_newest_release(
    name: str, release: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """Both builds compare the program with PyTorch, in their own runtime."""
    manifest = zoo.write(name, tmp_path / "model")
    for out, environment in ((tmp_path / "newest", None), (tmp_path / "older", release[1])):
        commands.build(manifest, out, environment=environment)
    newest, older = (tmp_path / f"{out}/program.pte" for out in ("newest", "older"))
    assert file_digest(newest) == file_digest(older)


def test_its_runtime_runs_programs_of_the_newest_release(
    release: tuple[str, dict[str, str]], cli_built: Callable[[str], Path]
) -> None:
    for name in ("mlp", "encoder_decoder"):  # without named data, and with it
        arguments = ("test", MANIFESTS[name], "--program", cli_built(name))
        done = commands.etbuild(*arguments, environment=release[1])
        assert done.returncode == 0, done.stderr


def test_what_its_runtime_cannot_do_is_an_error(
    release: tuple[str, dict[str, str]], cli_built: Callable[[str], Path]
) -> None:
    arguments = ("run", cli_built("tiny_lm"), "decode", "[[72]]", "[0]")
    done = commands.etbuild(*arguments, environment=release[1])
    assert done.returncode == 1
    assert "cannot load named data from Python for methods that share state" in done.stderr
    assert "keep the weights in the program, or use ExecuTorch 1.5" in done.stderr
