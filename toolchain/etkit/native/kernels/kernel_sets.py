"""The kernels that an application links, and what programs need beyond them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.errors import CheckError, InputError
from etbuild.inputs.source_lines import NO_LINES, SourceLines
from etbuild.manifest import yaml_document
from etkit.native.kernels.program_kernels import DTYPES, Kernels, dtype_name

ALL = "default"
"""The key of a kernel that takes all dtypes."""
_ALWAYS = frozenset({"aten::_local_scalar_dense", "aten::sym_numel", "aten::sym_size.int"})
_PRIMITIVE = "executorch_prim::"
"""ExecuTorch's core library registers kernels of these operators itself (`kernels/prim_ops/register_prim_ops.cpp`)."""


@dataclass(frozen=True)
class KernelSet:
    """The kernels that an application has.

    Attributes:
        name: The set's name, for messages.
        kernels: For each operator the dtypes that its kernel takes; None: all dtypes.
        whole: Whether it has a kernel for every operator.
    """

    name: str
    kernels: Mapping[str, frozenset[str] | None]
    whole: bool = False

    def lacking(self, operator: str, dtypes: frozenset[str]) -> frozenset[str] | None:
        """Those of `dtypes` that its kernel for an operator does not take; None if it has no kernel."""
        if self.whole or operator in _ALWAYS or operator.startswith(_PRIMITIVE):
            return frozenset()
        if operator not in self.kernels:
            return None
        taken = self.kernels[operator]
        return frozenset() if taken is None else dtypes - taken


@dataclass(frozen=True)
class Needed:
    """What a program needs.

    Attributes:
        name: The name of its file, for messages.
        methods: The kernels that each method calls.
        lines: The lines of the sources that its methods come from.
    """

    name: str
    methods: Mapping[str, Kernels]
    lines: SourceLines = NO_LINES


def read(path: Path) -> KernelSet:
    """Reads a list of kernels in one of the forms that ExecuTorch's build reads.

    Args:
        path: A `selected_operators.yaml`, or a list of kernels such as `functions.yaml`.

    Raises:
        InputError: The file has another form.
    """
    document = yaml_document.load(path)
    data = document.data
    if isinstance(data, dict):
        if problems := json_schema.problems("selected-operators", data):
            raise InputError(document.located(problems))
        return _of_selection(str(path), data)
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        if isinstance(data, list):
            return KernelSet(str(path), dict(_of_function(entry) for entry in data))
    raise InputError.of(
        f"{path}: not a list of kernels",
        "write a `selected_operators.yaml`, as `etbuild selected-ops` does, or a list of `op:` and `func:` entries",
    )


def of_runtime() -> KernelSet:
    """The kernels of the runtime in the wheel of ExecuTorch.

    Raises:
        InputError: The wheel has no such runtime.
    """
    try:
        from executorch.extension.pybindings import _C

        spec = PathFinder.find_spec("executorch")
        for place in (spec and spec.submodule_search_locations) or ():
            library = Path(place) / "lib/libexecutorch_kernels_quantized.so"
            if library.exists():
                ctypes.CDLL(str(library))  # loading the library registers its kernels
        names = _C._get_operator_names()
    except (ImportError, OSError, AttributeError) as error:
        raise InputError.of(f"the installed executorch has no runtime whose kernels can be listed: {error}") from None
    return KernelSet("the runtime of the installed executorch", dict.fromkeys(names))


def check(programs: Iterable[Needed], available: Iterable[KernelSet]) -> None:
    """Checks that the sets together have each kernel that the programs need.

    Raises:
        CheckError: A kernel is missing. The error lists the operators, with methods and lines of the model.
    """
    available = list(available)
    missing: dict[tuple[str, tuple[str, ...]], list[tuple[Needed, str]]] = {}
    for program in programs:
        for method, kernels in sorted(program.methods.items()):
            for operator, dtypes in kernels.items():
                lacking = _lacking(operator, dtypes, available)
                if lacking is not None:
                    missing.setdefault((operator, lacking), []).append((program, method))
    if missing:
        named = " and ".join(each.name for each in available)
        several = len(missing) > 1
        what = f"{len(missing)} kernels that the programs need are" if several else "a kernel that is needed is"
        listed = [_missing(*key, missing[key]) for key in sorted(missing)]
        raise CheckError.of(f"{named}: {what} missing", "\n".join(listed))


