"""`etbuild watch`: a build after each change, errors included."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tests.helpers.worker_client import descendants, wait_until

from .conftest import MANIFEST, MODEL

WAIT_SECONDS = 90
QUIET_SECONDS = 2.0  # longer than a watch needs to notice a change


class Watch:
    """A running `etbuild watch`."""

    def __init__(self, root: Path, out: str, manifest: str = MANIFEST, *others: Path) -> None:
        self.root = root
        self.out = out
        (root / "model.yaml").write_text(manifest)
        (root / "model.py").write_text(MODEL)
        command = [sys.executable, "-m", "etbuild", "watch", str(root / "model.yaml"), *map(str, others)]
        command += ["-o", str(root / out), "--cache-dir", str(root / ".cache")]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self.process.stdout
        self.output = self.process.stdout.fileno()

    def turn(self) -> str:
        """Returns the output until everything is built."""
        until, said = time.monotonic() + WAIT_SECONDS, b""
        while not said.endswith(b"watching; Ctrl-C ends it\n"):
            ready, _, _ = select.select([self.output], [], [], max(0.0, until - time.monotonic()))
            assert ready, said
            data = os.read(self.output, 1 << 16)
            assert data, said
            said += data
        return said.decode()

    def assert_quiet(self) -> None:
        """Checks that the watch has not noticed a change: its own outputs do not count."""
        ready, _, _ = select.select([self.output], [], [], QUIET_SECONDS)
        assert not ready, os.read(self.output, 1 << 16)

    def program(self) -> bytes:
        return (self.root / "net.pte").read_bytes()


@pytest.fixture
def watch(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watch]:
    running = Watch(tmp_path, getattr(request, "param", "."))
    yield running
    running.process.kill()
    running.process.wait()


def test_each_change_is_built_and_an_error_ends_nothing(watch: Watch) -> None:
    watch.turn()
    watch.assert_quiet()
    first = watch.program()
    (watch.root / "model.py").write_text(MODEL.replace(".relu()", ".sigmoid()"))
    assert f"changed: {watch.root / 'model.py'}" in watch.turn()
    assert watch.program() != first
    (watch.root / "model.yaml").write_text(MANIFEST.replace("xnnpack", "xnnpak"))
    assert "did you mean `xnnpack`?" in watch.turn()
    (watch.root / "model.yaml").write_text(MANIFEST)
    (watch.root / "model.py").write_text(MODEL)
    said = watch.turn()
    if watch.program() != first:  # the watch noticed the two edits one after the other
        said = watch.turn()
    assert watch.program() == first
    assert "error" not in said
    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(WAIT_SECONDS) == 0


SLOW = "import time\n" + MODEL.replace("def create():", "def create():\n    time.sleep(60)")


def unfinished(watch: Watch) -> list[Path]:
    """The directories of a build that is not finished. They are where its artifacts will be."""
    return list((watch.root / watch.out).glob(".etbuild-*"))


def building(watch: Watch) -> int:
    """The process that builds."""
    wait_until(lambda: unfinished(watch), WAIT_SECONDS)
    return descendants(watch.process.pid)[0]


@pytest.mark.parametrize("watch", ["out"], indirect=True)
def test_a_killed_build_ends_nothing_and_an_interrupted_one_leaves_nothing(watch: Watch) -> None:
    watch.turn()
    watch.assert_quiet()
    (watch.root / "model.py").write_text(SLOW)
    os.kill(building(watch), signal.SIGKILL)
    assert "ended with SIGKILL" in watch.turn()
    (watch.root / "model.py").write_text(MODEL)
    assert "error" not in watch.turn()
    (watch.root / "model.py").write_text(SLOW)
    building(watch)
    time.sleep(1)  # a directory that is being made at this moment would stay until the next build
    os.killpg(watch.process.pid, signal.SIGINT)
    assert watch.process.wait(WAIT_SECONDS) == 0
    assert unfinished(watch) == []


def test_each_of_several_manifests_is_built_once(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(MANIFEST.replace("name: net", "name: other"))
    running = Watch(tmp_path, ".", MANIFEST, other)
    try:
        said = running.turn()
        assert [said.count(f"{tmp_path / name}.pte ") for name in ("net", "other")] == [1, 1], said
    finally:
        running.process.kill()
        running.process.wait()


def test_a_change_behind_a_link_is_built(tmp_path: Path) -> None:
    """As in the cache of a hub: the link stays, and the file that it leads to changes or is replaced."""
    hub, root = tmp_path / "hub", tmp_path / "project"
    for directory in (hub, root):
        directory.mkdir()

    def weights(value: float) -> bytes:
        content: bytes = save({"linear.weight": torch.full((4, 8), value), "linear.bias": torch.zeros(4)})
        return content

    (hub / "blob").write_bytes(weights(1.0))
    (root / "net.safetensors").symlink_to(hub / "blob")
    manifest = MANIFEST.replace('factory: "model:create"', 'factory: "model:create"\n  weights: net.safetensors')
    running = Watch(root, ".", manifest)
    try:
        assert "error" not in running.turn()
        programs = {running.program()}
        (hub / "other").write_bytes(b"nothing reads this")
        running.assert_quiet()
        (hub / "blob").write_bytes(weights(2.0))
        assert f"changed: {hub / 'blob'}" in running.turn()
        programs.add(running.program())
        (hub / "next").write_bytes(weights(3.0))
        (hub / "next").replace(hub / "blob")
        running.turn()
        programs.add(running.program())
        (hub / "blob").write_bytes(weights(4.0))
        running.turn()
        programs.add(running.program())
        assert len(programs) == 4
    finally:
        running.process.kill()
        running.process.wait()


def test_each_checkpoint_is_built_with_its_seconds(tmp_path: Path) -> None:
    """As training writes them: a new file takes the place of the one that the manifest names."""
    manifest = MANIFEST.replace('factory: "model:create"', 'factory: "model:create"\n  weights: net.safetensors')

    def write(value: float) -> None:
        content = save({"linear.weight": torch.full((4, 8), value), "linear.bias": torch.zeros(4)})
        (tmp_path / "next").write_bytes(content)
        (tmp_path / "next").replace(tmp_path / "net.safetensors")

    write(1.0)
    running = Watch(tmp_path, ".", manifest)
    took = re.compile(rf"^built {re.escape(str(tmp_path / 'model.yaml'))} in \d+\.\d s$", re.MULTILINE)
    try:
        assert len(took.findall(running.turn())) == 1
        running.assert_quiet()
        first = running.program()
        write(2.0)
        said = running.turn()
        assert f"changed: {tmp_path / 'net.safetensors'}" in said
        assert len(took.findall(said)) == 1
        assert running.program() != first
        running.assert_quiet()
        (tmp_path / "net.safetensors").write_bytes(b"this is not a checkpoint")
        said = running.turn()
        assert "error" in said
        assert not took.findall(said)
    finally:
        running.process.kill()
        running.process.wait()


def test_a_checkpoint_that_training_writes_all_the_time_is_built(tmp_path: Path) -> None:
    """In place, as `torch.save` does, beside files that no build reads."""
    manifest = MANIFEST.replace('factory: "model:create"', 'factory: "model:create"\n  weights: net.pt')
    done, value = threading.Event(), 0.0

    def train() -> None:
        nonlocal value
        while not done.wait(0.3):
            value += 1.0
            torch.save({"linear.weight": torch.full((4, 8), value), "linear.bias": torch.zeros(4)}, tmp_path / "net.pt")
            (tmp_path / "train.log").write_text(f"{value}\n")

    training = threading.Thread(target=train)
    training.start()
    wait_until(lambda: value > 1, WAIT_SECONDS)
    running = Watch(tmp_path, ".", manifest)
    try:
        for _ in range(3):
            said = running.turn()
            assert "error" not in said
            assert "train.log" not in said
    finally:
        done.set()
        training.join()
        running.process.kill()
        running.process.wait()


def test_only_changes_of_what_builds_read_are_built(watch: Watch) -> None:
    watch.turn()
    (watch.root / "notes.txt").write_text("nothing reads this")
    watch.assert_quiet()
    (watch.root / "model.yaml").write_text(MANIFEST + "tokenizer: vocab.txt\n")
    assert "there is no file `vocab.txt`" in watch.turn()
    (watch.root / "vocab.txt").write_text("a")
    assert f"changed: {watch.root / 'vocab.txt'}" in watch.turn()


@pytest.mark.parametrize("name", ["nowhere/model.yaml", "missing.yaml"])
def test_a_manifest_that_is_not_there_is_told_before_torch_is_imported(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "etbuild", "watch", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such file or directory" in done.stderr
    assert "executorch" not in [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]


METRIC = """
def total(program, data):
    return float(program.method("forward")(__import__("torch").ones(2, 8))[0].sum())
