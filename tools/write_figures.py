"""Writes the pages of figures from the results of the benchmarks: benchmarks/results/*.md and *.svg, tables in docs.

    python -m tools.write_figures

A table in docs stands between two comments, `<!-- NAME: COMMAND -->` and `<!-- end of NAME -->`. Each page names the
commit that was measured. A test compares the pages with the output of this script, and another one looks how old they
are.
Pictures with matplotlib are drawn if it is installed (`benchmarks/requirements.txt`).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import ROOT, Results, Row
from benchmarks.incremental.plot import drawn

DOCS = ROOT / "docs"
EDITS = DOCS / "images/edit-cost.svg"
STAMPS = "measured"
"""The file with the commits of results that have no place for them."""
PAGES = {
    "zoo": "Zoo",
    "incremental": "What an edit costs",
    "lowering": "Lowering",
    "growth": "Growth",
    "latency": "Latency of programs",
    "llm": "Language models",
    "comparison": "What the comparison costs",
    "checkpoints": "New checkpoints",
    "memory": "Memory of packed checkpoints",
    "outside": "What stays outside of delegates",
    "estimates": "What is said before a build",
    "bazel": "Actions of Bazel",
    "monorepo": "Many programs in Bazel",
    "upgrades": "What upgrades of the driver rebuild",
}
"""The titles of the benchmarks' own pages."""
OWN = ("families", "families-of-tasks", "bytes", "fuzz", "faults")
"""Results whose pages have a form of their own, and name only the commit in a table of this module."""
DRAWN = ("zoo", "lowering", "growth")
_NAMES = {
    "ours": "`etbuild build`",
    "optimum": "optimum-executorch",
    "export_llm": "`export_llm`",
    "plain": "plain script",
    "transformers": "transformers' exporter",
}


def page(name: str, results: Results) -> str:
    """A benchmark's own page: what its command says, and all sections."""
    source = (ROOT / "benchmarks" / name / "run.py").read_text("utf-8")
    about = ast.get_docstring(ast.parse(source)) or ""
    machine = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines = [f"# {PAGES[name]}", about, f"`python -m benchmarks.run --only {name} --write` writes this page."]
    lines.append(f"The machine: {machine}.")
    for section, rows in results["sections"].items():
        notes = [f"- {next(iter(row.values()))}: {note}" for row in rows for note in row.get("notes", ())]
        lines += [f"## {section}", said(results, [section]), frame.table(rows), "\n".join(notes)]
    return "\n\n".join(filter(None, lines)) + "\n"


def said(results: Results, sections: list[str]) -> str:
    """Which commits were measured."""
    made = dict.fromkeys(_said(results["measured"][section]) for section in sections)
    return f"Measured at {', '.join(made)}."


def _said(origin: Row) -> str:
    loaded = ", while the machine did other work" if origin.get("loaded") else ""
    later = " or later" if origin.get("later") else ""  # rows that were measured one by one
    return f"commit `{origin['commit']}`{later}{loaded}"


def filled(text: str) -> str:
    """Returns the text of a page with its tables from the results.

    Raises:
        KeyError: A result has no such figure.
    """

    def table(found: re.Match[str]) -> str:
        return "\n\n".join(filter(None, [found[1], TABLES[found[2]](), f"<!-- end of {found[2]} -->"]))

    names = "|".join(TABLES)
    return re.sub(rf"(<!-- ({names}): [^\n]*-->)\n.*?<!-- end of \2 -->", table, text, flags=re.DOTALL)


def _edits() -> str:
    found = frame.read("incremental")
    rows = [{**row, "s": f"{row['s']:.2f}", "Bazel s": f"{row['Bazel s']:.2f}"} for row in found["sections"]["edits"]]
    one = found["sections"]["plain script"][0]
    machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items() if key in ("python", "torch"))
    lines = [
        f"plain script, which rebuilds: {one['plain s']:.2f} s; `etbuild build` from the cache: "
        f"{one['from the cache s']:.2f} s, peak {one['from the cache MB']:.0f} MB",
        f"ratio: {one['ratio']:.1f} (pairs: {one['ratio low']:.1f} to {one['ratio high']:.1f}; medians of "
        f"{one['runs']}); same .pte bytes",
        f"machine: {found['machine']['processors']} processors, {machine}",
        said(found, ["edits"]),
    ]
    return "\n".join([frame.table(rows), "", *(f"- {line}" for line in lines)])


def _upgrades() -> str:
    found = frame.read("upgrades")
    rows = [
        {**row, "median": f"{row['median']:.0%}", "mean": f"{row['mean']:.0%}"} for row in found["sections"]["keys"]
    ]
    return f"{frame.table(rows)}\n\n{said(found, ['keys'])}"


def _monorepo() -> str:
    found = frame.read("monorepo")
    shown: list[Row] = []
    sections = {name: rows for name, rows in found["sections"].items() if "real driver" not in name}
    for section, rows in sections.items():
        bazel, _, what = section.partition(", ")
        for row in rows:
            edit = row.get("build after an edit of")
            shown.append({"": f"{what}: {edit}" if edit else what, "Bazel": bazel.removeprefix("bazel ")})
            shown[-1] |= {"wall s": row.get("seconds", ""), "processor s": row.get("processor_seconds", "")}
            shown[-1] |= {"MB": row.get("megabytes", ""), "actions": row.get("actions", "")}
            named = {"heap_megabytes": "heap MB", "links": "runfiles", "bytes_of_lists": "bytes of their lists"}
            shown[-1] |= {title: row[key] for key, title in named.items() if key in row}
    return f"{frame.table(shown)}\n\n{said(found, list(sections))}"


