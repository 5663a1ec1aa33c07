"""Writes the tables of figures in docs/comparison.md from the results of the benchmarks.

    python -m tools.write_comparison

Each table stands between two comments, `<!-- NAME: COMMAND -->` and `<!-- end of NAME -->`. A test compares the page
with the output of this script.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/comparison.md"
_RESULTS = ROOT / "benchmarks/results"
_NAMES = {
    "ours": "`etbuild build`",
    "optimum": "optimum-executorch",
    "export_llm": "`export_llm`",
    "plain": "plain script",
    "transformers": "transformers' exporter",
}
Row = dict[str, Any]


def filled(page: str) -> str:
    """Returns the text of the page with its tables from the results.

    Raises:
        KeyError: The page has a table that this module does not know, or a result has no such figure.
    """
    tables = {"language models": _language_models(), "plain script": _plain_script(), "families": _families()}

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n\n{tables[found[2]]}\n\n<!-- end of {found[2]} -->"

    return re.sub(r"(<!-- ([a-z ]+): [^\n]*-->)\n.*?<!-- end of \2 -->", table, page, flags=re.DOTALL)


def _language_models() -> str:
    sections = json.loads((_RESULTS / "llm.json").read_text("utf-8"))["sections"]
    shown = {
        "programs": "Qwen 3, 8 layers, 4 bits",
        "lfm2, float32": "LFM2, float32",
        "qwen3_5, float32": "Qwen 3.5, float32",
    }
    columns = [
        "model",
        "built by",
        "CPU s",
        "wall s",
        "peak MB",
        "size MB",
        "planned MB",
        "prefill, times ours",
        "decode, times ours",
    ]
    rows = [
        [model, _NAMES[name], *_build(row), _ratio(row, "prefill"), _ratio(row, "decode")]
        for section, model in shown.items()
        for name, row in sections[section].items()
    ]
    return _table(columns, rows)


def _build(row: Row) -> list[str]:
    return [f"{row[key]:.0f}" for key in ("export CPU s", "export s", "peak MB")] + [
        f"{row[key]:.1f}" for key in ("size MB", "planned MB")
    ]


def _ratio(row: Row, phase: str) -> str:
    low, high = row[f"{phase} low"], row[f"{phase} high"]
    return "1" if low == high else f"{row[f'{phase} / ours']:.2f} ({low:.2f} to {high:.2f})"


def _plain_script() -> str:
    programs = json.loads((_RESULTS / "lowering.json").read_text("utf-8"))["sections"]["bars"]
    zoo = json.loads((_RESULTS / "zoo.json").read_text("utf-8"))
    rows = [
        [row["program"], *(f"{row[key]:.1f}" for key in ("plain", "cold", "warm", "hit")), f"{row['cold / plain']:.2f}"]
        for row in programs
    ]
    ratio = zoo["summary"]["cold / plain"]
    models = f"{len(zoo['models'])} models of many kinds: median, worst"
    rows.append([models, "", "", "", "", f"{ratio['median']:.2f}, {ratio['worst']:.2f}"])
    return _table(
        ["program", "script, s", "`etbuild`, no cache, s", "warm worker, s", "from the cache, s", "no cache / script"],
        rows,
    )


def _families() -> str:
    families = [json.loads(line) for line in (_RESULTS / "families.jsonl").read_text("utf-8").splitlines()]
    tried = [row for row in families if row.get("by_transformers")]
    ours = sum(row["works"] for row in tried)
    theirs = [sum(_all_equal(row[key]) for row in tried) for key in ("by_transformers", "by_optimum")]
    counts = zip(("ours", "transformers", "optimum"), (ours, *theirs), strict=True)
    return _table(
        ["built by", "families that give every token"], [[_NAMES[name], f"{n} of {len(tried)}"] for name, n in counts]
    )


def _all_equal(tokens: str) -> bool:
    found = re.fullmatch(r"(\d+) of (\d+)", tokens)
    return bool(found and found[1] == found[2])


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:" for _ in columns[1:]]], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
