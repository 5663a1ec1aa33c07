"""Writes C++ that registers the kernels of a selection and no others.

ExecuTorch's own code generator makes it, without PyTorch. The templates are here: ExecuTorch's wheel has none.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etbuild.errors import BuildError, CheckError, InputError
from etbuild.files.scratch import temporary
from etbuild.manifest import yaml_document
from etbuild.processes import forked
from etkit.native.kernels import kernel_sets
from etkit.native.kernels.kernel_sets import KernelSet

SOURCE = "RegisterCodegenUnboxedKernelsEverything.cpp"
"""The file that registers the kernels when the library is loaded."""
DECLARATIONS = "NativeFunctions.h"
"""The file that declares the functions of the kernels. `SOURCE` includes it."""
DTYPES = "selected_op_variants.h"
"""The file with the dtypes of operators. With `EXECUTORCH_SELECTIVE_BUILD_DTYPE`, portable kernels include it."""
FILES = (SOURCE, DECLARATIONS, DTYPES)

_LISTS = ("kernels/portable/functions.yaml", "kernels/quantized/quantized.yaml")
_REGISTERED = re.compile(r'^\s*Kernel\(\s*"([^"]+)"', re.MULTILINE)

# For some dtypes, the dtype in which ExecuTorch's portable kernels compute.
_HALVES, _HALVES_COMPUTED_IN = {"float16", "bfloat16"}, "float32"
_INTEGERS, _INTEGERS_COMPUTED_IN = (
    {*(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)), "bool"},
    "float64",
)

_DTYPES_TEMPLATE = """\
// Made by etbuild.
#pragma once

// ExecuTorch's kernels ask whether they need the code for a dtype. A name that is not here gets all dtypes: some
// kernels call themselves by another name than their operator's, and the linker leaves out those that are not
// registered. GCC removes code only if it inlines this, and only with `__builtin_strcmp`.
[[gnu::always_inline]] inline constexpr bool should_include_kernel_dtype(
    const char* operator_name, executorch::aten::ScalarType scalar_type) {
  using executorch::aten::ScalarType;
  (void)operator_name;
  (void)scalar_type;
  return
$cases      true;
}
"""

_TEMPLATES = {
    "RegisterCodegenUnboxedKernels.cpp": """\
// Made by etbuild with ExecuTorch's code generator.
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/core/span.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/profiler.h>
#include "${fn_header}"

namespace torch {
namespace executor {
namespace function {
namespace {

// An array in C++ cannot be empty, but a selection can: the last kernel is not registered.
const Kernel kKernels$number[] = {
    ${unboxed_kernels}
    Kernel(),
};

[[maybe_unused]] const auto kRegistered$number = ::executorch::runtime::register_kernels(
    {kKernels$number, sizeof(kKernels$number) / sizeof(Kernel) - 1});

} // namespace
} // namespace function
} // namespace executor
} // namespace torch
""",
    "NativeFunctions.h": """\
// Made by etbuild with ExecuTorch's code generator.
#pragma once

#include <tuple>

${headers}

${nativeFunctions_declarations}
""",
    # Files that the generator also writes, and that the registration does not include.
    "Functions.h": "",
    "RegisterKernels.h": "",
}


def make(selection: Path, lists: Sequence[Path]) -> dict[str, bytes]:
    """The files of C++ for a selection.

    Args:
        selection: A `selected_operators.yaml`.
        lists: The available kernels, in the form of `functions.yaml`. Of several kernels for one operator, the one in
            the first list is taken. Empty: ExecuTorch's portable and quantized kernels.

    Returns:
        The contents by name: those of `FILES`.

    Raises:
        CheckError: No list has a kernel that the selection needs.
        InputError: A file has another form.
        BuildError: ExecuTorch's generator failed, or it left out a kernel.
    """
    selected = yaml_document.load(selection).data
    chosen = kernel_sets.read(selection)
    if not isinstance(selected, dict):
        raise InputError.of(
            f"{selection}: a list of kernels and no selection", "write it with `etbuild selected-ops PROGRAM -o FILE`"
        )
    lists = lists or _lists_of_executorch()
    _check(selection, selected, chosen, [kernel_sets.read(path) for path in lists])
    entries = _entries(lists, chosen)
    keys = {
        operator: keys
        for operator, keys in selected.get("et_kernel_metadata", {}).items()
        if kernel_sets.ALL not in keys
    }
    groups = _by_name(entries)
    tasks = {
        f"writing C++ ({number})": functools.partial(_generate, group, keys, lists, number)
        for number, group in enumerate(groups)
    }
    parts = [*forked.run(tasks, 1).values()]
    made = {name: "\n".join(part[name] for part in parts) for name in (SOURCE, DECLARATIONS)}
    registered = set(_REGISTERED.findall(made[SOURCE]))
    if lost := sorted(entries.keys() - registered):
        raise BuildError.of(
            f"ExecuTorch's generator wrote no registration of {', '.join(f'`{name}`' for name in lost)}",
            f"compare the keys of these kernels in {', '.join(map(str, lists))} with those in {selection}",
        )
    return {name: text.encode() for name, text in {**made, DTYPES: _dtypes(chosen)}.items()}


def _lists_of_executorch() -> list[Path]:
    spec = importlib.util.find_spec("executorch")
    for place in (spec and spec.submodule_search_locations) or ():
        found = [Path(place) / name for name in _LISTS]
        if all(path.exists() for path in found):
            return found
    raise InputError.of("the installed executorch has no list of kernels", "name one with `--functions`")


def _check(selection: Path, selected: dict[str, Any], chosen: KernelSet, available: Sequence[KernelSet]) -> None:
    """Checks that the first list with an operator of the selection has the needed dtypes: its kernel is registered.

    Messages name the programs that call the operator.
    """
    missing = []
    for operator, dtypes in sorted(chosen.kernels.items()):
        lacking = (each.lacking(operator, dtypes or frozenset()) for each in available)
        first = next((each for each in lacking if each is not None), None)
        if first is None or first:
            callers = ", ".join(_callers(selected["operators"][operator]) or [selection.name])
            without = ", ".join(sorted(first or ()))
            missing.append(f"`{operator}`{' with ' if without else ''}{without} ({callers})")
    if missing:
        named = " and ".join(each.name for each in available)
        what = f"{len(missing)} kernels that are selected are" if len(missing) > 1 else "a kernel that is selected is"
        raise CheckError.of(f"{named}: {what} missing", "\n".join(missing))


def _callers(described: object) -> list[str]:
    """The programs that call an operator, as its entry in a selection says."""
    programs = described.get("debug_info") if isinstance(described, dict) else None
    return [str(program) for program in programs] if isinstance(programs, list) else []


def _entries(lists: Sequence[Path], chosen: KernelSet) -> dict[str, Any]:
    """The entries of the lists for the operators of the selection, by operator, in the order of their names."""
    found: dict[str, Any] = {}
    for path in lists:
        for entry in yaml_document.load(path).data:
            operator = kernel_sets.operator_of(entry)
            if chosen.whole or operator in chosen.kernels:
                found.setdefault(operator, entry)
    return dict(sorted(found.items()))


def _by_name(entries: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Splits entries into one or more groups without two operators of one name: the generator knows no namespaces."""
    groups: list[dict[str, Any]] = [{}]
    of_name = Counter[str]()
    for operator, entry in entries.items():
        name = operator.rpartition("::")[2]
        groups += [{}] if of_name[name] == len(groups) else []
        groups[of_name[name]][operator] = entry
        of_name[name] += 1
    return groups


