"""The notebook of the examples runs, and prints what it shows."""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"


def run(source: str, namespace: dict[str, Any]) -> object:
    """Runs a cell. Returns the value of its last line, if that is an expression without a semicolon after it."""
    module = ast.parse(source)
    last = module.body.pop() if isinstance(module.body[-1], ast.Expr) and not source.endswith(";") else None
    exec(compile(module, "cell", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace) if isinstance(last, ast.Expr) else None


def output(value: object) -> list[dict[str, Any]]:
    """The output of a cell as a notebook stores it. Pages are left out, since each is half a megabyte."""
    if value is None:
        return []
    if hasattr(value, "_repr_html_"):
        value = Shown(value._repr_html_())
    data = {"text/plain": [repr(value)]}
    return [{"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}]


class Shown:
    """A page in a notebook.

    Attributes:
        page: The page in its frame.
    """

    def __init__(self, frame: str) -> None:
        source = re.search(r'srcdoc="([^"]*)"', frame)
        assert source
        self.page = html.unescape(source[1])

    def __repr__(self) -> str:
        title = re.search(r"<title>(.*?)</title>", self.page)
        assert title
        return f"<the page {title[1]}>"


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update_golden: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    namespace: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            printed = output(run("".join(cell["source"]), namespace))
            if update_golden:
                cell["outputs"] = printed
            assert cell["outputs"] == printed, "".join(cell["source"])
    if update_golden:
        NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
    compared = Shown(namespace["small"].program.page(against=namespace["built"].program)._repr_html_())
    assert "digits.int4.pte" in compared.page
