"""An edit of the driver runs exactly the steps whose code it changes, on the command line and in Bazel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bazel.test_edits import ADAPTED, BUILD, MANIFEST, MODEL, write_adapter, write_weights
from tests.helpers.driver_edits import EDITS, Edit
from tests.helpers.workspaces import REPOSITORY, WORKERS, Workspace, log_entries

PROGRAMS = ("net", "adapted")
ACTIONS = {"net": Counter(lower=2), "adapted": Counter(lower=3)}
"""How many actions a step has, if not one: each of several methods has one, and so has the program."""


def write_programs(directory: Path) -> None:
    """Writes the manifests of both programs and what they read."""
    (directory / "lora/math").mkdir(parents=True)
    texts = {"net.yaml": MANIFEST, "adapted.yaml": ADAPTED, "model.py": MODEL, "unused.py": "", "tokenizer.json": "{}"}
    texts["lora/math/adapter_config.json"] = json.dumps({"peft_type": "LORA", "r": 2, "target_modules": ["up"]})
    for name, text in texts.items():
        (directory / name).write_text(text)
    write_weights(directory / "net.safetensors", 0.0)
    write_adapter(directory / "lora/math/adapter_model.safetensors", 0.5)


class CommandLine:
    """A copy of the driver, and a cache with both programs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.toolchain = directory / "toolchain"
        shutil.copytree(REPOSITORY / "toolchain", self.toolchain, ignore=shutil.ignore_patterns("__pycache__"))
        write_programs(directory / "programs")

    def steps(self, program: str) -> set[str]:
        """Builds a program. Returns the steps that ran."""
        manifest, directory = self.directory / f"programs/{program}.yaml", self.directory
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "etbuild",
            "build",
            manifest,
            "--json",
            "-o",
            directory / "out",
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.toolchain), "ETBUILD_NO_SERVER": "1"}
        environment["ETBUILD_CACHE_DIR"] = str(directory / "cache")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ran: dict[str, str] = json.loads(done.stdout[done.stdout.index("{") :])["steps"]
        return {step for step, how in ran.items() if how == "run"}


@pytest.fixture(scope="module")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    made = CommandLine(tmp_path_factory.mktemp("command_line"))
    for program in PROGRAMS:
        assert made.steps(program) == {"export", "lower", "compare", "report"}
    return made


@pytest.fixture(scope="module")
def workspace(checkout: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, str]]:
    """Both programs in a package, built, and the option of the cache that has them. No target names its plug-ins."""
    directory = checkout.directory / "driver_edits"
    write_programs(directory)
    checkout.write(
        "driver_edits/BUILD",
        re.sub(r"    plugins = .*\n", "", BUILD).replace('_as = {"adapter', '_as = {"lora/math/adapter'),
    )
    cache = f"--disk_cache={tmp_path_factory.mktemp('driver_edits')}"
    assert ran(checkout, cache) == {
        program: ACTIONS[program] + Counter(plan=1, export=1, compare=1, report=1) for program in PROGRAMS
    }
    yield checkout, cache
    shutil.rmtree(directory)


def ran(workspace: Workspace, cache: str) -> dict[str, Counter[str]]:
    """Builds both programs. Returns the numbers of actions that ran, by program and step."""
    workspace.build(*(f"//driver_edits:{program}" for program in PROGRAMS), cache, *WORKERS)
    found = {program: Counter[str]() for program in PROGRAMS}
    for entry in log_entries(workspace.output_root / "execution.log"):
        step = entry["mnemonic"].removeprefix("Executorch").lower()
        if entry.get("remoteCacheHit") or entry.get("cacheHit") or step in ("publish", "copydriver"):
            continue
        [program] = {name for name in PROGRAMS if f"/driver_edits/{name}." in entry["listedOutputs"][0]}
        found[program][step] += 1
    return found


@pytest.mark.long
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_the_command_line_runs_the_steps_whose_code_changes(command_line: CommandLine, edit: Edit) -> None:
    with edit.made(command_line.toolchain):
        assert {program: command_line.steps(program) for program in PROGRAMS} == {
            program: edit.steps(program, in_rules=False) for program in PROGRAMS
        }


@pytest.mark.long
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_bazel_runs_the_actions_whose_code_changes(workspace: tuple[Workspace, str], edit: Edit) -> None:
    checkout, cache = workspace
    with edit.made(checkout.directory / "toolchain"):
        expected = {program: edit.steps(program, in_rules=True) for program in PROGRAMS}
        assert ran(checkout, cache) == {
            program: Counter({step: ACTIONS[program][step] or 1 for step in steps})
            for program, steps in expected.items()
        }
    assert not any(ran(checkout, cache).values())
