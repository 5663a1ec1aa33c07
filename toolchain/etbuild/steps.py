"""The steps of a build. Each reads files and writes files, so that each can be cached and run by itself.

export   what the methods compute, without weights     sources, example inputs       torch
lower    the program and its named data                an export, weights            torch, ExecuTorch
report   the report and the index; the checks          the facts of a lowering       neither
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import checks, files, schema
from etbuild.errors import InputError, Problem
from etbuild.index import index
from etbuild.inputs import Inputs, Used, file_digest
from etbuild.plan import Plan, canonical_json, weights_names
from etbuild.quiet import library_messages_off, stdout_for_results
from etbuild.report import report
from etbuild.sources import SourceFinder, importable

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.saved_export import SavedExport
    from etbuild.tensors import TensorFacts

Stage = Callable[[str], AbstractContextManager[Any]]
"""Called with the name of a stage when it starts; the context ends with it."""

LOWERING_SCHEMA = "executorch-lowering/v1"


def export(export_plan: Plan, inputs: Inputs, used: Used, directory: Path, stage: Stage) -> None:
    """Exports every method, and saves the export as `saved_export` describes it.

    Args:
        export_plan: What to export.
        inputs: What may be read.
        used: The sources that it uses.
        directory: Where the export goes: an existing directory, empty.
        stage: Is told of each stage, for progress.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The module cannot be made or exported.
    """
    with library_messages_off(used.sources), stdout_for_results(), importable(used.sources) as finder:
        with stage("import PyTorch"), _frozen_if_first("torch"):
            from etbuild import module, saved_export
        with stage("create the module"):
            root = module.create(export_plan, finder)
            module.settle(root)
        reason = saved_export.why_together(export_plan, root)
        if reason is None:
            programs = _export_methods(export_plan, root, inputs, finder, stage)
            try:
                saved_export.write(directory, export_plan, root, programs, inputs, used)
            except saved_export.CannotSave as error:
                reason = str(error)
    if reason is not None:
        print(f"note: the methods are exported when they are lowered, with their weights: {reason}", file=sys.stderr)
        saved_export.write_plan(directory, export_plan, used)


def _export_methods(
    export_plan: Plan, module: torch.nn.Module, inputs: Inputs, finder: SourceFinder, stage: Stage
) -> dict[str, ExportedProgram]:
    from etbuild.export import export_method

    programs = {}
    for name in sorted(export_plan["methods"]):
        with stage(f"export {name}"):
            programs[name] = export_method(export_plan, name, module, inputs, finder)
    return programs


def lower(
    lower_plan: Plan, export_directory: Path, inputs: Inputs, directory: Path, stage: Stage
) -> list[files.Artifact]:
    """Lowers the methods of an export together, with their weights.

    Args:
        lower_plan: What to lower, and how.
        export_directory: What `export` wrote.
        inputs: What may be read: weights, and for an export without methods its example inputs too.
        directory: An existing directory, where `NAME.pte`, the named data and `NAME.lowering.json` go.
        stage: Is told of each stage, for progress.

    Returns:
        The artifacts, in that order.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The methods cannot be lowered, or the program cannot be written.
    """
    with library_messages_off(), stdout_for_results():
        with stage("import PyTorch"), _frozen_if_first("torch"):
            from etbuild import saved_export
        saved = saved_export.read(export_directory)
        with importable(saved.sources) as finder:
            tensors, programs = _methods(lower_plan, saved, inputs, finder, stage)
            return _lower(lower_plan, tensors, programs, inputs, finder, directory, stage)


def _methods(
    lower_plan: Plan, saved: SavedExport, inputs: Inputs, finder: SourceFinder, stage: Stage
) -> tuple[list[TensorFacts], dict[str, ExportedProgram]]:
    from etbuild import module, saved_export, tensors
    from etbuild.sources import import_module

    if saved.export_plan is None:
        with stage("read the export and the weights"):
            weights = tensors.read_weights(lower_plan, inputs, saved.tensors)
            for name in saved.imports:
                import_module(name, finder, ("model", "factory"))
            return saved.tensors, saved_export.load_methods(saved, weights)
    with stage("create the module"):
        root = module.create(saved.export_plan, finder)
        if saved.export_plan["weights"]:
            weights = tensors.read_weights(lower_plan, inputs, tensors.describe_state(root))
            root.load_state_dict(weights, strict=False)  # strict is what was checked already
        module.settle(root)
    facts = tensors.describe(root, saved.export_plan["weights"])
    return facts, _export_methods(saved.export_plan, root, inputs, finder, stage)


def _lower(
    lower_plan: Plan,
    tensors: list[TensorFacts],
    programs: dict[str, ExportedProgram],
    inputs: Inputs,
    finder: SourceFinder,
    directory: Path,
    stage: Stage,
) -> list[files.Artifact]:
    from etbuild import tensors as tensor_facts

    shards = tensor_facts.shards(lower_plan, tensors, tensor_facts.tags(lower_plan, tensors))
    with stage("import ExecuTorch"), _frozen_if_first("executorch.exir"):
        from etbuild import emit
        from etbuild import lower as lowering
    with stage(f"lower {', '.join(programs)}"):
        edge = lowering.lower(lower_plan, programs, shards, finder)
        operators = lowering.operator_counts(edge)
    with stage("emit"):
        emission = emit.emit(lower_plan, edge, shards, directory)
        facts = {
            "schema": LOWERING_SCHEMA,
            "artifacts": [artifact.facts() for artifact in emission.artifacts],
            "program": emission.program,
            "operators": operators,
            "named_data": emission.named_data,
            **_describe_weights(lower_plan, inputs),
        }
        return [*emission.artifacts, _write_json(directory, lower_plan["name"], "lowering", facts)]


@contextmanager
def _frozen_if_first(package: str) -> Iterator[None]:
    """Keeps the collector off the objects of a package's first import: a million that live as long as the process."""
    first = package not in sys.modules
    yield
    if first:
        gc.freeze()


