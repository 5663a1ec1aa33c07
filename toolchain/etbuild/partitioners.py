"""The partitioners of methods: those of the manifest, aligned, and those of a recipe."""

from __future__ import annotations

from typing import Any

from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram

from etbuild import alignment, backends, recipes
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.partition_lint import PartitionLint
from etbuild.plan import Plan
from etbuild.plan import backends as plan_backends
from etbuild.sources import SourceFinder, blame, load_callable


class _NoPartition(Partitioner):  # type: ignore[misc]
    """Takes nothing: keeps the place of a method that a backend passes over.

    Before it partitions, ExecuTorch decomposes what a partitioner does not want kept, one partitioner after the other.
    This one keeps what the next one keeps, or there would be no linear layers left for XNNPACK.
    """

    def __init__(self, following: Partitioner) -> None:
        super().__init__()
        self.following = following

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        """The same as the following partitioner."""
        return self.following.ops_to_not_decompose(ep)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """The program as it is."""
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})


def make(lower_plan: Plan, programs: dict[str, ExportedProgram], finder: SourceFinder) -> dict[str, list[Partitioner]]:
    """Makes ExecuTorch's partitioner lists, in which equal partitioners stand at the same index.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method.
        finder: The declared sources, for partitioners that come from there.

    Raises:
        InputError: An option has a value that its backend finds wrong, or the plan names a callable that there is not.
        BuildError: A partitioner cannot be made.
    """
    wanted = {
        name: [entry for entry in method["partitioners"] if backends.get(entry["backend"]).create]
        for name, method in lower_plan["methods"].items()
    }
    of_recipe = [name for name, method in lower_plan["methods"].items() if method["from_recipe"]]
    lists: dict[str, list[Partitioner]] = {name: [] for name in wanted}
    for slot in reversed(alignment.align(wanted)):
        said = [
            backends.pairing(entry["backend"], entry["options"], ("methods", name, "partitioners"))
            for name, entry in slot.items()
        ]
        pairing = next(filter(None, said), None)
        lint = PartitionLint(set(slot), pairing.otherwise) if pairing is not None else None
        for name, entries in wanted.items():
            if name in slot:
                path = ("methods", name, "partitioners", entries.index(slot[name]))
                partitioner = _create(slot[name], (name, programs[name]), path, finder)
                if lint is not None:
                    partitioner = lint.watched(partitioner, name, path)
                lists[name].insert(0, partitioner)
            elif lists[name]:
                lists[name].insert(0, _NoPartition(lists[name][0]))
    return _with_recipe(lower_plan, of_recipe, lists, finder) if of_recipe else lists


def _with_recipe(
    lower_plan: Plan, methods: list[str], lists: dict[str, list[Partitioner]], finder: SourceFinder
) -> dict[str, list[Partitioner]]:
    """Puts the partitioners of a recipe before all others: no method that has them has others."""
    made = {name: _of_recipe(lower_plan["recipe"], name, finder) for name in methods}
    count = max(map(len, made.values()))
    for index in range(count):
        _watch({name: own for name, own in made.items() if index < len(own)}, index, plan_backends(lower_plan))
    for name, own in lists.items():
        first = made.get(name, [])
        # As long as the others' in each method that has more, so that what stands behind still meets its like.
        gap = [_NoPartition(own[0]) for _ in range(count - len(first))] if own else []
        lists[name] = [*first, *gap, *own]
    return lists


def _watch(made: dict[str, list[Partitioner]], index: int, named: list[str]) -> None:
    """Has the partitioners of a recipe at one index looked at where their backend pairs partitions."""
    for methods in backends.paired({name: own[index] for name, own in made.items()}, named):
        lint = PartitionLint(methods, "`partitioners` instead of the recipe's")
        for name in methods:
            made[name][index] = lint.watched(made[name][index], name, ("recipe",))


def _of_recipe(recipe: dict[str, Any], method: str, finder: SourceFinder) -> list[Partitioner]:
    wanted = recipes.load(recipe, finder).lowering_recipe
    found = wanted.partitioners if wanted is not None else None
    return list((found.get(method) if isinstance(found, dict) else found) or [])


def _create(
    entry: dict[str, Any], method: tuple[str, ExportedProgram], path: DocumentPath, finder: SourceFinder
) -> Partitioner:
    def load(reference: str) -> Any:
        return load_callable(reference, finder, (*path, "options", "factory"))

    name, program = method
    with blame(path, f"making the partitioner of `{entry['backend']}`", finder):
        create = backends.get(entry["backend"]).create
        assert create is not None
        with backends.options_at((*path, "options")):
            made = create(entry["options"], backends.Context(name, load, program))
    if not isinstance(made, Partitioner):
        message = f"the partitioner of `{entry['backend']}` is {type(made).__name__}, not a Partitioner"
        raise BuildError([Problem(message, path)])
    return made