"""


def test_each_checkpoint_has_a_line_and_the_best_is_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.py").write_text(METRIC)
    (tmp_path / "steps").mkdir()

    def checkpoint(number: int, value: float) -> None:
        state = {"linear.weight": torch.full((4, 8), value), "linear.bias": torch.zeros(4)}
        (tmp_path / f"new{number}").write_bytes(save(state))
        (tmp_path / f"new{number}").rename(tmp_path / f"steps/step_{number}.safetensors")

    checkpoint(1, 1.0)
    manifest = MANIFEST.replace(
        'factory: "model:create"', 'factory: "model:create"\n  weights: steps/step_1.safetensors'
    )
    manifest += "checks:\n  metric: {factory: 'metrics:total', min: 0}\n"
    options = ["--weights", str(tmp_path / "steps/step_*.safetensors"), "--html", str(tmp_path / "watch.html")]
    running = Watch(tmp_path, "out", manifest, *map(Path, [*options, "--keep-best", "metric"]))
    try:
        said = running.turn()
        assert re.search(r"^net\.step_1, \S+ s, \S+ k?B, .*metric 64, the best so far$", said, re.MULTILINE), said
        checkpoint(2, 0.5)
        said = running.turn()
        assert re.search(r"^net\.step_2, .*metric 32$", said, re.MULTILINE), said
        assert "net.step_1," not in said
        assert {path.name for path in (tmp_path / "out/best").glob("*.pte")} == {"net.step_1.pte"}
        checkpoint(3, 2.0)
        said = running.turn()
        assert re.search(r"^net\.step_3, .*metric 128, the best so far$", said, re.MULTILINE), said
        assert {path.name for path in (tmp_path / "out/best").glob("*.pte")} == {"net.step_3.pte"}
        assert (tmp_path / "watch.html").read_text().count("<circle") == 12
    finally:
        running.process.kill()
        running.process.wait()


def test_a_check_that_the_manifest_lacks_is_an_error(tmp_path: Path) -> None:
    running = Watch(tmp_path, "out", MANIFEST, Path("--keep-best"), Path("metric"))
    assert running.process.wait(WAIT_SECONDS) == 2
    said = os.read(running.output, 1 << 16).decode()
    assert "the manifest has no `checks.metric`" in said
