"""Makes the partitioners of the manifest and of a recipe, and aligns those of different methods."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch.export import ExportedProgram

from etbuild import backends
from etbuild.backends import call_slots
from etbuild.backends.call_slots import Item
from etbuild.errors import BuildError, DocumentPath
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.lower.partition_counts import PartitionLint
from etbuild.lower.preprocess_results import backend_class
from etbuild.lower.separability import Claims, looks_at_all_methods
from etbuild.plan.parts import BackendEntry
from etbuild.plan.step_plans import MethodPlan


class _NoPartition(Partitioner):  # type: ignore[misc]
    """A placeholder for a method that does not use the backend at this index. It takes no operators.

    Before each partitioner runs, ExecuTorch decomposes all operators except those that the partitioner keeps. This one
    keeps the operators that the next one keeps: otherwise no linear layers would be left for XNNPACK.
    """

    def __init__(self, following: Partitioner) -> None:
        super().__init__()
        self.following = following

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        """The operators that the following partitioner keeps."""
        return self.following.ops_to_not_decompose(ep)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Returns the program unchanged."""
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})


_RECIPE: DocumentPath = ("recipe",)


@dataclass(frozen=True)
class ProgramPartitioners:
    """The partitioners of a lowering.

    Attributes:
        lists: ExecuTorch's partitioner list of each method.
        claims: The partitioners whose backends are of other packages and claim to be `separable`.
    """

    lists: dict[str, list[Partitioner]]
    claims: Claims


class _One(NamedTuple):
    """A partitioner of a method, the item for its alignment, and whether its backend pairs partitions of several
    methods. The hint says how to turn that off in the manifest; None if there is no such option."""

    partitioner: Partitioner
    item: Item
    pairs: bool
    hint: str | None


def make(lower_plan: MethodPlan, programs: dict[str, ExportedProgram]) -> ProgramPartitioners:
    """Makes ExecuTorch's partitioner list of each method. Partitioners of one backend have the same index in all lists.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method, by name.

    Raises:
        InputError: A backend refuses the value of an option, the plan names a callable that does not exist, or the
            orders of partitioners contradict each other.
        BuildError: A partitioner cannot be made.
    """
    claims = Claims()
    partitioners = {
        name: [
            *(_of_recipe(lower_plan, name) if method.from_recipe else ()),
            *_of_manifest(lower_plan, (name, programs[name]), claims),
        ]
        for name, method in sorted(lower_plan.methods.items())
    }
    left = {name: iter(own) for name, own in partitioners.items()}
    slots = call_slots.align({name: [one.item for one in own] for name, own in partitioners.items()})
    lists: dict[str, list[Partitioner]] = {name: [] for name in partitioners}
    for slot in reversed([_watched({name: next(left[name]) for name in slot}) for slot in slots]):
        for name, own in lists.items():
            if name in slot:
                own.insert(0, slot[name])
            elif own:
                own.insert(0, _NoPartition(own[0]))
    return ProgramPartitioners(lists, claims)


def _watched(slot: dict[str, _One]) -> dict[str, Partitioner]:
    """The partitioners of a slot. If their backend pairs partitions, returns copies that check the counts."""
    of_recipe = [one for one in slot.values() if one.item.path == _RECIPE]
    pairing = [one for one in slot.values() if one.pairs and one not in of_recipe]
    pairing += of_recipe if all(one.pairs for one in of_recipe) else []
    if not pairing:
        return {name: one.partitioner for name, one in slot.items()}
    lint = PartitionLint(set(slot), pairing[0].hint)
    return {name: lint.watched(one.partitioner, name, one.item.path) for name, one in slot.items()}


def _of_manifest(lower_plan: MethodPlan, method: tuple[str, ExportedProgram], claims: Claims) -> Iterator[_One]:
    for index, entry in enumerate(lower_plan.methods[method[0]].partitioners):
        backend, options = backends.get(entry.backend), entry.options
        if not backend.has_partitioner:
            continue
        path = ("methods", method[0], "partitioners", index)
        partitioner = _create(entry, method, path)
        item = _item(entry, partitioner, path, lower_plan.used_backends)
        if backend.separable and backends.owner(backend.name) is not None:
            partitioner = claims.watched(partitioner, backend.name, method[0], path)
        paired = bool(backends.ask(backend, "pairs_partitions", options, path=path))
        yield _One(partitioner, item, paired, backend.pairing_hint)


