"""Kills builds of a real program, and builds it without disk space or file descriptors, or with failing calls.

`run_campaign.py` does the same for any length of time.
"""

from __future__ import annotations

import errno
import json
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from etbuild.cli import main
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache

from .campaign import Campaign, ServedCampaign, places, published
from .disk import Disk
from .projects import command


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("campaign"), seed=5)


@pytest.fixture
def hit(campaign: Campaign) -> list[str]:
    """Options of a build that finds the program in the cache."""
    shutil.rmtree(campaign.cache)
    shutil.copytree(campaign.filled, campaign.cache)
    return ["--cache-dir", str(campaign.cache)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "number"),
    [("cold", signal.SIGKILL), ("hit", signal.SIGKILL), ("hit", signal.SIGTERM), ("hit", signal.SIGINT)],
)
def test_a_killed_build_leaves_right_files_and_no_leftovers(
    campaign: Campaign, mode: str, number: signal.Signals
) -> None:
    campaign.kill(mode, number)
    assert campaign.result()["findings"] == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCampaign]:
    with tempfile.TemporaryDirectory(prefix="w") as place:
        campaign = ServedCampaign(tmp_path_factory.mktemp("served"), 5, Path(place))
        yield campaign
        campaign.stop()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("mode", ["cold", "joint"])
def test_a_killed_build_of_a_warm_process_leaves_right_files_and_no_process(
    served: ServedCampaign, mode: str, number: signal.Signals
) -> None:
    served.kill(mode, number)
    assert served.result()["findings"] == []


@pytest.fixture(scope="module")
def uses(campaign: Campaign) -> dict[str, list[str]]:
    """The uses of files that can fail, by the mode of a build."""
    return {mode: campaign.inject(mode, 0, errno.ENOSPC) for mode in ("hit", "cold")}


def test_faults_reach_the_process_that_builds(uses: dict[str, list[str]]) -> None:
    for mode, found in uses.items():
        assert any("/export/" in use for use in found) == (mode == "cold")
        # It is published by the process that builds or finds it.
        assert any(use.startswith("os.rename ") and use.endswith("/net.pte") for use in found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "error"),
    [("hit", errno.ENOSPC), ("hit", errno.EIO), ("hit", errno.EMFILE), ("hit", errno.ENOLCK), ("cold", errno.ENOSPC)],
)
def test_a_file_error_in_a_build_leaves_right_files_and_a_clear_error(
    campaign: Campaign, uses: dict[str, list[str]], mode: str, error: int
) -> None:
    campaign.inject(mode, campaign.chance.choice(places(uses[mode], error)), error)
    assert campaign.result()["findings"] == []


def test_a_build_on_a_full_disk_fails_clearly_and_loses_no_entry(
    campaign: Campaign, hit: list[str], disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = set()
    for size in (4096, 8192, 12_288, 16_384, 20_480, 1 << 20):
        disk.mount(size)
        code = main.main(["build", str(campaign.manifest), "-o", str(disk.place), *hit])
        said = capsys.readouterr().err
        codes.add(code)
        assert published(disk.place) == (campaign.right if code == 0 else {})
        assert code == 0 or "cannot write the file: No space left on device" in said
        assert code == 0 or f"is there room in {disk.place}?" in said
        assert list(disk.place.glob(".*")) == []
    assert codes == {0, 1}
    assert cache_upkeep.verify(Cache(campaign.cache)) == []


def test_a_full_directory_of_temporary_files_loses_no_entry(
    campaign: Campaign,
    hit: list[str],
    disk: Disk,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main.main(["build", str(campaign.manifest), "-o", str(campaign.out), *hit, "--json"])
    key = json.loads(capsys.readouterr().out)["key"]
    disk.mount(4096)
    monkeypatch.setattr(tempfile, "tempdir", str(disk.place))
    assert main.main(["explain", key, *hit]) == 1
    assert f"No space left on device\n    is there room in {disk.place}?" in capsys.readouterr().err
    disk.mount(1 << 20)
    assert main.main(["explain", key, *hit]) == 0
    assert list(disk.place.iterdir()) == []


@pytest.mark.parametrize("files", [8, 9, 14])
def test_a_build_without_file_descriptors_fails_clearly_or_succeeds(
    campaign: Campaign, hit: list[str], tmp_path: Path, files: int
) -> None:
    limited = ["prlimit", f"--nofile={files}", *command(campaign.manifest, tmp_path / "out", *hit)]
    done = subprocess.run(limited, capture_output=True, text=True)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "Too many open files" in done.stderr
    assert published(tmp_path / "out") == (campaign.right if done.returncode == 0 else {})
    assert cache_upkeep.verify(Cache(campaign.cache)) == []


def test_concurrent_and_killed_builds_into_one_directory_leave_the_right_program(
    campaign: Campaign, hit: list[str], tmp_path: Path
) -> None:
    chance = random.Random(1)
    crowd = [subprocess.Popen(command(campaign.manifest, tmp_path, *hit), stdout=subprocess.DEVNULL) for _ in range(5)]
    for process in chance.sample(crowd, 2):
        process.kill()
    assert {process.wait() for process in crowd} <= {0, -signal.SIGKILL}
    assert main.main(["build", str(campaign.manifest), "-o", str(tmp_path), *hit]) == 0
    assert published(tmp_path) == campaign.right
    assert list(tmp_path.glob(".*")) == []
