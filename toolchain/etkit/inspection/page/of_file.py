"""Makes the page of any `.pte`."""

from __future__ import annotations

from pathlib import Path

from etbuild.errors import InputError
from etbuild.files import flatbuffer, instructions, program_file, regular_files
from etbuild.results import MemoryPlan, MethodGraph
from etkit import find_index, kept_results
from etkit.inspection import blob_names
from etkit.inspection.page import content, render


def page(path: Path, against: Path | None = None) -> bytes:
    """The page of a `.pte` as HTML. Arguments and errors are those of `shown`."""
    return render.render(shown(path, against))


def shown(path: Path, against: Path | None = None) -> content.PageContent:
    """What the page of a `.pte` shows. The file may come from any build. The index beside it adds what the file lacks.

    Args:
        path: The `.pte`.
        against: Another program, in the forms that `difference` takes.

    Raises:
        InputError: The file is no program, or a file is damaged.
    """
    facts = program_file.describe(path)
    if facts["kind"] != "program":
        raise InputError.of(f"{path}: only a program has a page", "name a .pte")
    drawn, memory = graphs(path)
    index = find_index.index_beside(path, facts["sha256"])
    differing = content.difference(against, path, index[0] if index else None) if against is not None else None
    known = blob_names.of_report(find_index.report_beside(path, facts["sha256"]))
    results = kept_results.of_program(path.parent, path.name.removesuffix(".pte"), facts["sha256"])
    return content.of_program(facts, drawn, memory, index[1] if index else None, known, differing, results)


def graphs(path: Path) -> tuple[dict[str, MethodGraph], dict[str, MemoryPlan]]:
    """The graph and the planned memory of each method of a `.pte`.

    Raises:
        InputError: The file is damaged.
    """
    with flatbuffer.read_safely(path):
        with regular_files.opened(path) as file:
            program = program_file.read_program(file.read()).program
        plans = {plan.name: plan for plan in program.execution_plan}
        compiled = [len(data.data) for data in program.backend_delegate_data]
        return (
            {name: instructions.graph(plan, compiled) for name, plan in plans.items()},
            {name: instructions.memory_plan(plan) for name, plan in plans.items()},
        )
