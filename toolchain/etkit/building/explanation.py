"""Explains a key: lists its inputs, and those that differ between two builds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from etbuild.errors import InputError, counted, format_path
from etbuild.files.digests import digest
from etbuild.files.json_diff import Change, changes
from etbuild.files.weights_suffixes import INDEX_SUFFIXES
from etbuild.key.code import OF_PROGRAMS
from etbuild.key.key import read_data
from etbuild.plan.plan import Plan
from etbuild.results import BuildInputs, Digests, KeyInputs, Python, Toolchain
from etkit.inspection.json_text import show
from etplugins.samples.names import matches

_NAMED = 8  # at most this many changed tensors are listed by name


def tree(inputs: KeyInputs) -> Iterator[tuple[int, str, str, str]]:
    """Yields the inputs of a key as the lines of a tree.

    Args:
        inputs: The `inputs` of an index.

    Yields:
        Depth, name, digest, and a short description or an empty string.
    """
    plan = inputs["plan"]
    yield 0, "key", digest(inputs), plan["name"]
    yield 1, "plan", digest(plan), ""
    for part in sorted(plan.keys() - {"schema", "name", "methods"}):
        yield 2, part, digest(plan[part]), show(plan[part]) if plan[part] else "none"
    yield 2, "methods", digest(plan["methods"]), ""
    for name, method in sorted(plan["methods"].items()):
        yield 3, name, digest(method), ", ".join(entry["backend"] for entry in method["partitioners"]) or "portable"
    for part, digests in (("sources", inputs["sources"]), ("data", inputs["data"])):
        yield 1, part, digest(digests), "" if digests else "none"
        for name, sha256 in sorted(digests.items()):
            yield 2, name, sha256, ""
    toolchain = inputs["toolchain"]
    yield 1, "toolchain", digest(toolchain), toolchain["python"]
    yield 2, "driver", toolchain["driver"]["sha256"], toolchain["driver"]["version"]
    for name, release in sorted(toolchain["distributions"].items()):
        yield 2, name, release["sha256"], release["version"]


def differences(before: BuildInputs, after: BuildInputs) -> list[str]:
    """Describes the differences between the inputs of two builds, one a line.

    Args:
        before: The inputs of the first build, as in its index.
        after: The same for the second build.
    """
    old, new = before["inputs"], after["inputs"]
    lines = [_of_plan(change) for change in changes(old["plan"], new["plan"])]
    lines += [_of_file("source", change) for change in changes(old["sources"], new["sources"])]
    for change in changes(old["data"], new["data"]):
        lines += _of_data(change, before["tensors"], after["tensors"])
    lines += _of_toolchain(old["toolchain"], new["toolchain"])
    return lines


def steps_to_run(before: BuildInputs, after: BuildInputs) -> list[str]:
    """Returns the steps that the second build has to run because their inputs differ, with remarks."""
    old, new = before["inputs"], after["inputs"]
    if old == new:
        return []
    tools = [inputs["toolchain"] for inputs in (old, new)]
    driver = {step for step in OF_PROGRAMS if len({each["driver"]["steps"].get(step) for each in tools}) > 1}
    others = [{**each, "driver": None} for each in tools]
    exports, lowers, compared = zip(*(_read_by_steps(inputs) for inputs in (old, new)), strict=True)
    export = "export" in driver or _changed_for_exports(*tools) or exports[0] != exports[1]
    lower = "lower" in driver or others[0] != others[1] or lowers[0] != lowers[1]
    steps = ["export"] if export else []
    if lower and not export and "lower" not in driver and others[0] == others[1] and lowers[0][0] == lowers[1][0]:
        built: dict[str, Any] = {**(after if "template" in after else before)}
        again = built.get("with_weights", {})
        steps.append("bind the new weights")
        steps += [f"lower `{name}` with its weights, because {reason}" for name, reason in again.items()]
    elif lower:
        steps.append("lower")
    elif export:
        steps.append("lower, if the exported graphs change")
    if not lower and (export or compared[0] != compared[1]):  # the comparison makes the model from the sources
        steps.append("compare")
    return [*steps, "report"]


def _changed_for_exports(old: Python, new: Python) -> bool:
    """Whether two toolchains differ in something on which an export depends, other than the driver.

    A distribution that only one of them has belongs to a backend, or to imports of sources, which then differ too.
    """
    before, after = old["distributions"], new["distributions"]
    replaced = any(before[name] != after[name] for name in before.keys() & after.keys())
    return replaced or any(old.get(key) != new.get(key) for key in ("python", "startup"))


def _read_by_steps(inputs: KeyInputs) -> tuple[Any, Any, Any]:
    """Returns what the export reads (plan, sources, data), what lowering reads in addition (plan, data), and the plan
    of the comparison."""
    try:
        plan = Plan.from_json(inputs["plan"])
    except ValueError as error:
        raise InputError.of(f"the plan in an index is that of another version of `etbuild`: {error}") from None
    export, lower = plan.export_plan, plan.lower_plan

    files = {name: [file for file in inputs["data"] if belongs_to(file, name)] for name in plan.data_names}
    data = [
        {file: inputs["data"][file] for file in read_data(part.data_names, files, inputs["data"])}
        for part in (export, lower)
    ]
    return (export, inputs["sources"], data[0]), (lower, data[1]), plan.compare_plan


def _of_plan(change: Change) -> str:
    path = change.path
    if path[0] == "methods":
        path = path[2:]
        where = f"`{change.path[1]}`: {format_path(path)}" if path else f"method `{change.path[1]}`"
    elif path[0] == "named_data" and len(path) > 1:
        where = f"named data `{path[1]}`" + (f": {format_path(path[2:])}" if path[2:] else "")
    elif path[0] == "constant_methods" and len(path) > 1:
        where = f"constant method `{path[1]}`"
    else:
        where = format_path(path)
    return f"{where} {_words(change)}"


def _words(change: Change) -> str:
    if change.kind == "changed":
        return f"{show(change.before, change.path)} -> {show(change.after, change.path)}"
    value = change.after if change.kind == "added" else change.before
    return (
        change.kind
        if isinstance(value, dict) and len(change.path) <= 2
        else f"{change.kind}: {show(value, change.path)}"
    )


def _of_file(what: str, change: Change) -> str:
    return f"{what} `{change.path[0]}` {change.kind}"


def _of_data(change: Change, before: dict[str, Digests], after: dict[str, Digests]) -> Iterator[str]:
    """Lists the tensors that changed in a file of weights, if both builds recorded the tensors of the file."""
    name = change.path[0]
    if change.kind != "changed" or name not in before or name not in after:
        yield _of_file("data", change)
        return
    differing = list(changes(before[name], after[name]))
    if not differing:
        yield f"weights `{name}`: the same tensors in another file"
        return
    counts = {kind: sum(entry.kind == kind for entry in differing) for kind in ("changed", "added", "removed")}
    tensors = counted(len(before[name]), "tensor")
    changed = [f"{counts.pop('changed')} of {tensors} changed"] if counts["changed"] else []
    summary = [*changed, *(f"{count} {kind}" for kind, count in counts.items() if count)]
    yield f"weights `{name}`: {', '.join(summary)}"
    for entry in differing[:_NAMED]:
        yield f"    {entry.path[0]} {entry.kind}"
    if len(differing) > _NAMED:
        yield f"    and {len(differing) - _NAMED} more"


def _of_toolchain(before: Toolchain, after: Toolchain) -> Iterator[str]:
    if before["python"] != after["python"]:
        yield f"Python {before['python']} -> {after['python']}"
    releases = [{"driver": inputs["driver"], **inputs["distributions"]} for inputs in (before, after)]
    for name in ["driver", *sorted((releases[0].keys() | releases[1].keys()) - {"driver"})]:
        old, new = (inputs.get(name) for inputs in releases)
        if old is None or new is None:
            release, kind = (new, "added") if old is None else (old, "removed")
            assert release is not None
            yield f"{name} {release['version']} {kind}"
        elif old["version"] != new["version"]:
            yield f"{name} {old['version']} -> {new['version']}"
        elif old != new:
            yield f"{name} {old['version']}: other files in the same version"


def belongs_to(file: str, name: str) -> bool:
    """Whether a declared file may be one of the files that a name in the manifest stands for. The name is that of a
    file, an index or a folder."""
    kinds = (".safetensors", ".bin", *INDEX_SUFFIXES)
    if name.endswith(INDEX_SUFFIXES):
        return file == name or (PurePosixPath(file).parent == PurePosixPath(name).parent and file.endswith(kinds))
    return file == name or matches(file, name) or (file.rpartition("/")[0] == name and file.endswith(kinds))
