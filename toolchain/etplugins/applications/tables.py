"""What the libraries of each kind of application hold: one file `kind-KIND.json` each, with its sources.

A new kind is a new file. Its operators are those of the lists in `kernels.json` that it names.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PREFIX = "kind-"
_OF_CORE = frozenset({"aten::_local_scalar_dense", "aten::sym_numel", "aten::sym_size.int"})
"""The operators besides `executorch_prim` for which ExecuTorch's core has kernels (`register_prim_ops.cpp`)."""


@dataclass(frozen=True)
class Values:
    """The values that an application can pass to a method, or get from it.

    Attributes:
        kinds: The kinds of values: `tensor`, or the type in a program, such as `double`.
        dtypes: The dtypes of tensors.
    """

    kinds: frozenset[str]
    dtypes: frozenset[str] | None = None


@dataclass(frozen=True)
class Lack:
    """Something that a library cannot load.

    Attributes:
        what: Why.
        hint: What to do instead.
        most: The number of files that it can load; 0 for none.
        with_runner: Whether ExecuTorch's runner of language models can, in the same library.
    """

    what: str
    hint: str
    most: int = 0
    with_runner: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of application.

    Attributes:
        name: Its name in manifests.
        library: The library that the application links.
        release: The release of the library that the table is for.
        sources: Where the facts come from.
        kernels: The lists of `kernels.json` that it has, each with the part that holds them.
        own_kernels: How an application adds kernels of its own.
        backends: Its backends as the runtime calls them, each with the part that holds it.
        inputs: The inputs that it can pass; None: all.
        outputs: The outputs that it can take; None: all.
        named_data: Why it cannot load each number of .ptd files; None if it can.
        shared_mutable_buffers: Why its methods cannot share memory; None if they can.
    """

    name: str
    library: str
    release: str
    sources: tuple[str, ...]
    kernels: Mapping[str, str]
    own_kernels: str
    backends: Mapping[str, str]
    inputs: Values | None = None
    outputs: Values | None = None
    named_data: Lack | None = None
    shared_mutable_buffers: Lack | None = None
    holders: Mapping[str, str] = field(default_factory=dict)

    def holder(self, operator: str) -> str | None:
        """The part that has the kernel of an operator; "" for the core, None if none has it."""
        if operator in _OF_CORE or operator.startswith("executorch_prim::"):
            return ""
        return self.holders.get(operator)


def names() -> list[str]:
    """The kinds of applications that have a table, sorted."""
    return sorted(path.stem.removeprefix(_PREFIX) for path in _HERE.glob(f"{_PREFIX}*.json"))


@functools.cache
def kind(name: str) -> Kind:
    """The table of a kind, which is one of `names`."""
    table: dict[str, Any] = json.loads((_HERE / f"{_PREFIX}{name}.json").read_text("utf-8"))
    for key in ("inputs", "outputs"):
        if key in table:
            dtypes = table[key].get("dtypes")
            table[key] = Values(frozenset(table[key]["kinds"]), None if dtypes is None else frozenset(dtypes))
    for key in ("named_data", "shared_mutable_buffers"):
        if key in table:
            table[key] = Lack(**table[key])
    lists = kernels()
    holders = {operator: part for of, part in reversed(table["kernels"].items()) for operator in lists[of]}
    return Kind(name, **{**table, "sources": tuple(table["sources"])}, holders=holders)


@functools.cache
def kernels() -> dict[str, list[str]]:
    """The operators in each of ExecuTorch's libraries of kernels, as programs call them."""
    lists: dict[str, list[str]] = json.loads((_HERE / "kernels.json").read_text("utf-8"))
    return lists