def _lacking(operator: str, dtypes: frozenset[str], available: list[KernelSet]) -> tuple[str, ...] | None:
    """The dtypes that no set takes; () if no set has the operator; None if nothing is missing."""
    found = [lacking for each in available if (lacking := each.lacking(operator, dtypes)) is not None]
    if not found:
        return ()
    return tuple(sorted(frozenset.intersection(*found))) or None


def _missing(operator: str, dtypes: tuple[str, ...], where: list[tuple[Needed, str]]) -> str:
    """The line of a message about one operator: who calls it, and the first line of a model that does."""
    methods: dict[str, list[str]] = {}
    for program, method in where:
        methods.setdefault(program.name, []).append(method)
    callers = "; ".join(f"{name}: {', '.join(each)}" for name, each in methods.items())
    lines = (line for program, method in where for line in program.lines.of_operator(method, operator))
    at = next((f" at {line}" for line in lines), "")
    return f"`{operator}`{' with ' if dtypes else ''}{', '.join(dtypes)} ({callers}){at}"


def _of_selection(name: str, data: dict[str, Any]) -> KernelSet:
    keys = data.get("et_kernel_metadata", {})
    kernels = {operator: _dtypes(keys.get(operator, [ALL])) for operator in data.get("operators", {})}
    return KernelSet(name, kernels, data.get("include_all_operators", False))


def _dtypes(keys: list[str]) -> frozenset[str] | None:
    """The dtypes in an operator's keys; None for all. `v1/6;0,1|6;0,1` has the dtype's number and the order of
    dimensions of each tensor.

    ExecuTorch's build keeps a kernel's code for a dtype if any key has it.
    """
    if ALL in keys:
        return None
    tensors = [part for key in keys for part in key.partition("/")[2].split("|") if part]
    return frozenset(dtype_name(int(part.partition(";")[0])) for part in tensors)


def _of_function(entry: dict[str, Any]) -> tuple[str, frozenset[str] | None]:
    """The operator and the dtypes, None for all, of an entry in a list of kernels. It has `kernels`, and `op: add.out`
    or `func: my::add.out(Tensor a, ...) -> ...`."""
    aliases = entry.get("type_alias") or {}
    made_for_all = any(not kernel.get("arg_meta") for kernel in entry.get("kernels", [{}]))
    dtypes = frozenset(DTYPES[_SCALAR_TYPES.index(dtype)] for names in aliases.values() for dtype in names)
    return operator_of(entry), None if made_for_all or not dtypes else dtypes


def operator_of(entry: dict[str, Any]) -> str:
    """The operator of an entry in a list of kernels, such as `aten::add.out`."""
    name: str = entry["op"] if "op" in entry else entry["func"].partition("(")[0]
    return name if "::" in name else f"aten::{name}"


def scalar_type(dtype: str) -> str:
    """PyTorch's name of a dtype in C++, such as `Float` for `float32`.

    Raises:
        InputError: This version knows no such dtype.
    """
    if dtype not in DTYPES:
        raise InputError.of(f"ExecuTorch 1.5 has no {dtype}", "a newer ExecuTorch made the selection or the program")
    return _SCALAR_TYPES[DTYPES.index(dtype)]


# PyTorch's names of `DTYPES`, in the same order
_SCALAR_TYPES = (
    *("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf", "ComplexFloat"),
    *("ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16", "QUInt4x2", "QUInt2x4", "Bits1x8", "Bits2x4"),
    *("Bits4x2", "Bits8", "Bits16", "Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"),
    *("UInt16", "UInt32", "UInt64"),
)
