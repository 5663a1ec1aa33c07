"""The action for GitHub, the component for GitLab and the hooks for pre-commit fit their schemas and our commands."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from etbuild.cli.main import command_parser

ROOT = Path(__file__).parents[2]
CHECKER = ROOT / ".cache/checks/bin/check-jsonschema"
ACTION, COMPONENT, HOOKS = "action.yml", "templates/programs.yml", ".pre-commit-hooks.yaml"
SCHEMAS = {"vendor.github-actions": ACTION, "vendor.gitlab-ci": COMPONENT}


def documents(name: str) -> list[Any]:
    return [*yaml.safe_load_all((ROOT / name).read_text("utf-8"))]


@pytest.mark.skipif(not CHECKER.exists(), reason="`make test` installs check-jsonschema in .cache/checks")
@pytest.mark.parametrize(("schema", "name"), SCHEMAS.items())
def test_a_file_fits_its_schema(schema: str, name: str, tmp_path: Path) -> None:
    part = tmp_path / Path(name).name
    part.write_text(yaml.safe_dump(documents(name)[-1]))  # a component begins with a document of inputs
    command = [CHECKER, "--builtin-schema", schema, part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def scripts() -> list[str]:
    action = [step["run"] for step in documents(ACTION)[0]["runs"]["steps"] if "run" in step]
    component = [line for job in documents(COMPONENT)[1].values() for line in job["script"]]
    return [*action, *component, *(f"{hook['entry']} {' '.join(hook.get('args', ()))}" for hook in documents(HOOKS)[0])]


def test_each_command_is_one_that_etbuild_has() -> None:
    found = 0
    for script in scripts():
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0, script
        plain = re.sub(r"\$\{BEFORE:\+(.*?)\}", r"\1", script.replace("\\\n", " "))
        for command in re.findall(r"etbuild [^|>\n}]*", plain):
            words = shlex.split(command)[1:]
            words = [word for word in words if word != ";"]
            words += ["models"] if words == ["validate"] else []  # pre-commit adds the names of files
            command_parser([words[0]]).parse_args(words)
            found += 1
    assert found >= 12


def test_inputs_of_the_component_and_of_the_action_are_used() -> None:
    action, (spec, _) = documents(ACTION)[0], documents(COMPONENT)
    for name in spec["spec"]["inputs"]:
        assert f"$[[ inputs.{name} ]]" in (ROOT / COMPONENT).read_text("utf-8")
    for name in action["inputs"]:
        assert re.search(rf"inputs\.{name}\b", (ROOT / ACTION).read_text("utf-8"))
    readme = (ROOT / "README.md").read_text("utf-8")
    [install] = [step for step in action["runs"]["steps"] if step["name"] == "Install"]
    torch = re.search(r"torch==\S+", readme)
    assert torch is not None
    assert torch[0] in install["run"]
