"""Options and fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from etbuild.surroundings import arithmetic
from tests.helpers import rotation
from tests.helpers.commands import build, worker
from tests.helpers.once import made_once
from tests.helpers.worker_client import Worker

os.environ.update(arithmetic.VARIABLES)  # as the command line does; must come before a test imports torch
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # a shell does so in the background, and commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.set_threshold(20_000, 20, 20)  # with 700, 10, 10, lowering spends a seventh of its time in the garbage collector

pytest_plugins = ["tests.helpers.workspaces"]  # fixtures of tests/bazel and tests/remote

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent / "examples"
MANIFESTS = {
    "mlp": EXAMPLES / "mlp/model.yaml",
    "tiny_lm": EXAMPLES / "tiny_lm/model.yaml",
    "vision": EXAMPLES / "vision/model.yaml",
    "vision.coreml": EXAMPLES / "vision/model.yaml",
    "vision.ethos_u": EXAMPLES / "vision/model.yaml",
    "vision.openvino": EXAMPLES / "vision/model.yaml",
    "encoder_decoder": EXAMPLES / "encoder_decoder/model.yaml",
    "embedder": EXAMPLES / "shared_weights/embedder.yaml",
    "classifier": EXAMPLES / "shared_weights/classifier.yaml",
    "spotter_int8": EXAMPLES / "quantized/int8.yaml",
    "spotter_int4": EXAMPLES / "quantized/int4.yaml",
    "shapes": EXAMPLES / "samples/shapes.yaml",
    "denoiser": EXAMPLES / "sound/model.yaml",
    "llama": EXAMPLES / "huggingface/llama.yaml",
    "bert": EXAMPLES / "huggingface/bert.yaml",
}


def variant(name: str) -> str | None:
    """Returns the variant of a program that `MANIFESTS` names; None if it is the manifest without one."""
    return name.partition(".")[2] or None


def variant_options(name: str) -> tuple[str, ...]:
    """Returns the options of the command line that choose the variant of such a program."""
    chosen = variant(name)
    return () if chosen is None else ("--variant", chosen)


# The markers of all tests of a folder. pyproject.toml says what they mean.
MARKERS = {
    "bazel": ("bazel",),
    "conformance": ("torch",),
    "faults": ("torch",),
    "integration": ("torch",),
    "remote": ("bazel", "remote"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")
    parser.addoption(
        "--rotate",
        metavar="COMMIT",
        help="of the tests with PyTorch or Bazel, run the cases that this hash draws. The default is to run all",
    )
    parser.addoption("--since", metavar="COMMIT", help="with --rotate: run all cases about what changed since a commit")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker in MARKERS.get(item.path.relative_to(TESTS).parts[0], ()):
            item.add_marker(marker)
    if (commit := config.getoption("--rotate")) is not None:
        since = config.getoption("--since")
        about = rotation.about(TESTS.parent, rotation.changed_paths(TESTS.parent, since)) if since else ()
        left = rotation.not_drawn(items, commit, about)
        config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """A worker gets whole files, since the tests of a file share fixtures.

    Files keep the order of the collection: Bazel's begin, which take longest, and the short ones without PyTorch end,
    so that no worker waits for the other one.
    """
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.fixture(scope="module", autouse=True)
def _objects_that_stay() -> None:
    """The garbage collector ignores what is here before the tests of a file, which is mostly PyTorch.

    Otherwise each collection would look at a million objects, and write to the memory that forks share.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _environment_of_each_file() -> Iterator[None]:
    """No file of tests gets variables that the code under test set in an earlier file."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Gives the tests their own cache, so that they do not use the user's, and no warm processes."""
    os.environ["ETBUILD_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["ETBUILD_NO_SERVER"] = "1"  # no test leaves a process behind, but those that ask for it
    os.environ["ETBUILD_NO_PROGRESS"] = "1"  # on a busy machine, a build of a test may take ten seconds


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def patterns_traced_once() -> Iterator[None]:
    """In this process, quantizers trace each pattern once."""
    from tests.helpers.patterns import traced_once  # imports ExecuTorch, which takes seconds

    with traced_once():
        yield


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this test run share. It is empty when the run starts."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def cli_built(shared_directory: Path) -> Callable[[str], Path]:
    """Builds an example with its page on the command line when it is first needed. Returns the path of its program."""

    def get(name: str) -> Path:
        directory = made_once(
            shared_directory / name, lambda partial: build(MANIFESTS[name], partial, "--html", *variant_options(name))
        )
        return directory / f"{name}.pte"

    return get


@pytest.fixture(scope="session")
def etbuild_worker() -> Worker:
    """The worker in which `commands.build` builds, for tests that look at its answers. They must not end it."""
    return worker()
