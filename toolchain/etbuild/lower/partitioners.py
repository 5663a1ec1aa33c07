"""The partitioners of methods: those of the manifest and those of a recipe, aligned."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch.export import ExportedProgram

from etbuild import backends
from etbuild.backends import call_slots
from etbuild.backends.call_slots import Item
from etbuild.errors import BuildError, DocumentPath
from etbuild.export.recipe import load_recipe
from etbuild.inputs.user_code import SourceFinder, load_callable, wrap_user_error
from etbuild.lower.partition_counts import PartitionLint
from etbuild.lower.preprocess_results import backend_class
from etbuild.lower.separability import Claims, looks_at_all_methods
from etbuild.plan.parts import BackendEntry
from etbuild.plan.plan import MethodPlan


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


_RECIPE: DocumentPath = ("recipe",)


@dataclass(frozen=True)
class Made:
    """The partitioners of a lowering.

    Attributes:
        lists: ExecuTorch's partitioner list of each method.
        claims: What the backends of other packages say of themselves.
    """

    lists: dict[str, list[Partitioner]]
    claims: Claims


class _Pairing(NamedTuple):
    """Partitions of methods are paired, unless the manifest has what the hint says."""

    hint: str | None


@dataclass(frozen=True)
class _One:
    """A partitioner of a method, what it is aligned by, and whether its partitions are paired with those of others."""

    partitioner: Partitioner
    item: Item
    pairing: _Pairing | None


def make(lower_plan: MethodPlan, programs: dict[str, ExportedProgram], finder: SourceFinder) -> Made:
    """Makes ExecuTorch's partitioner lists, in which partitioners of one backend stand at the same index.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method.
        finder: The declared sources, for partitioners that come from there.

    Raises:
        InputError: An option has a value that its backend finds wrong, the plan names a callable that there is not, or
            the orders of partitioners contradict each other.
        BuildError: A partitioner cannot be made.
    """
    claims = Claims()
    made = {
        name: [
            *(_of_recipe(lower_plan, name, finder) if method.from_recipe else ()),
            *_of_manifest(lower_plan, (name, programs[name]), finder, claims),
        ]
        for name, method in sorted(lower_plan.methods.items())
    }
    left = {name: iter(own) for name, own in made.items()}
    slots = call_slots.align({name: [one.item for one in own] for name, own in made.items()})
    lists: dict[str, list[Partitioner]] = {name: [] for name in made}
    for slot in reversed([_watched({name: next(left[name]) for name in slot}) for slot in slots]):
        for name, own in lists.items():
            if name in slot:
                own.insert(0, slot[name])
            elif own:
                own.insert(0, _NoPartition(own[0]))
    return Made(lists, claims)


def _watched(slot: dict[str, _One]) -> dict[str, Partitioner]:
    """The partitioners of a slot, looked at where their backend pairs partitions of methods."""
    of_recipe = [one.pairing for one in slot.values() if one.item.path == _RECIPE]
    said = [one.pairing for one in slot.values() if one.item.path != _RECIPE]
    pairing = next(filter(None, said), None) or (of_recipe[0] if of_recipe and all(of_recipe) else None)
    if pairing is None:
        return {name: one.partitioner for name, one in slot.items()}
    lint = PartitionLint(set(slot), pairing.hint)
    return {name: lint.watched(one.partitioner, name, one.item.path) for name, one in slot.items()}


def _of_manifest(
    lower_plan: MethodPlan, method: tuple[str, ExportedProgram], finder: SourceFinder, claims: Claims
) -> Iterator[_One]:
    for index, entry in enumerate(lower_plan.methods[method[0]].partitioners):
        backend, options = backends.get(entry.backend), entry.options
        if not backend.has_partitioner:
            continue
        path = ("methods", method[0], "partitioners", index)
        partitioner = _create(entry, method, path, finder)
        item = _item(entry, partitioner, path, lower_plan.backends)
        if backend.separable and backends.owner(backend.name) is not None:
            partitioner = claims.watched(partitioner, backend.name, method[0], path)
        paired = backends.pairs_partitions(backend.name, options, path)
        yield _One(partitioner, item, _Pairing(backend.pairing_hint) if paired else None)


def _of_recipe(lower_plan: MethodPlan, method: str, finder: SourceFinder) -> Iterator[_One]:
    wanted = load_recipe(lower_plan.recipe, finder).lowering_recipe if lower_plan.recipe is not None else None
    found = wanted.partitioners if wanted is not None else None
    named = lower_plan.backends
    seen: Counter[str] = Counter()
    for partitioner in (found.get(method) if isinstance(found, dict) else found) or []:
        kind = _kind(partitioner, named)
        seen[kind] += 1
        # The n-th of a kind is taken for the same in all methods.
        identity = json.dumps(["recipe", kind, seen[kind]])
        item = Item(_called(partitioner), _RECIPE, kind, identity, _once(partitioner, kind, None))
        paired = backends.pairs_partitions_of(partitioner, named)
        yield _One(partitioner, item, _Pairing("`partitioners` instead of the recipe's") if paired else None)


def _item(entry: BackendEntry, partitioner: Partitioner, path: DocumentPath, named: list[str]) -> Item:
    """What a partitioner of the manifest is aligned by. Once it is made, it says which backend it is for."""
    name, options = entry.backend, entry.options
    said = call_slots.item(name, options, path)
    if backends.get(name).delegates_to_any:
        kind = _kind(partitioner, named)
        return replace(said, kind=kind, once=_once(partitioner, kind, said.once))
    kind = json.dumps([_backend_id(partitioner) or name, backends.grouping_key(name, options, path)[1]])
    return replace(said, kind=kind, once=said.once and kind)


def _kind(partitioner: Partitioner, named: list[str]) -> str:
    """What a partitioner of a factory or a recipe has in common with those that it may be lowered together with."""
    return json.dumps([_called(partitioner), backends.grouping_key_of(partitioner, named)])


def _once(partitioner: Partitioner, kind: str, unknown: str | None) -> str | None:
    """`Item.once` of a partitioner that no backend of ours describes; `unknown` if it does not say its backend."""
    backend_id = _backend_id(partitioner)
    found = None if backend_id is None else backend_class(backend_id)
    if found is None:
        return unknown
    return kind if looks_at_all_methods(found) else None


def _called(partitioner: Partitioner) -> str:
    """The backend that a partitioner is for, as ExecuTorch calls it; else what kind of partitioner it is."""
    kind = type(partitioner)
    return _backend_id(partitioner) or f"{kind.__module__}.{kind.__qualname__}"


def _backend_id(partitioner: Partitioner) -> str | None:
    """A partitioner for one backend has its `DelegationSpec`, which ExecuTorch's own call `delegation_spec`."""
    held = [*vars(partitioner).values(), getattr(partitioner, "delegation_spec", None)]
    found = {each.backend_id for each in held if isinstance(each, DelegationSpec)}
    return str(found.pop()) if len(found) == 1 else None


def _create(
    entry: BackendEntry, method: tuple[str, ExportedProgram], path: DocumentPath, finder: SourceFinder
) -> Partitioner:
    def load(reference: str) -> Any:
        return load_callable(reference, finder, (*path, "options", "factory"))

    name, program = method
    backend, context = backends.get(entry.backend), backends.Context(name, load, program)
    making = f"making the partitioner of `{backend.name}`"
    with wrap_user_error(path, making, finder), backends.options_at((*path, "options")):
        made = backend.create_partitioner(entry.options, context)
    if not isinstance(made, Partitioner):
        message = f"the partitioner of `{entry.backend}` is {type(made).__name__}, not a Partitioner"
        raise BuildError.at(path, message)
    return made