def _generate(
    entries: Mapping[str, Any], keys: Mapping[str, Sequence[str]], lists: Sequence[Path], number: int
) -> Mapping[str, str]:
    """The contents of `SOURCE` and `DECLARATIONS` for some entries, whose operators are all selected.

    Runs in a child, because the generator takes its arguments from the command line.

    Args:
        entries: The entries by operator.
        keys: The dtypes of operators, as `et_kernel_metadata` has them; those of other operators get all their kernels.
        lists: The files that the entries come from, for messages.
        number: A number that is different for each part of `SOURCE`.
    """
    import torchgen
    from executorch.codegen import gen

    aten = Path(torchgen.__file__).with_name("packaged") / "ATen/native"
    printed = io.StringIO()
    try:
        with temporary("kernels") as scratch, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            place, made = scratch.path, scratch.path / "made"
            (place / "templates").mkdir()
            made.mkdir()
            for name, template in _TEMPLATES.items():
                (place / "templates" / name).write_text(template.replace("$number", str(number or "")))
            # Each entry has a line: errors of the generator name the line.
            (place / "functions.yaml").write_text("".join(f"- {json.dumps(entry)}\n" for entry in entries.values()))
            selection = {"include_all_operators": True, "et_kernel_metadata": keys}
            (place / "selection.yaml").write_text(json.dumps(selection))
            options = {
                "source-path": place,
                "install-dir": made,
                "tags-path": aten / "tags.yaml",
                "aten-yaml-path": aten / "native_functions.yaml",
                "op-selection-yaml-path": place / "selection.yaml",
                "functions-yaml-path": place / "functions.yaml",
            }
            sys.argv = ["gen", *(f"--{name}={value}" for name, value in options.items())]
            gen.main()
            texts = {name: (made / name).read_text() for name in (SOURCE, DECLARATIONS)}
    except (Exception, SystemExit) as error:  # the generator uses assertions, and has no error class
        if found := re.search(r"functions\.yaml:(\d+)", str(error)):
            raise InputError.of(
                f"ExecuTorch's generator refuses the kernel of `{list(entries)[int(found[1]) - 1]}`",
                "if PyTorch does not have the operator, write `func:` with its schema in the list, and not `op:`",
            ) from error
        reason = f"{type(error).__name__}: {error} {printed.getvalue()}".strip()
        raise BuildError.of(f"ExecuTorch's generator cannot read {' or '.join(map(str, lists))}: {reason}") from error
    return texts


def _dtypes(chosen: KernelSet) -> str:
    """The content of `DTYPES`.

    ExecuTorch's own tool ignores the dtypes in which kernels compute, and GCC makes larger code from its result.
    """
    cases = []
    for operator, dtypes in sorted(chosen.kernels.items()):
        if dtypes is not None and not chosen.whole:
            names = dtypes | ({_HALVES_COMPUTED_IN} if dtypes & _HALVES else set())
            names |= {_INTEGERS_COMPUTED_IN} if dtypes & _INTEGERS else set()
            types = sorted(kernel_sets.scalar_type(name) for name in names)
            checks = " || ".join(f"scalar_type == ScalarType::{name}" for name in types) or "true"
            name = json.dumps(operator.removeprefix("aten::"))
            cases.append(f"      __builtin_strcmp(operator_name, {name}) == 0 ? {checks} :\n")
    return _DTYPES_TEMPLATE.replace("$cases", "".join(cases))
