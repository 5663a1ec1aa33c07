"""Checks the partitioners of a manifest."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild import backends, json_schema
from etbuild.backends import call_slots
from etbuild.errors import DocumentPath, InputError, Problem, unknown
from etbuild.manifest import sections


def check(defaults: sections.Defaults, methods: dict[str, sections.Method]) -> Iterator[Problem]:
    """Yields the problems of the partitioners of all methods that a schema cannot find."""
    yield from _check_defaults(defaults, methods)
    for name, method in methods.items():
        yield from _check_list(method.get("partitioners", []), ("methods", name, "partitioners"))
    yield from _check_whole_programs({name: of_method(defaults, methods, name)[0] for name in methods})


def _check_defaults(defaults: sections.Defaults, methods: dict[str, sections.Method]) -> Iterator[Problem]:
    partitioners = defaults.get("partitioners", [])
    if isinstance(partitioners, list):
        yield from _check_list(partitioners, ("defaults", "partitioners"))
        return
    for name, hint in unknown(partitioners, methods):
        yield Problem(f"there is no method `{name}`", ("defaults", "partitioners", name), hint, at_key=True)
    for name, entries in partitioners.items():
        path = ("defaults", "partitioners", name)
        if "partitioners" in methods.get(name, {}):
            yield Problem(f"`methods.{name}.partitioners` sets it too", path, "keep one of the two", at_key=True)
        yield from _check_list(entries, path)


def _check_list(entries: sections.Partitioners, path: DocumentPath) -> Iterator[Problem]:
    seen = set()
    for index, entry in enumerate(entries):
        here = (*path, index)
        name, options = name_and_options(entry)
        yield from at_name(backends.check(name, options, here), entry, here)
        if (name, json_schema.canonical(options)) in seen:
            yield Problem("the same partitioner is listed twice", here, "remove one of them")
        seen.add((name, json_schema.canonical(options)))
        if index != len(entries) - 1 and backends.claims(name).takes_the_rest:
            message = f"`{name}` takes all remaining operators, so no partitioner can follow it"
            yield Problem(message, here, "move it to the end")


def name_and_options(entry: str | sections.BackendEntry) -> tuple[str, sections.Options]:
    """The name of a backend, and its options."""
    return (entry, {}) if isinstance(entry, str) else (entry["backend"], entry.get("options", {}))


def names(manifest: sections.Manifest) -> set[str]:
    """The names of all backends in lists of partitioners, also of those that no method uses."""
    inherited = manifest.get("defaults", {}).get("partitioners", [])
    lists = [inherited] if isinstance(inherited, list) else [*inherited.values()]
    lists += [method.get("partitioners", []) for method in manifest.get("methods", {}).values()]
    return {name_and_options(entry)[0] for entries in lists for entry in entries}


def at_name(problems: list[Problem], entry: str | sections.BackendEntry, path: DocumentPath) -> Iterator[Problem]:
    """Yields the problems. Those of the whole entry get the place of its name."""
    name_path = (*path, "backend") if isinstance(entry, dict) else path
    for problem in problems:
        yield Problem(problem.message, name_path, problem.hint) if problem.path == path else problem


def of_method(
    defaults: sections.Defaults, methods: dict[str, sections.Method], name: str
) -> tuple[sections.Partitioners, DocumentPath]:
    """The partitioners of a method, its own or inherited, and their place."""
    if "partitioners" in methods[name]:
        return methods[name]["partitioners"], ("methods", name, "partitioners")
    inherited = defaults.get("partitioners", [])
    if isinstance(inherited, list):
        return inherited, ("defaults", "partitioners")
    return inherited.get(name, []), ("defaults", "partitioners", name)


def check_orders(data: sections.Manifest) -> list[Problem]:
    """Checks that one order of the partitioners works for all methods. The rest of the manifest is valid.

    The partitioners of a recipe are not known yet. Together with those of ExecuTorch's recipes, no order is wrong: the
    tests of `call_slots` show that.
    """
    defaults, methods = data.get("defaults", {}), data.get("methods", {})
    lists = {}
    try:
        for name in methods:
            entries, path = of_method(defaults, methods, name)
            named = [(*name_and_options(entry), (*path, index)) for index, entry in enumerate(entries)]
            lists[name] = [call_slots.item(*entry) for entry in named if backends.get(entry[0]).has_partitioner]
        call_slots.check(lists)
    except InputError as error:
        return error.problems
    return []


def _check_whole_programs(lowered: dict[str, sections.Partitioners]) -> Iterator[Problem]:
    """Checks that a backend with a setting of the whole program is a backend of every method."""
    lists = {id(entries): {name_and_options(entry)[0] for entry in entries} for entries in lowered.values()}
    for backend in sorted(set().union(*lists.values())):
        if not backends.claims(backend).whole_program:
            continue
        for name in sorted(name for name, entries in lowered.items() if backend not in lists[id(entries)]):
            message = f"`{backend}` changes operators in all methods of a program, but this method does not list it"
            yield Problem(message, ("methods", name), "list it here too, or make two programs", at_key=True)
