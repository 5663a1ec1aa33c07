"""Options and fixtures that all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from etbuild.processes.environment import ARITHMETIC

os.environ.update(ARITHMETIC)  # as the command line does, before a test imports torch

pytest_plugins = ["tests.workspaces"]  # fixtures of tests/bazel and tests/remote

EXAMPLES = Path(__file__).parents[1] / "examples"
MANIFESTS = {
    "mlp": EXAMPLES / "mlp/model.yaml",
    "tiny_lm": EXAMPLES / "tiny_lm/model.yaml",
    "vision": EXAMPLES / "vision/model.yaml",
    "vision_coreml": EXAMPLES / "vision/coreml.yaml",
    "vision_ethos_u": EXAMPLES / "vision/ethos_u.yaml",
    "vision_openvino": EXAMPLES / "vision/openvino.yaml",
    "encoder_decoder": EXAMPLES / "encoder_decoder/model.yaml",
    "embedder": EXAMPLES / "shared_weights/embedder.yaml",
    "classifier": EXAMPLES / "shared_weights/classifier.yaml",
    "spotter_int8": EXAMPLES / "quantized/int8.yaml",
    "spotter_int4": EXAMPLES / "quantized/int4.yaml",
    "llama": EXAMPLES / "huggingface/llama.yaml",
    "bert": EXAMPLES / "huggingface/bert.yaml",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


class _ByFile(LoadScopeScheduling):
    """What one process runs, one after the other: the tests of a file, and all that need Bazel's servers."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "bazel" if file.startswith(("tests/bazel/", "tests/remote/")) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests leave the user's cache alone."""
    os.environ["ETBUILD_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def build_with_cli(manifest: Path, directory: Path) -> None:
    """Builds a manifest with the command line, in a process of its own."""
    command = [sys.executable, "-m", "etbuild", "build", str(manifest), "--no-cache", "-o", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def cli_built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds an example with the command line at its first use, and returns the path of its program."""
    programs: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in programs:
            directory = tmp_path_factory.mktemp(name)
            build_with_cli(MANIFESTS[name], directory)
            programs[name] = directory / f"{name}.pte"
        return programs[name]

    return get
