"""The warm process that a build leaves behind: builds that fork from it are like others, and so are their ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from etbuild.processes.build_status import Slate
from etkit.warm import client, messages
from tests.helpers.commands import command
from tests.helpers.worker_client import WAIT_SECONDS, wait_until

from .conftest import MANIFEST, MODEL

SLOW = MODEL.replace("def create", "import time\ntime.sleep(100)\n\n\ndef create")


class Project:
    """A model, with an own place for warm processes."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root = root
        (root / "model.yaml").write_text(MANIFEST)
        (root / "model.py").write_text(MODEL)
        unset = {"CI", "ETBUILD_NO_SERVER"}
        self.variables = {name: value for name, value in os.environ.items() if name not in unset}
        self.variables |= {"ETBUILD_SERVER_DIR": str(place), "ETBUILD_CACHE_DIR": str(root / "cache")}
        self.place = place / f"etbuild-{os.geteuid()}"

    def start(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a build without what the cache has."""
        return subprocess.Popen(
            command("build", "model.yaml", "--json", "--cache-dir", tempfile.mkdtemp(dir=self.root), *options),
            cwd=self.root,
            env=self.variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def build(self, *options: str, **variables: str) -> dict[str, str]:
        """Builds. Returns the digests of the artifacts by file."""
        build = self.start(*options, **variables)
        out, errors = build.communicate(timeout=WAIT_SECONDS)
        assert build.returncode == 0, errors
        return {each["file"]: each["sha256"] for each in json.loads(out)["artifacts"]}

    def server(self, action: str) -> str:
        """What `etbuild server` prints."""
        asked = command("server", action)
        return subprocess.run(asked, env=self.variables, capture_output=True, text=True, check=True).stdout

    def warm(self) -> int:
        """Waits for the warm process. Returns its number."""
        wait_until(lambda: bool(list(self.place.glob("*.socket"))), WAIT_SECONDS)
        return self.pids()[0]

    def pids(self) -> list[int]:
        """The numbers of the warm processes."""
        return [int(each) for each in re.findall(r"process (\d+)", self.server("status"))]

    def children(self) -> list[int]:
        """The forks of the warm process."""
        pid = self.warm()
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with tempfile.TemporaryDirectory(prefix="w") as place:  # short: it is part of the path of a socket
        made = Project(tmp_path, Path(place))
        yield made
        made.server("stop")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with tempfile.TemporaryDirectory(prefix="w") as place:
        made = Project(tmp_path_factory.mktemp("shared"), Path(place))
        yield made
        made.server("stop")


@pytest.fixture
def warm(shared: Project) -> Project:
    """A project with a warm process, which a build of an earlier test may have left."""
    (shared.root / "model.py").write_text(MODEL)
    if not shared.pids():
        shared.build()
        shared.warm()
    return shared


def _in_stage(project: Project) -> int:
    """Waits until a fork runs the model. Returns its process."""
    wait_until(lambda: bool(project.children()), WAIT_SECONDS)
    time.sleep(2)  # it imports the model
    return project.children()[0]


def test_a_build_leaves_a_process_behind_from_which_the_next_one_forks(project: Project) -> None:
    cold = project.build()
    first = project.warm()
    build = project.start()
    wait_until(lambda: bool(project.children()), WAIT_SECONDS)
    out, errors = build.communicate(timeout=WAIT_SECONDS)
    assert build.returncode == 0, errors
    assert {each["file"]: each["sha256"] for each in json.loads(out)["artifacts"]} == cold
    assert project.warm() == first
    assert f"process {first}, builds now: 0" in project.server("status")
    project.server("stop")
    wait_until(lambda: not list(project.place.glob("*.socket")))
    assert project.server("status") == "no warm process runs\n"


def test_a_process_that_still_imports_is_seen_and_ended(project: Project) -> None:
    project.build()
    wait_until(lambda: bool(project.pids()), WAIT_SECONDS)
    [first] = project.pids()
    assert f"process {first}" in project.server("stop")
    wait_until(lambda: not Path(f"/proc/{first}").exists(), WAIT_SECONDS)
    assert project.server("status") == "no warm process runs\n"


def test_a_build_has_its_own_directory_variables_and_streams(warm: Project) -> None:
    elsewhere = warm.root / "elsewhere"
    elsewhere.mkdir()
    warm.build("-o", "elsewhere", TERM="dumb", COLUMNS="60")
    assert (elsewhere / "net.pte").exists()
    (warm.root / "model.py").write_text("import missing\n" + MODEL)
    build = warm.start()
    out, errors = build.communicate(timeout=WAIT_SECONDS)
    assert build.returncode == 1
    assert out == ""
    assert "missing" in errors


def test_a_model_that_ends_its_process_ends_only_its_build(warm: Project) -> None:
    process = warm.warm()
    (warm.root / "model.py").write_text("import os\nos._exit(0)\n")
    build = warm.start()
    _, errors = build.communicate(timeout=WAIT_SECONDS)
    assert build.returncode == 1
    assert "os._exit" in errors
    (warm.root / "model.py").write_text(MODEL)
    warm.build()
    assert warm.warm() == process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_build_ends_with_the_process_that_asked_for_it(warm: Project, number: int) -> None:
    (warm.root / "model.py").write_text(SLOW)
    build = warm.start()
    fork = _in_stage(warm)
    build.send_signal(number)
    _, errors = build.communicate(timeout=WAIT_SECONDS)
    wait_until(lambda: not Path(f"/proc/{fork}").exists())
    assert "Traceback" not in errors
    if number != signal.SIGKILL:
        assert build.returncode == 130
        assert "interrupted" in errors
    assert not [path for path in warm.root.iterdir() if path.name.startswith(".")]
    (warm.root / "model.py").write_text(MODEL)
    warm.build()


def test_a_build_whose_warm_process_is_killed_says_so(warm: Project) -> None:
    (warm.root / "model.py").write_text(SLOW)
    build = warm.start()
    fork = _in_stage(warm)
    os.kill(warm.warm(), signal.SIGKILL)
    _, errors = build.communicate(timeout=WAIT_SECONDS)
    assert build.returncode in (1, 130)  # it gets SIGTERM, and may still say that it was interrupted
    assert "the build ended with SIGTERM" in errors or "interrupted" in errors
    wait_until(lambda: not Path(f"/proc/{fork}").exists())
    (warm.root / "model.py").write_text(MODEL)
    warm.build()  # without it


def test_a_stopped_warm_process_is_done_without(warm: Project) -> None:
    """Before a build, and during one, whose result does not depend on it. Builds that it missed do not begin later."""
    process = warm.warm()
    os.kill(process, signal.SIGSTOP)
    try:
        warm.build()
    finally:
        os.kill(process, signal.SIGCONT)
    wait_until(lambda: f"process {process}, builds now: 0" in warm.server("status"), WAIT_SECONDS)
    build = warm.start()
    wait_until(lambda: bool(warm.children()), WAIT_SECONDS)
    os.kill(process, signal.SIGSTOP)
    try:
        _, errors = build.communicate(timeout=WAIT_SECONDS)
    finally:
        os.kill(process, signal.SIGCONT)
    assert build.returncode == 0, errors


@pytest.mark.parametrize("variable", ["CI", "ETBUILD_NO_SERVER"])
def test_nothing_stays_where_nobody_wants_it(project: Project, variable: str) -> None:
    project.build(**{variable: "1"})
    project.build("--no-server")
    time.sleep(1)
    assert project.server("status") == "no warm process runs\n"
    assert not list(project.place.glob("*"))


def test_other_variables_and_limits_have_other_processes(warm: Project) -> None:
    before = warm.warm()
    warm.build(HF_HOME=str(warm.root))
    wait_until(lambda: len(list(warm.place.glob("*.socket"))) == 2, WAIT_SECONDS)
    assert before in warm.pids()


SERVE = """
import sys
from pathlib import Path
from etkit.warm import server
server.IDLE_SECONDS, server._CHECK_SECONDS = float(sys.argv[2]), 0.1
server.warm = lambda verb: None
sys.path.insert(0, sys.argv[3])
import imported_by_all
sys.exit(server.serve(lambda arguments: 0, Path(sys.argv[1])))
"""


def _serve(tmp_path: Path, seconds: float) -> tuple[subprocess.Popen[bytes], Path]:
    (tmp_path / "imported_by_all.py").write_text("")
    time.sleep(0.1)  # so it is older than the process
    path = Path(tempfile.mkdtemp(prefix="w")) / "one.socket"
    return subprocess.Popen([sys.executable, "-c", SERVE, path, str(seconds), tmp_path]), path


def test_it_ends_when_nobody_builds_for_a_while(tmp_path: Path) -> None:
    process, path = _serve(tmp_path, 0.5)
    assert process.wait(WAIT_SECONDS) == 0
    assert not path.exists()


def test_a_fork_that_cannot_begin_ends_and_serves_nobody(tmp_path: Path) -> None:
    process, path = _serve(tmp_path, 100)
    wait_until(path.exists, WAIT_SECONDS)
    slate, nothing = Slate.new(), os.open(os.devnull, os.O_RDWR)
    here = os.open(tmp_path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(path))
        messages.send(channel, {"build": True})
        assert messages.receive(channel)[0] == {"ready": True}
        wrong = nothing  # in place of what the watching process hands over
        messages.send(channel, {"arguments": [], "variables": {}}, [*[nothing] * 3, here, slate.descriptor, wrong])
        assert messages.receive(channel)[0]["pid"] != process.pid
        assert messages.receive(channel)[0] == {"code": 1}
    assert client.ask(path, {"stop": True}) == {"pid": process.pid, "builds": 0}
    assert process.wait(WAIT_SECONDS) == 0


def test_it_ends_when_something_is_installed(tmp_path: Path) -> None:
    process, path = _serve(tmp_path, 100)
    wait_until(path.exists)
    second = subprocess.run([sys.executable, "-c", SERVE, path, "100", tmp_path], check=False)
    assert second.returncode == 1  # one process for a socket
    assert process.poll() is None
    (tmp_path / "imported_by_all.py").write_text("changed = True")
    assert process.wait(WAIT_SECONDS) == 0
    assert not path.exists()


def test_it_ends_when_a_plug_in_is_new_or_nobody_finds_its_socket(tmp_path: Path) -> None:
    process, path = _serve(tmp_path, 100)  # `tmp_path` is in `sys.path`
    wait_until(path.exists)
    (tmp_path / "new_package").mkdir()
    assert process.wait(WAIT_SECONDS) == 0
    process, path = _serve(tmp_path, 100)
    wait_until(path.exists)
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.touch()  # of another one
    assert process.wait(WAIT_SECONDS) == 0
    assert path.exists()


def test_a_directory_of_others_has_no_socket(project: Project) -> None:
    project.place.mkdir(mode=0o755)
    project.place.chmod(0o755)
    project.build()
    assert not list(project.place.iterdir())
