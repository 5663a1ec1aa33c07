"""The whole road for one plan: export, lower, emit, report and index."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from etbuild import files, schema, sources
from etbuild.errors import Problem
from etbuild.index import index
from etbuild.inputs import Inputs, describe, used_sources
from etbuild.plan import Plan, canonical_json
from etbuild.quiet import library_messages_off, stdout_for_results
from etbuild.report import report

Stage = Callable[[str], AbstractContextManager[Any]]
"""Called with the name of a stage when it starts; the context ends with it."""


def build(plan: Plan, inputs: Inputs, directory: Path, stage: Stage) -> list[files.Artifact]:
    """Builds a program.

    Args:
        plan: What to build.
        inputs: What may be read.
        directory: Where `NAME.pte`, `NAME.TAG.ptd`, `NAME.report.json` and `NAME.index.json` go. They appear there when
            all of them are written and checked, and not before.
        stage: Is told of each stage, for progress.

    Returns:
        The artifacts, in that order.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The model cannot be exported, lowered or written.
    """
    with stage("read the inputs"):
        used = used_sources(inputs, plan)
        described = describe(inputs, plan, used)
    with library_messages_off(used.sources), stdout_for_results():
        return _build(plan, inputs, described, used.sources, directory, stage)


def _build(
    plan: Plan, inputs: Inputs, described: dict[str, Any], used: dict[str, Path], directory: Path, stage: Stage
) -> list[files.Artifact]:
    with stage("import ExecuTorch"):
        first = "executorch.exir" not in sys.modules
        from etbuild import emit, export, lower, module

        if first:
            gc.freeze()  # a million objects that live as long as the process: the collector need not visit them again
    with sources.importable(used) as finder, files.staging(directory) as staged:
        with stage("create the module"):
            root = module.create(plan, inputs, finder)
            tags = module.tags(plan, root)
        programs = {}
        for name in sorted(plan["methods"]):
            with stage(f"export {name}"):
                programs[name] = export.export_method(plan, name, root, inputs, finder)
        with stage(f"lower {', '.join(programs)}"):
            edge = lower.lower(plan, programs, tags, finder)
            operators = lower.operator_counts(edge)
        with stage("emit"):
            emission = emit.emit(plan, edge, tags, staged)
        with stage("report"):
            facts = report(plan, emission.program, operators, emission.named_data)
            artifacts = [*emission.artifacts, _write_json(staged, plan, "report", facts)]
            artifacts.append(_write_json(staged, plan, "index", index(plan, described, artifacts)))
        return files.publish(artifacts, directory)


def _write_json(directory: Path, plan: Plan, kind: str, content: dict[str, Any]) -> files.Artifact:
    """Writes the index or the report, once it fits its schema. That it might not is a bug of ours."""
    wrong: list[Problem] = schema.problems(kind, content)
    assert not wrong, "\n".join(map(str, wrong))
    return files.write(
        directory / f"{plan['name']}.{kind}.json", kind, lambda file: file.write(canonical_json(content))
    )
