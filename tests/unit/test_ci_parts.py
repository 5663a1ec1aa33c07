"""The component for GitLab fits its schema and our commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild.cli.main import command_parser

ROOT = Path(__file__).parents[2]
COMPONENT = "templates/programs.yml"


def documents(name: str) -> list[Any]:
    return [*yaml.safe_load_all((ROOT / name).read_text("utf-8"))]


def test_it_fits_its_schema(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    part = tmp_path / "programs.yml"
    part.write_text(yaml.safe_dump(documents(COMPONENT)[-1]))  # the first document has the inputs
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.gitlab-ci", str(part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def scripts() -> list[str]:
    return [line for job in documents(COMPONENT)[1].values() for line in job["script"]]


def test_each_command_is_one_that_etbuild_has() -> None:
    found = 0
    for script in scripts():
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0, script
        for command in re.findall(r"etbuild [^|<>\n}]*", script.replace("\\\n", " ")):
            words = shlex.split(command)[1:]
            words = [word for word in words if word != ";"]
            command_parser([words[0]]).parse_args(words)
            found += 1
    assert found >= 6


@pytest.mark.parametrize(
    "name", ["action.yml", COMPONENT, *(f"examples/ci/{service}.yml" for service in ("github", "gitlab", "buildkite"))]
)
def test_what_a_loop_over_manifests_runs_does_not_read_its_list(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    loops = re.findall(r"while read -r manifest; do(.*?)\bdone <", text, re.DOTALL)
    commands = [each for loop in loops for each in re.findall(r"\betbuild [^|;\n]*", loop)]
    assert len(commands) == 2
    assert all("< /dev/null" in command for command in commands)


def test_inputs_of_the_component_are_used() -> None:
    spec, _ = documents(COMPONENT)
    for name in spec["spec"]["inputs"]:
        assert f"$[[ inputs.{name} ]]" in (ROOT / COMPONENT).read_text("utf-8")