def _of_recipe(lower_plan: MethodPlan, method: str) -> Iterator[_One]:
    if lower_plan.recipe is None:
        return
    from etbuild.export.recipe import load_recipe

    wanted = load_recipe(lower_plan.recipe).lowering_recipe
    from_recipe = wanted.partitioners if wanted is not None else None
    named = lower_plan.used_backends
    seen: Counter[str] = Counter()
    for partitioner in (from_recipe.get(method) if isinstance(from_recipe, dict) else from_recipe) or []:
        kind = _kind(partitioner, named)
        seen[kind] += 1
        # The n-th partitioner of a kind is assumed to be the same in all methods.
        identity = json.dumps(["recipe", kind, seen[kind]])
        item = Item(_called(partitioner), _RECIPE, kind, identity, _once(partitioner, kind, None))
        paired = bool(backends.ask_recognizing(partitioner, named, "pairs_partitions_of"))
        yield _One(partitioner, item, paired, "`partitioners` instead of the recipe's")


def _item(entry: BackendEntry, partitioner: Partitioner, path: DocumentPath, named: Collection[str]) -> Item:
    """The item that aligns a partitioner of the manifest. The partitioner itself tells its backend."""
    name, options = entry.backend, entry.options
    item = call_slots.item(name, options, path)
    if backends.get(name).delegates_to_any:
        kind = _kind(partitioner, named)
        return replace(item, kind=kind, once=_once(partitioner, kind, item.once))
    kind = json.dumps([_backend_id(partitioner) or name, backends.grouping_key(name, options, path)])
    return replace(item, kind=kind, once=item.once and kind)


def _kind(partitioner: Partitioner, named: Collection[str]) -> str:
    """The kind of a partitioner from a factory or a recipe. Only partitioners of one kind are lowered together."""
    key = json.dumps(backends.ask_recognizing(partitioner, named, "grouping_key_of"), sort_keys=True)
    return json.dumps([_called(partitioner), key])


def _once(partitioner: Partitioner, kind: str, unknown: str | None) -> str | None:
    """`Item.once` of a partitioner that none of our backends describes. It is `unknown` if the partitioner's backend is
    unknown."""
    backend_id = _backend_id(partitioner)
    backend = None if backend_id is None else backend_class(backend_id)
    if backend is None:
        return unknown
    return kind if looks_at_all_methods(backend) else None


def _called(partitioner: Partitioner) -> str:
    """ExecuTorch's name of a partitioner's backend, or else the name of the partitioner's class."""
    kind = type(partitioner)
    return _backend_id(partitioner) or f"{kind.__module__}.{kind.__qualname__}"


def _backend_id(partitioner: Partitioner) -> str | None:
    """The backend of the `DelegationSpec` among a partitioner's attributes; None: there is none, or several.

    ExecuTorch's own partitioners call this attribute `delegation_spec`.
    """
    held = [*vars(partitioner).values(), getattr(partitioner, "delegation_spec", None)]
    names = {each.backend_id for each in held if isinstance(each, DelegationSpec)}
    return str(names.pop()) if len(names) == 1 else None


def _create(entry: BackendEntry, method: tuple[str, ExportedProgram], path: DocumentPath) -> Partitioner:
    def load(reference: str) -> Any:
        return load_callable(reference, (*path, "options", "factory"))

    name, program = method
    backend, context = backends.get(entry.backend), backends.Context(name, load, program)
    making = f"making the partitioner of `{backend.name}`"
    with wrap_user_error(path, making), backends.options_at((*path, "options")):
        partitioner = backend.create_partitioner(entry.options, context)
    if not isinstance(partitioner, Partitioner):
        message = f"the partitioner of `{entry.backend}` is {type(partitioner).__name__}, not a Partitioner"
        raise BuildError.at(path, message)
    return partitioner
