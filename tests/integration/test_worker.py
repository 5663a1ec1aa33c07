"""The persistent worker as Bazel uses it: a process with requests on standard input and responses on standard
output. The tests of forks run also for the warm process that builds leave behind."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etplugins.worker import server
from etplugins.worker.protocol import WorkRequest
from tests.conftest import MANIFESTS
from tests.helpers import commands
from tests.helpers.warm_process import WarmProcess
from tests.helpers.worker_client import TYPES, Worker, alive, framed, varint, wait_until

from .conftest import MANIFEST, MODEL

AnyWorker = Worker | WarmProcess
# The place in a model for additional code.
LOUD = """
import ctypes, os, sys
print("said by Python")
print("said to standard error", file=sys.stderr)
os.write(1, b"said to the descriptor\\n")
ctypes.CDLL(None).puts(b"said by C")
ctypes.CDLL(None).fflush(None)
"""
SUICIDE = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
# A model that starts a process and waits. The process must end with the request.
SLOW = """
import pathlib, subprocess, sys, time
process = subprocess.Popen(["sleep", "600"])
pathlib.Path({started!r}).write_text(str(process.pid))
time.sleep(600)
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLOW


def project(root: Path, prefix: str = "", name: str = "net") -> Path:
    """Writes the manifest of a small program whose model first runs some code."""
    root.mkdir(parents=True)
    (root / "model.py").write_text(prefix + MODEL)
    (root / "model.yaml").write_text(MANIFEST.replace("name: net", f"name: {name}"))
    return root / "model.yaml"


def build(manifest: Path, out: Path) -> list[str]:
    return ["build", str(manifest), "--no-cache", "-o", str(out)]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def of_bazel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One worker of Bazel for all tests. They must not end it."""
    started = Worker(tmp_path_factory.mktemp("worker"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def warm_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmProcess]:
    """One warm process for all tests. They must not end it."""
    started = WarmProcess(tmp_path_factory.mktemp("warm"))
    yield started
    started.end()


@pytest.fixture(params=["of_bazel", "warm_process"])
def worker(request: pytest.FixtureRequest) -> AnyWorker:
    """What forks for each request."""
    found: AnyWorker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def own_worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker of Bazel that the test may end."""
    started = Worker(tmp_path)
    yield started
    started.end()


@pytest.fixture(params=[Worker, WarmProcess])
def ending_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyWorker]:
    """What forks for each request, and the test may end it."""
    started = request.param(tmp_path)
    yield started
    started.end()


@pytest.fixture
def slow(tmp_path: Path) -> Callable[[AnyWorker, str], list[int]]:
    """Sends a request that takes minutes. Returns its processes once the model's code runs."""

    def start(worker: AnyWorker, prefix: str = SLOW) -> list[int]:
        started = tmp_path / "started"
        manifest = project(tmp_path / "slow", prefix.format(started=str(started)))
        worker.send(*build(manifest, tmp_path / "slow_out"), request_id=77)
        wait_until(lambda: started.exists() and started.read_text(), 60)
        processes = worker.children()
        assert int(started.read_text()) in processes
        assert len(processes) == 3  # the fork, the model, and what that started
        return processes

    return start


def test_a_worker_makes_what_a_process_of_its_own_makes(worker: AnyWorker, tmp_path: Path) -> None:
    manifest = project(tmp_path / "in")
    commands.build(manifest, tmp_path / "own", environment=os.environ)
    for number, path in enumerate([manifest, MANIFESTS["mlp"], manifest]):  # also after another program
        out = tmp_path / str(number)
        response = worker.ask(*build(path, out))
        assert response.exit_code == 0, response.output
        if path == manifest:
            assert files(out) == files(tmp_path / "own")


def test_a_worker_has_one_thread(worker: AnyWorker, tmp_path: Path) -> None:
    assert worker.ask(*build(project(tmp_path / "in"), tmp_path / "out")).exit_code == 0
    assert len(list(Path(f"/proc/{worker.process.pid}/task").iterdir())) == 1


def test_results_and_errors_are_the_output(worker: AnyWorker) -> None:
    good = worker.ask("validate", MANIFESTS["mlp"])
    assert (good.exit_code, good.output) == (0, "1 manifest checked: no errors\n")
    bad = worker.ask("validate", "no/such.yaml")
    assert bad.exit_code == 2
    assert "no/such.yaml: cannot read the file" in bad.output
    usage = worker.ask("no-such-verb")
    assert usage.exit_code == 2
    assert "there is no verb `no-such-verb`" in usage.output
    assert worker.ask().exit_code == 2
    assert worker.ask("validate", MANIFESTS["mlp"]).exit_code == 0