def _describe_weights(lower_plan: Plan, inputs: Inputs) -> dict[str, Any]:
    from etbuild.tensor_digests import tensor_digests

    found = {name: inputs.find_data(name, path) for name, path in weights_names(lower_plan).items()}
    return {
        "data": {name: file_digest(file) for name, file in found.items()},
        "tensors": {name: tensor_digests(name, file) for name, file in found.items()},
    }


def check_and_report(
    plan: Plan, described: dict[str, Any], lowering: dict[str, Any], directory: Path
) -> list[files.Artifact]:
    """Checks what was lowered against the manifest's bounds, and writes the report and the index.

    Args:
        plan: The plan.
        described: What `inputs.describe` says of the build.
        lowering: The facts of the lowering.
        directory: An existing directory, where `NAME.report.json` and `NAME.index.json` go.

    Raises:
        CheckError: The program breaks a bound.
        BuildError: A file cannot be written.
    """
    measured = checks.measure(plan, lowering)
    written = _write_json(directory, plan["name"], "report", report(plan, lowering, measured))
    return [written, _write_json(directory, plan["name"], "index", index(plan, described, lowering, written))]


def read_lowering(path: Path) -> dict[str, Any]:
    """The facts of a lowering.

    Raises:
        InputError: The file holds none.
    """
    facts = files.read_json(path, "the facts of a lowering")
    if not isinstance(facts, dict) or facts.get("schema") != LOWERING_SCHEMA:
        raise InputError([Problem(f"{path}: not the facts of a lowering that this `etbuild` wrote")])
    return facts


def _write_json(directory: Path, name: str, kind: str, content: dict[str, Any]) -> files.Artifact:
    """Writes a file of facts, once it fits its schema, where it has one. That it might not is a bug of ours."""
    wrong: list[Problem] = schema.problems(kind, content) if kind in ("index", "report") else []
    assert not wrong, "\n".join(map(str, wrong))
    return files.write(directory, f"{name}.{kind}.json", kind, lambda file: file.write(canonical_json(content)))