def _mutations() -> str:
    found = json.loads((frame.RESULTS / "mutations.json").read_text("utf-8"))
    failed, changed = len(found["false alarms"]), found["found"] + found["missed"]
    return (
        f"In {found['models']} models, {found['planted']} faults were planted, and {changed} of them change an output. "
        f"The comparison finds {found['found']}, which is {found['share']:.1%}. {failed or 'No'} program"
        f"{'s' * (failed > 1)} without a fault failed. {_age('mutations')}"
    )


def _age(name: str) -> str:
    """The commit of results with a page of their own form."""
    stamps = json.loads((frame.RESULTS / f"{STAMPS}.json").read_text("utf-8"))
    return f"Measured at {_said(stamps[name])}."


def _new(name: str, sections: list[str]) -> str:
    """The sections of a benchmark; nothing before its first measurement."""
    found = frame.read(name)
    there = [section for section in sections if section in found["sections"]]
    tables = [f"{section[0].upper()}{section[1:]}:\n\n{frame.table(found['sections'][section])}" for section in there]
    return "\n\n".join([*tables, said(found, there)]) if there else ""


_ESTIMATED = ("model", "build", "build, ratio", "files", "files, ratio", "kept", "kept, ratio")
_CHECKPOINTS = ("model", "plain s", "cold s", "changed s", "nothing s", "cold / plain", "changed / plain")
_OF_WINDOWS = ("cache", "call", "window", "planned", "largest", "largest MB")


def _of(name: str, section: str, columns: Sequence[str]) -> str:
    """Columns of a section; nothing before its first measurement."""
    found = frame.read(name)
    if section not in found["sections"]:
        return ""
    return f"{frame.table(found['sections'][section], columns)}\n\n{said(found, [section])}"


def _language_models() -> str:
    found = frame.read("llm")
    sections = found["sections"]
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
        for row in sections[section]
        for name in [row[""]]
    ]
    return f"{_table(columns, rows)}\n\n{said(found, [*shown])}"


def _build(row: Row) -> list[str]:
    return [f"{row[key]:.0f}" for key in ("export CPU s", "export s", "peak MB")] + [
        f"{row[key]:.1f}" for key in ("size MB", "planned MB")
    ]


def _ratio(row: Row, phase: str) -> str:
    low, high = row[f"{phase} low"], row[f"{phase} high"]
    return "1" if low == high else f"{row[f'{phase} / ours']:.2f} ({low:.2f} to {high:.2f})"


def _plain_script() -> str:
    lowering, zoo = frame.read("lowering"), frame.read("zoo")
    rows = [
        [row["program"], *(f"{row[key]:.1f}" for key in ("plain", "cold", "warm", "hit")), f"{row['cold / plain']:.2f}"]
        for row in lowering["sections"]["bars"]
    ]
    ratio = next(row for row in zoo["sections"]["summary"] if row["ratio"] == "cold / plain")
    models = f"{len(zoo['sections']['models'])} models of many kinds: median, worst"
    rows.append([models, "", "", "", "", f"{ratio['median']:.2f}, {ratio['worst']:.2f}"])
    columns = ["program", "script, s", "`etbuild`, no cache, s", "warm worker, s", "from the cache, s"]
    commits = f"{said(lowering, ['bars'])} The last row: {_said(zoo['measured']['models'])}."
    return f"{_table([*columns, 'no cache / script'], rows)}\n\n{commits}"


def _families() -> str:
    families = [json.loads(line) for line in (frame.RESULTS / "families.jsonl").read_text("utf-8").splitlines()]
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


TABLES: dict[str, Callable[[], str]] = {
    "language models": _language_models,
    "plain script": _plain_script,
    "families": _families,
    "edits": _edits,
    "upgrades": _upgrades,
    "monorepo": _monorepo,
    "mutations": _mutations,
    "growth": lambda: _new("growth", ["slopes"]),
    "latency": lambda: _new("latency", ["programs"]),
    "checkpoints": lambda: _of("checkpoints", "models", _CHECKPOINTS),
    "outside": lambda: _new("outside", ["models", "latency"]),
    "estimates": lambda: _of("estimates", "programs", _ESTIMATED),
    "windows": lambda: _of("estimates", "windows", _OF_WINDOWS),
    **{f"age of {name}": partial(_age, name) for name in OWN},
}
"""What makes the tables of docs, by name."""


def pages() -> dict[Path, str]:
    """All pages that are texts, with what belongs into them."""
    written = {}
    for name in PAGES:
        if (results := frame.read(name))["sections"]:
            written[frame.RESULTS / f"{name}.md"] = page(name, results)
    for path in sorted(DOCS.rglob("*.md")):
        if "<!-- end of " in (text := path.read_text("utf-8")):
            written[path] = filled(text)
    return {**written, EDITS: drawn(frame.read("incremental"))}


def main() -> None:
    """Writes what has changed."""
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit("texts are written; pictures need matplotlib: pip install -r benchmarks/requirements.txt")
    for name in DRAWN:
        if (results := frame.read(name))["sections"]:
            importlib.import_module(f"benchmarks.{name}.plot").plot(results, frame.RESULTS / f"{name}.svg")


if __name__ == "__main__":
    main()
