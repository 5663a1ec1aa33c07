"""Options and fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from etbuild.surroundings import arithmetic
from tests.helpers import changes
from tests.helpers.commands import build, worker
from tests.helpers.once import made_once
from tests.helpers.sample import SECONDS, check_names, chosen, of_part
from tests.helpers.schedule import LongestFirst, Stopwatch, file_of, sort_longest_first
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
    "llama": EXAMPLES / "huggingface/llama.yaml",
    "bert": EXAMPLES / "huggingface/bert.yaml",
}


SAMPLED = tuple(name for name in MANIFESTS if name != "mlp")


def of_example(name: str) -> pytest.MarkDecorator:
    """The marker of a test that needs this example. A sample has the tests of one such example, which is built once."""
    return of_part(name, SAMPLED)


EACH_EXAMPLE = ["mlp", *(pytest.param(name, marks=of_example(name)) for name in SAMPLED)]
"""The names of the examples, for `parametrize`. A sample has `mlp`, and another one."""


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
        "--update-seconds", action="store_true", help="write the seconds of the tests that run to tests/seconds.json"
    )
    parser.addoption(
        "--changed-since",
        metavar="COMMIT",
        help="run the tests of what changed since a commit: CONTRIBUTING.md says which. With '' a sample of all tests "
        "runs. The default is to run all cases",
    )
    parser.addoption(
        "--seconds",
        type=float,
        default=SECONDS,
        help="how long the tests of --changed-since may take on one processor, besides tests/unit and tests/fuzz "
        "(default: %(default).0f)",
    )


_SELECTION = pytest.StashKey[changes.Selection]()


def pytest_configure(config: pytest.Config) -> None:
    since = config.getoption("--changed-since")
    if config.getoption("--update-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch())
    if since is None:
        return
    if hasattr(config, "workerinput"):  # a file may change while the tests run
        config.stash[_SELECTION] = changes.from_controller(config.workerinput["selection"])
        return
    try:
        changed = changes.changed_paths(TESTS.parent, since) if since else None
    except changes.UnknownCommit as error:
        raise pytest.UsageError(f"--changed-since {since}: {error}") from error
    config.stash[_SELECTION] = changes.select(TESTS.parent, changed)


def pytest_configure_node(node: Any) -> None:
    """pytest-xdist calls this before it starts a worker."""
    if _SELECTION in node.config.stash:
        node.workerinput["selection"] = changes.to_worker(node.config.stash[_SELECTION])


def pytest_report_header(config: pytest.Config) -> str | None:
    if _SELECTION not in config.stash:
        return None
    return changes.describe(config.stash[_SELECTION], config.getoption("--changed-since") or None)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker in MARKERS.get(item.path.relative_to(TESTS).parts[0], ()):
            item.add_marker(marker)
    named = any("::" in argument for argument in config.args)  # who names a test wants to run it
    if (selection := config.stash.get(_SELECTION, None)) and not named:
        always = {item for item in items if changes.is_always_whole(file_of(item.nodeid))}
        reached = [item for item in items if file_of(item.nodeid) in selection.whole | selection.sampled]
        if not config.getoption("--lf", False):  # which leaves out cases
            check_names(items)
        runs = always | chosen(
            [item for item in reached if item not in always], selection.whole, seconds=config.getoption("--seconds")
        )
        config.hook.pytest_deselected(items=[item for item in items if item not in runs])
        items[:] = [item for item in items if item in runs]
    if hasattr(config, "workerinput"):
        sort_longest_first(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # keep the order of the collection
    return LongestFirst(config, log)


@pytest.fixture(scope="module", autouse=True)
def _objects_that_stay() -> None:
    """The garbage collector ignores what is here before the tests of a file, which is mostly PyTorch.

    Otherwise each collection would look at a million objects, and write to the memory that forks share.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Gives the tests their own cache, so that they do not use the user's."""
    os.environ["ETBUILD_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


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
