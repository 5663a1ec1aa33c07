"""What `etplugins.upstream` and `etplugins.accelerate` hold goes when upstream has fixed it: each file says what."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from etbuild import plugins, switches, workarounds
from etplugins.accelerate import occasions
from tests.conformance.upstream_limits import LIMITS

PLACE = Path(__file__).parents[2] / "toolchain/etplugins"
SHARED = {"__init__.py", "graph_changes.py", "emission.py", "lowering.py", "xnnpack.py"}
"""What several files use, and what the core asks."""
LIMITED = sorted(path.name for path in (PLACE / "upstream").glob("*.py") if path.name not in SHARED)
HELPERS = {"blob_files", "import_later", "occasions"}
"""What switches use, and what the core asks."""
SWITCHES = sorted({path.stem for path in (PLACE / "accelerate").glob("[!_]*.py")} - HELPERS)


@pytest.mark.parametrize("name", LIMITED)
def test_a_file_of_the_room_names_its_limits(name: str) -> None:
    where = f"etplugins/upstream/{name}"
    documented = ast.get_docstring(ast.parse((PLACE / "upstream" / name).read_text("utf-8"))) or ""
    named = re.findall(r"`([\w-]+)`", re.split(r"^Limits?: ", documented, flags=re.MULTILINE)[-1])
    assert set(named) == {limit.name for limit in LIMITS if limit.where == where} != set()


@pytest.mark.parametrize("name", SWITCHES)
def test_each_other_file_is_a_switch(name: str) -> None:
    """It has a context manager of its own name, which one of the occasions uses."""
    tree = ast.parse((PLACE / f"accelerate/{name}.py").read_text("utf-8"))
    assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    assert re.search(rf"\b{name}\b", Path(occasions.__file__).read_text("utf-8"))


def test_nothing_is_switched_or_worked_around_without_the_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "group", lambda name: {})
    assert type(workarounds.of_lowering()) is workarounds.OfLowering
    assert type(workarounds.of_backend("xnnpack")) is workarounds.OfBackend
    with switches.lowering(Path("nowhere"), 2), switches.on("exporting"), workarounds.of_lowering().around():
        assert workarounds.of_emission().passes(None, outputs=True) == []
