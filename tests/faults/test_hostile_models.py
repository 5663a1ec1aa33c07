"""Models that harm their process: a build ends with the right program, or with an error that names the cause. It never
succeeds without a program, hangs, or leaves a process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.commands import command, etbuild
from tests.helpers.manifests import one_method
from tests.helpers.worker_client import Worker, alive, wait_until

from .projects import artifacts

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4, 8), 0.5, dtype=torch.float32, device="cpu"))

    def forward(self, x):
        {in_forward}
        return torch.nn.functional.linear(x, self.weight).relu()

def create():
    {in_factory}
    return Net()
"""
MANIFEST = one_method()

# Actions of a model that do not prevent a build, by where it does them.
HARMLESS = {
    "changes the directory": "import os; os.chdir('/')",
    "removes its directory": "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "says 100 MB": "print('x' * 100_000_000)",
    "closes standard error": "import sys; sys.stderr.close()",
    "closes standard output": "import sys; sys.stdout.close()",
    "closes what they were": "import sys; sys.__stdout__.close(); sys.__stderr__.close()",
    "has no streams": "import sys; sys.stdout = sys.stderr = None",
    "has other streams": "import sys, io; sys.stdout = sys.stderr = io.StringIO()",
    "closes their descriptors": "import os; os.close(1); os.close(2)",
    "writes in their place": "import os; os.close(1); os.close(2); open('/dev/null'); open('/dev/null')",
    "has a thread for ever": "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
    "has a daemon": "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "forks a copy that goes on": "import os; os.fork()",
    "forks a copy that exits": "import os, sys; os.fork() or sys.exit(0)",
    "forks a copy that fails": "import os\n    if not os.fork(): raise RuntimeError('in the copy')",
    "forks a copy that waits": "import os, time; os.fork() or time.sleep(600)",
    "exits at exit": "import atexit, os; atexit.register(os._exit, 7)",
    "raises at exit": "import atexit; atexit.register(lambda: 1 / 0)",
    "hangs at exit": "import atexit, time; atexit.register(time.sleep, 3)",
    "takes signals": "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15, 1, 17)]",
    "has another default dtype": "torch.set_default_dtype(torch.float64)",
    "has deterministic algorithms": "torch.use_deterministic_algorithms(True)",
    "has other threads": "torch.set_num_threads(3)",
    "has another seed": "torch.manual_seed(5)",
    "has gradients off": "torch.set_grad_enabled(False)",
    "makes warnings errors": "import warnings; warnings.simplefilter('error')",
    "stops the collector": "import gc; gc.disable()",
    "recurses deeper": "import sys; sys.setrecursionlimit(100_000)",
    "has another locale": "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    "has a umask": "import os; os.umask(0o777)",
    "empties the environment": "import os; os.environ.clear()",
}
# Actions that make a build fail, and its message.
DEADLY = {
    "os._exit(0)": "ended with exit code 0 {where}, before its work was complete",
    "os._exit(9)": "ended with exit code 9 {where}, before its work was complete",
    "os.abort()": "ended with SIGABRT {where}",
    "os.kill(os.getpid(), 9)": "ended with SIGKILL {where}\n    the system usually sends SIGKILL when",
    "os.kill(os.getpid(), 11)": "ended with SIGSEGV {where}",
    "__import__('ctypes').string_at(0)": "ended with SIGSEGV {where}",
    "__import__('threading').Thread(target=os._exit, args=(0,)).start(); time.sleep(60)": "with exit code 0 {where}",
    "os.closerange(1, 4000); os._exit(0)": "ended with exit code 0 {where}",
    "signal.alarm(1); time.sleep(60)": "ended with SIGALRM {where}",
    "sys.exit(0)": "failed at model.py:{line}, in {function}: SystemExit: 0",
    "sys.exit()": "failed at model.py:{line}, in {function}: SystemExit",
    "raise KeyError('of mine')": "KeyError: 'of mine'",
    "raise BaseException('of mine')": "failed at model.py:{line}, in {function}: BaseException: of mine",
    "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})": "Odd: its `__str__` raised ZeroDivisionError",
    "f = lambda: f(); f()": "RecursionError: maximum recursion depth exceeded",
    "sys.stderr.close(); os.close(2); raise KeyError('heard')": "KeyError: 'heard'",
    "os.closerange(3, 400); raise KeyError('heard')": "KeyError: 'heard'",
}


def write(root: Path, in_factory: str = "pass", in_forward: str = "pass") -> Path:
    root.mkdir()
    imports = "import os, signal, sys, time\n"
    (root / "model.py").write_text(imports + MODEL.format(in_factory=in_factory, in_forward=in_forward))
    (root / "model.yaml").write_text(MANIFEST)
    return root / "model.yaml"


