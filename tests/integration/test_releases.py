"""The core with each older release of ExecuTorch that `etbuild.releases` names: the same programs, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from etbuild.releases import SUPPORTED
from tests.conftest import MANIFESTS, on_some_days
from tests.helpers import commands

CACHE = Path(__file__).parents[2] / ".cache"
OLDER = SUPPORTED[:-1]


@pytest.fixture(scope="module", params=OLDER)
def release(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """A release, and the environment that imports it. All other packages are those of the developer's environment."""
    directory = CACHE / f"executorch-{request.param}"
    if not (directory / "ready").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(directory)]
        done = subprocess.run([*pip, f"executorch=={request.param}"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"ExecuTorch {request.param} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        (directory / "ready").touch()
    return request.param, {**os.environ, "PYTHONPATH": str(directory)}


def build(name: str, directory: Path, environment: dict[str, str]) -> Path:
    commands.build(MANIFESTS[name], directory, environment=environment)
    return directory / f"{name}.pte"


@on_some_days("encoder_decoder")
def test_two_methods_with_and_without_a_backend(
    release: tuple[str, dict[str, str]], cli_built: Callable[[str], Path], tmp_path: Path
) -> None:
    version, environment = release
    made, expected = build("encoder_decoder", tmp_path, environment), cli_built("encoder_decoder")
    assert json.loads(made.with_suffix(".index.json").read_text())["versions"]["executorch"] == version
    for suffix in (".pte", ".encoder.ptd", ".decoder.ptd", ".report.json"):
        assert made.with_suffix(suffix).read_bytes() == expected.with_suffix(suffix).read_bytes(), suffix


@pytest.mark.rotates(days=3, part=1)
def test_its_own_runtime_runs_what_it_built(
    release: tuple[str, dict[str, str]], cli_built: Callable[[str], Path], tmp_path: Path
) -> None:
    version, environment = release
    program = build("mlp", tmp_path, environment)
    script = (
        "import sys, importlib.metadata, torch\n"
        "from executorch.runtime import Runtime\n"
        "method = Runtime.get().load_program(sys.argv[1]).load_method('forward')\n"
        "print(importlib.metadata.version('executorch'), method.execute([torch.ones(1, 16)])[0].tolist())\n"
    )
    said = [
        subprocess.run([sys.executable, "-c", script, str(path)], env=env, capture_output=True, text=True, check=True)
        for path, env in ((program, environment), (cli_built("mlp"), dict(os.environ)))
    ]
    (older, older_output), (newest, output) = (done.stdout.strip().split(" ", 1) for done in said)
    assert (older, newest) == (version, SUPPORTED[-1])
    assert json.loads(older_output)[0] == pytest.approx(json.loads(output)[0], rel=1e-5)
