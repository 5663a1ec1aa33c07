"""What `etbuild.upstream` holds goes when upstream has fixed it: each file says what."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.conformance.upstream_limits import LIMITS

ETBUILD = Path(__file__).parents[2] / "toolchain/etbuild"
ROOM = ETBUILD / "upstream"
SHARED = {"__init__.py", "graph_changes.py"}
LIMITED = sorted(path.name for path in ROOM.glob("*.py") if path.name not in SHARED)
SWITCHES = sorted(path.stem for path in (ROOM / "accelerate").glob("*.py") if path.name not in SHARED)


@pytest.mark.parametrize("name", LIMITED)
def test_a_file_of_the_room_names_its_limits(name: str) -> None:
    documented = ast.get_docstring(ast.parse((ROOM / name).read_text("utf-8"))) or ""
    named = re.findall(r"`([\w-]+)`", re.split(r"^Limits?: ", documented, flags=re.MULTILINE)[-1])
    assert set(named) == {limit.name for limit in LIMITS if limit.where == f"upstream/{name}"} != set()


@pytest.mark.parametrize("name", SWITCHES)
def test_each_other_file_is_a_switch(name: str) -> None:
    """It has a context manager of its own name, and code outside the room uses it."""
    defined = {
        each.name
        for each in ast.parse((ROOM / f"accelerate/{name}.py").read_text("utf-8")).body
        if isinstance(each, ast.FunctionDef)
    }
    users = [path.read_text("utf-8") for path in ETBUILD.rglob("*.py") if path.stem != name]
    assert name in defined
    assert any(re.search(rf"\b{name}\b", text) for text in users)