def arguments(manifest: Path, out: Path) -> list[str]:
    return ["build", str(manifest), "--no-cache", "-o", str(out)]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    started = Worker(tmp_path_factory.mktemp("worker"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def expected(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("expected")
    response = worker.ask(*arguments(write(root / "in"), root / "out"))
    assert response.exit_code == 0, response.output
    return (root / "out/net.pte").read_bytes()


@pytest.mark.parametrize("does", HARMLESS.values(), ids=HARMLESS)
def test_a_model_that_misuses_its_process_harmlessly_builds_the_same_program(
    does: str, worker: Worker, expected: bytes, tmp_path: Path
) -> None:
    response = worker.ask(*arguments(write(tmp_path / "in", does), tmp_path / "out"))
    assert response.exit_code == 0, response.output
    assert (tmp_path / "out/net.pte").read_bytes() == expected
    assert "net.pte" in response.output  # the table of results was printed
    assert (tmp_path / "out/net.pte").stat().st_mode & 0o777 == 0o644
    assert sorted(artifacts(tmp_path / "out")) == ["net.index.json", "net.pte", "net.report.json"]


# What a model changes in its process and lowering would see there, if the model ran in the same process.
LEFT_BEHIND = {
    "small numbers become zero": "torch.set_flush_denormal(True)",
    "numbers are rounded down": "import ctypes; ctypes.CDLL('libm.so.6').fesetround(0x400)",
    "a mode without `with`": "from torch.overrides import BaseTorchFunctionMode as Mode; Mode().__enter__()",
    "autocast": "torch.autocast('cpu', dtype=torch.bfloat16).__enter__()",
    "a partitioner without operators": (
        "from executorch.backends.xnnpack.partition import config; config.ALL_PARTITIONER_CONFIGS.clear()"
    ),
    "another way to write JSON": "import json, functools; json.dumps = functools.partial(json.dumps, indent=1)",
}
# Folding a batch norm multiplies weights, here to numbers so small that they lose digits.
FOLDED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return self.bn(self.conv(x))

def create():
    model = Net().eval()
    with torch.no_grad():
        model.conv.weight.mul_(3e-38)
        model.bn.weight.fill_(0.01)
    {does}
    return model
"""


@pytest.fixture(scope="module")
def lowered(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, bytes]]:
    """Builds `FOLDED`, and returns its program and report."""

    def build(does: str, jobs: int) -> dict[str, bytes]:
        root = tmp_path_factory.mktemp("folded")
        (root / "model.py").write_text(FOLDED.format(does=does))
        (root / "model.yaml").write_text(one_method("[1, 3, 8, 8]"))
        response = worker.ask(*arguments(root / "model.yaml", root / "out"), "--jobs", jobs)
        assert response.exit_code == 0, response.output
        return {name: (root / "out" / name).read_bytes() for name in ("net.pte", "net.report.json")}

    return build


@pytest.fixture(scope="module")
def undisturbed(lowered: Callable[[str, int], dict[str, bytes]]) -> dict[str, bytes]:
    return lowered("pass", 2)


@pytest.mark.parametrize("does", LEFT_BEHIND.values(), ids=LEFT_BEHIND)
def test_what_a_model_leaves_behind_does_not_reach_lowering(
    does: str, lowered: Callable[[str, int], dict[str, bytes]], undisturbed: dict[str, bytes]
) -> None:
    assert lowered(does, 1) == undisturbed


@pytest.mark.parametrize("does", DEADLY)
def test_a_model_that_ends_its_process_fails_the_build_with_the_reason(
    does: str, worker: Worker, tmp_path: Path
) -> None:
    said = DEADLY[does].format(where="in the stage `create the module`", line=14, function="create")
    response = worker.ask(*arguments(write(tmp_path / "in", does), tmp_path / "out"))
    assert response.exit_code == 1
    assert said in response.output
    assert "Traceback" not in response.output
    assert artifacts(tmp_path / "out") == {}


def test_an_exit_inside_of_forward(worker: Worker, tmp_path: Path) -> None:
    response = worker.ask(*arguments(write(tmp_path / "in", in_forward="os._exit(0)"), tmp_path / "out"))
    assert response.exit_code == 1
    assert "ended with exit code 0 in the stage `export forward`, before its work was complete" in response.output


@pytest.mark.parametrize("does", ["os._exit(0)", "os.kill(os.getpid(), 11)", "os.closerange(0, 4000); os._exit(0)"])
def test_the_command_line_never_ends_well_without_a_program(does: str, tmp_path: Path) -> None:
    done = etbuild(*arguments(write(tmp_path / "in", does), tmp_path / "out"))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"error: the build (ended with exit code 0|ended with SIGSEGV) in the stage `create the module`.*\n(.*\n)?",
        done.stderr,
    )
    assert not list((tmp_path / "out").glob("*.pte"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_model_that_asks_the_user_and_is_interrupted(jobs: int, tmp_path: Path) -> None:
    manifest = write(
        tmp_path / "in", "print(f'heard {sys.stdin.readline()}', file=sys.stderr); raise KeyboardInterrupt"
    )
    build = command(*arguments(manifest, tmp_path / "out"), "--jobs", jobs)
    done = subprocess.run(build, input="yes", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert "heard yes" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_without_standard_input(tmp_path: Path) -> None:
    build = command(*arguments(write(tmp_path / "in"), tmp_path / "out"), "--jobs", 2)
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *build], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "net.pte" in artifacts(tmp_path / "out")


def test_the_steps_of_build_rules_report_the_same_error(tmp_path: Path) -> None:
    manifest = write(tmp_path / "in", "os._exit(0)")
    plan = tmp_path / "export.json"
    assert etbuild("plan", manifest, "--plan", tmp_path / "plan.json", "--export-plan", plan).returncode == 0
    made = ["--inputs", tmp_path / "inputs.json", "-o", tmp_path / "export"]
    done = etbuild("export", plan, f"--source=model.py={manifest.with_name('model.py')}", *made)
    assert done.returncode == 1
    assert "error: the build ended with exit code 0 in the stage `create the module`" in done.stderr
    assert not (tmp_path / "export").exists()


def test_a_model_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    does = "import subprocess, pathlib; p = subprocess.Popen(['setsid', 'sleep', '600']); "
    does += f"pathlib.Path({str(pid)!r}).write_text(str(p.pid)); signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    done = etbuild(*arguments(write(tmp_path / "in", does), tmp_path / "out"), "--timeout", 6)
    assert done.returncode == 1
    said = r"error: the build took longer than 6 s, the limit of `--timeout`, and was stopped in the stage `(.*)`"
    stage = re.search(said, done.stderr)
    assert stage, done.stderr
    assert "Traceback" not in done.stderr
    if pid.exists():  # otherwise the imports take that long on this machine
        assert stage[1] == "create the module"
        assert not alive(int(pid.read_text()))


READS = """os.environ.get("MY_SCALE")
    os.environ.get("PYTHONHASHSEED")"""


def test_a_variable_that_is_set_and_builds_do_not_see(tmp_path: Path) -> None:
    manifest = write(tmp_path / "in", READS)
    build = ["build", manifest, "--cache-dir", tmp_path / "cache", "-o", tmp_path / "out"]
    done = etbuild(*build, environment={**os.environ, "MY_SCALE": "2"})
    assert done.returncode == 1
    assert "`MY_SCALE`, which is set, but builds do not see it" in done.stderr
    assert "`kwargs`" in done.stderr
    done = etbuild(*build)
    assert (done.returncode, done.stderr) == (0, "")
    assert "from the cache" in etbuild(*build).stdout


def test_a_build_that_exceeds_its_timeout_prints_one_error(tmp_path: Path) -> None:
    done = etbuild(*arguments(write(tmp_path / "in", "time.sleep(600)"), tmp_path / "out"), "--timeout", 3)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: the build took longer than 3 s, the limit of `--timeout`, and was stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_a_build_ends_the_process_that_builds(number: signal.Signals, tmp_path: Path) -> None:
    started = tmp_path / "pid"
    does = f"import pathlib; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    build = command(*arguments(write(tmp_path / "in", does), tmp_path / "out"))
    process = subprocess.Popen(build, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: started.exists() and started.read_text(), 60)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    killed = number == signal.SIGKILL  # then no process is left to print a message
    assert (process.returncode, said) == ((-number, "") if killed else (130, "etbuild: interrupted\n"))
    wait_until(lambda: not alive(int(started.read_text())))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_relative_output_is_where_the_command_was_given(tmp_path: Path) -> None:
    write(tmp_path / "in", "os.chdir('/tmp')")
    done = etbuild("build", "in/model.yaml", "--no-cache", "-o", "out", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/net.pte").exists()


def test_output_of_a_model_is_not_the_result(tmp_path: Path) -> None:
    does = "import ctypes; print('py'); os.write(1, b'fd'); ctypes.CDLL(None).printf(b'c')"
    done = etbuild(*arguments(write(tmp_path / "in", does), tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("artifact ")
    assert sorted(done.stderr.replace("\n", "")) == sorted("pyfdc")