def test_arguments_may_come_in_a_file(worker: AnyWorker, tmp_path: Path) -> None:
    (tmp_path / "params").write_text(f"validate\n{MANIFESTS['mlp']}\n")
    assert worker.ask(f"@{tmp_path / 'params'}").output == "1 manifest checked: no errors\n"
    missing = worker.ask(f"@{tmp_path / 'missing'}")
    assert missing.exit_code == 2
    assert "cannot read the file of arguments" in missing.output


def test_output_of_a_model_is_not_taken_for_a_response(worker: AnyWorker, tmp_path: Path) -> None:
    response = worker.ask(*build(project(tmp_path / "in", LOUD), tmp_path / "out"), request_id=5)
    assert (response.exit_code, response.request_id) == (0, 5)
    for who in ("by Python", "to standard error", "to the descriptor", "by C"):
        assert f"said {who}" in response.output


@pytest.mark.parametrize("failing", ["os.fork", "mmap.mmap"])
def test_a_fork_that_fails_leaves_no_descriptors(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have no free process or memory for a moment. The worker answers and continues."""
    requests, written = os.pipe()
    answers, responses = os.pipe()
    waker = server._Worker(lambda arguments: 0, requests, responses, os.pipe())
    monkeypatch.setattr(server, "warm", lambda verb: None)

    def fail(*arguments: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(failing, fail)
    before = sorted(Path("/proc/self/fd").iterdir())
    waker._start(WorkRequest(("build",), request_id=7))
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert b"cannot start a process: [Errno 11]" in os.read(answers, 4096)
    for descriptor in (requests, written, answers, responses, *waker.wakeup):
        os.close(descriptor)


def test_very_much_output_is_cut(of_bazel: Worker, tmp_path: Path) -> None:
    manifest = project(tmp_path / "in", "print('x' * 3_000_000)\nprint('the last')\n")
    output = of_bazel.ask(*build(manifest, tmp_path / "out")).output
    assert "bytes left out]" in output
    assert "the last" in output
    assert len(output) < 1_100_000


def test_a_request_that_kills_itself_is_answered(worker: AnyWorker, tmp_path: Path) -> None:
    response = worker.ask(*build(project(tmp_path / "in", SUICIDE), tmp_path / "out"))
    assert response.exit_code == 1
    assert "ended with SIGKILL" in response.output
    assert not list((tmp_path / "out").glob(".etbuild-*"))
    assert worker.ask("validate", MANIFESTS["mlp"]).exit_code == 0


def test_a_bug_keeps_its_traceback(of_bazel: Worker, tmp_path: Path) -> None:
    """An `OSError` with a file name is a bug if the user could not cause it."""
    response = of_bazel.ask("validate", MANIFESTS["mlp"], sandbox_dir="no/such/directory")
    assert response.exit_code == 1
    assert "Traceback" in response.output


@pytest.mark.parametrize("command", ["sleep 600", "setsid sleep 600"])
def test_nothing_is_left_of_a_request(command: str, worker: AnyWorker, tmp_path: Path) -> None:
    """No modules, seeds, or processes that a model started are left, also if these have left their parent and group."""
    pid = tmp_path / "pid"
    prefix = (
        "import os, pathlib, subprocess, torch\n"
        "assert 'ETBUILD_TEST' not in os.environ\nos.environ['ETBUILD_TEST'] = '1'\ntorch.set_num_threads(1)\n"
        f"subprocess.run('{command} > /dev/null & echo $! > {pid}', shell=True)\n"
    )
    manifest = project(tmp_path / "in", prefix)
    for number in range(2):
        response = worker.ask(*build(manifest, tmp_path / f"out{number}"))
        assert response.exit_code == 0, response.output
        wait_until(lambda: not alive(int(pid.read_text())))
    assert files(tmp_path / "out0") == files(tmp_path / "out1")


def test_two_requests_at_once(worker: AnyWorker, tmp_path: Path, slow: Callable[[AnyWorker], list[int]]) -> None:
    slow(worker)
    for number in (11, 12):
        worker.send(*build(project(tmp_path / f"in{number}"), tmp_path / f"out{number}"), request_id=number)
    assert {worker.receive().request_id for _ in range(2)} == {11, 12}
    assert files(tmp_path / "out11") == files(tmp_path / "out12")
    worker.send(request_id=77, cancel=True)
    assert worker.receive().request_id == 77


@pytest.mark.parametrize(("prefix", "seconds"), [(SLOW, 4.0), (STUBBORN, 15.0)], ids=["willing", "stubborn"])
def test_a_cancelled_request_ends_with_all_its_processes(
    worker: AnyWorker, tmp_path: Path, slow: Callable[[AnyWorker, str], list[int]], prefix: str, seconds: float
) -> None:
    processes = slow(worker, prefix)
    worker.send(request_id=77, cancel=True)
    worker.send(request_id=77, cancel=True)
    response = worker.receive(seconds)
    assert (response.request_id, response.was_cancelled) == (77, True)
    wait_until(lambda: not any(map(alive, processes)))
    assert not list((tmp_path / "slow_out").glob(".etbuild-*"))
    worker.send(request_id=77, cancel=True)  # too late, but Bazel cannot know that
    assert worker.ask("validate", MANIFESTS["mlp"], request_id=1).request_id == 1


def test_a_request_runs_in_its_sandbox(of_bazel: Worker, tmp_path: Path) -> None:
    project(tmp_path / "sandbox/in")
    (tmp_path / "sandbox/params").write_text("build\nin/model.yaml\n--no-cache\n-o\nout\n")
    response = of_bazel.ask("@params", sandbox_dir=str(tmp_path / "sandbox"))
    assert response.exit_code == 0, response.output
    assert sorted(files(tmp_path / "sandbox/out")) == ["net.index.json", "net.pte", "net.report.json"]
    assert of_bazel.ask("validate", "in/model.yaml").exit_code == 2  # no response to the cancelled request comes first


def test_a_request_sees_only_its_inputs(own_worker: Worker, tmp_path: Path) -> None:
    names = ["in/model.py", "in/model.yaml", "in/undeclared.txt"]
    looks = f"import os\nprint([os.path.exists(name) for name in {names}])\nopen('scratch', 'a').close()\n"
    project(tmp_path / "in", looks)
    (tmp_path / "in/undeclared.txt").touch()
    (tmp_path / "bazel-out").mkdir()
    arguments = ["build", "in/model.yaml", "--no-cache", "--source=model.py=in/model.py", "-o", "bazel-out/net"]
    response = own_worker.ask(*arguments, inputs=["in/model.yaml", "in/model.py", "bazel-out/made"])
    assert response.exit_code == 0, response.output
    assert "[True, True, False]" in response.output
    assert sorted(files(tmp_path / "bazel-out/net")) == ["net.index.json", "net.pte", "net.report.json"]
    assert not (tmp_path / "scratch").exists()


def test_the_end_of_requests_ends_a_worker_when_all_are_answered(own_worker: Worker, tmp_path: Path) -> None:
    own_worker.send(*build(project(tmp_path / "in"), tmp_path / "out"), request_id=3)
    assert own_worker.process.stdin
    own_worker.process.stdin.close()
    assert own_worker.receive().request_id == 3
    assert own_worker.process.wait(10) == 0
    assert (tmp_path / "out/net.pte").exists()


def test_a_worker_without_requests_ends(own_worker: Worker) -> None:
    assert own_worker.close() == 0


@pytest.mark.parametrize(
    "stream", [b"\xff" * 10, varint(4) + b"\x0a", framed(TYPES["WorkRequest"](arguments=["x"]))[:2]]
)
def test_a_damaged_stream_ends_a_worker(own_worker: Worker, stream: bytes) -> None:
    own_worker.send_bytes(stream)
    assert own_worker.close() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_worker_leaves_no_process(
    ending_worker: AnyWorker, tmp_path: Path, slow: Callable[[AnyWorker, str], list[int]], number: signal.Signals
) -> None:
    processes = slow(ending_worker, SLOW.replace('"sleep"', '"setsid", "sleep"'))
    ending_worker.process.send_signal(number)
    ending_worker.process.wait(10)
    wait_until(lambda: not any(map(alive, processes)))
    assert not list((tmp_path / "slow_out").glob(".etbuild-*"))


def test_a_worker_whose_responses_nobody_reads_ends(
    own_worker: Worker, tmp_path: Path, slow: Callable[[Worker], list[int]]
) -> None:
    processes = slow(own_worker)
    assert own_worker.process.stdout
    own_worker.process.stdout.close()
    own_worker.process.wait(10)
    wait_until(lambda: not any(map(alive, processes)))
    assert not list((tmp_path / "slow_out").glob(".etbuild-*"))
