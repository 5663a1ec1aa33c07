"""Finds backends by name, and exports the classes that packages need to add one. Checks options without torch.

Other packages add their own backends with an entry point of the group `etbuild.backends`, which names a subclass of
`Backend`. If a name is not one of the driver's backends, the driver loads the entry point with that name, and no other.
All functions raise an InputError if the package of a backend is broken, or if a method of the backend fails.

A `delegate_id` is ExecuTorch's name of a backend, and `names` are the backends that a plan names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from etbuild import json_schema, plugins
from etbuild.backends import entry_points
from etbuild.backends.backend import (
    Backend,
    BuiltInBackend,
    Context,
    EdgeRequirements,
    Need,
    OptionError,
    Options,
    Partitioners,
    QuantizerContext,
    StoredWeights,
    WeightFunction,
    make,
    options_at,
)
from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean

__all__ = [
    "BACKENDS",
    "Backend",
    "Context",
    "EdgeRequirements",
    "Need",
    "OptionError",
    "Options",
    "Partitioners",
    "QuantizerContext",
    "StoredWeights",
    "WeightFunction",
    "options_at",
]

_CLASSES = {
    "custom": "custom.Custom",
    "native": "portable.Native",
    "portable": "portable.Portable",
    "xnnpack": "xnnpack.Xnnpack",
}
_GROUP, _FORMER = "backend", "former_backend"


@functools.cache
def _built_in(name: str) -> BuiltInBackend:
    module, _, kind = _CLASSES.get(name, "").rpartition(".")
    of_driver = name in _CLASSES
    found = getattr(importlib.import_module(f"{__name__}.{module}"), kind) if of_driver else plugins.load(_GROUP, name)
    backend: BuiltInBackend = make(found)
    return backend


class _BuiltIn(Mapping[str, BuiltInBackend]):
    """The backends of the driver and its plug-ins, by name. Each module is imported when its backend is first used.

    It contains also names of plug-ins whose code is not here, for messages.
    """

    def __getitem__(self, name: str) -> BuiltInBackend:
        if name not in self:
            raise KeyError(name)
        return _built_in(name)

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES or name in plugins.group(_GROUP)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_CLASSES, *(name for name, each in plugins.group(_GROUP).items() if each.is_here)}))

    def __len__(self) -> int:
        return sum(1 for _ in self)


BACKENDS: Mapping[str, BuiltInBackend] = _BuiltIn()
"""The backends of the driver and of its plug-ins, by name."""

FROM_SOURCES = "custom"
"""The backend in place of the unknown backends of a recipe from the declared sources."""


def find(name: str) -> Backend | None:
    """Returns the backend of this name, from the driver or from another package. None if there is none."""
    return BACKENDS.get(name) or entry_points.load(name)


def known() -> set[str]:
    """Returns the names of all backends, including those of other packages."""
    return {*_CLASSES, *plugins.group(_GROUP), *entry_points.names()}


def get(name: str) -> Backend:
    """Returns the backend of a name that `check` has accepted. Any other name is an InputError."""
    backend = find(name)
    if backend is None:
        raise InputError([_unknown(name, ())])
    return backend


def ask(backend: Backend, method: str, *arguments: Any, path: DocumentPath | None = None) -> Any:
    """Calls a method of a backend, such as `shown_name`, and checks its answer.

    If the method fails or its answer has a wrong type, and the backend is one of a package, the error names the
    backend, at `path`.
    """
    with _named(backend.name, f"it was asked for `{method}`", path):
        answer = getattr(backend, method)(*arguments)
        _CHECKS.get(method, lambda answer: None)(answer)
        return answer


def _check_callables(answer: object) -> None:
    if not isinstance(answer, tuple) or not all(isinstance(each, str) and ":" in each for each in answer):
        raise TypeError(f"{answer!r} is not a tuple of `module:callable`")


def _check_stored_weights(answer: object) -> None:
    if not isinstance(answer, StoredWeights | None):
        raise TypeError(f"{answer!r} is not a `StoredWeights`")


def _as_key(answer: object) -> str:
    return json.dumps(answer, sort_keys=True)


_CHECKS: dict[str, Callable[[Any], object]] = {
    "callables": _check_callables,
    "quantizer_callables": _check_callables,
    "stored_weights": _check_stored_weights,
    "grouping_key": _as_key,
    "grouping_key_of": _as_key,
}
"""For some methods, a function that raises an exception for an answer of a wrong type."""


@contextlib.contextmanager
def _named(name: str, action: str, path: DocumentPath | None) -> Iterator[None]:
    """Turns an exception of another package's backend into an error that names the backend."""
    try:
        yield
    except Exception as error:
        if name in BACKENDS:
            raise
        from etbuild.exception_text import summary

        message = f"the backend `{name}` failed when {action}: {summary(error)}"
        raise InputError([Problem(message, path)]) from error


def distributions(names: Iterable[str]) -> set[str]:
    """Returns the distributions that can change the bytes if these backends are used, without those of ExecuTorch."""
    required: set[str] = set()
    for name in names:
        backend = get(name)
        required.update(backend.distributions)
        if backend.delegates_to_any:
            required.update(*(each.distributions for each in BACKENDS.values()))
        if name not in BACKENDS:
            required.update(filter(None, [entry_points.owner(name)]))
    return required


def separable(names: Iterable[str]) -> bool:
    """Returns whether methods with only these backends can be lowered one by one."""
    return all(get(name).separable for name in names)


def compiles_weights(names: Iterable[str]) -> bool:
    """Returns whether one of these backends may compile the content of weights into the methods that it takes."""
    return not all(get(name).compiles_templates for name in names)


def weight_functions(names: Iterable[str]) -> dict[str, WeightFunction]:
    """Returns the functions of backends that read the content of weights, by the names of backend and function."""
    return {
        f"{name}.{function}": each for name in names for function, each in ask(get(name), "weight_functions").items()
    }


def claims(name: str) -> Backend:
    """Returns the backend of this name, for its attributes. If it is missing or broken, which `check` reports, returns
    a backend without claims."""
    try:
        return find(name) or Backend()
    except InputError:
        return Backend()


def callables(name: str, options: Options, method: str = "callables") -> tuple[str, ...]:
    """Returns each `module:callable` of the declared sources that the options of a partitioner or a quantizer name.

    Empty for a backend that is not installed, which an index from elsewhere may name. `method` is `callables` for a
    partitioner, and `quantizer_callables` for a quantizer.
    """
    backend = find(name)
    return () if backend is None else ask(backend, method, options)


def grouping_key(name: str, options: Options, path: DocumentPath) -> str:
    """Returns a key for the partitioner entry at `path`. The backend may be called once for entries with equal keys."""
    return _as_key(ask(get(name), "grouping_key", options, path=path))


def ask_recognizing(partitioner: Any, names: Iterable[str], method: str) -> Any:
    """Calls a method, such as `pairs_partitions_of`, of the backend that recognizes a partitioner.

    Args:
        partitioner: ExecuTorch's `Partitioner`, which a recipe or a factory made.
        names: The backend is looked for among these and the driver's own.
        method: The name of the method.

    Returns:
        The answer. None if no backend recognizes the partitioner.
    """
    backend = next((one for one in _ours_and(names) if ask(one, "recognizes", partitioner)), None)
    return None if backend is None else ask(backend, method, partitioner)


def of_delegate(delegate_id: str, names: Iterable[str]) -> Backend | None:
    """Returns the backend that compiled a delegate. None if it is neither the driver's own nor one of `names`."""
    return next((backend for backend in _ours_and(names) if backend.delegate_id == delegate_id), None)


def of_driver(names: Iterable[str]) -> list[str]:
    """Returns the driver's own backends that run if a plan names these: all, if one of these may delegate to any."""
    used = {*names}
    every = calls_any(used)
    return [name for name in BACKENDS if every or name in used]


def calls_any(names: Iterable[str]) -> bool:
    """Returns whether one of these backends may call any of the driver's own."""
    return any(name not in BACKENDS or BACKENDS[name].delegates_to_any for name in names)


def _ours_and(names: Iterable[str]) -> list[Backend]:
    """Returns the driver's own backends that may run, and then the named ones of packages, which cannot replace the
    driver's."""
    used = {*names}
    return [get(name) for name in (*of_driver(used), *sorted(used - BACKENDS.keys()))]


def named_data_is_weights(delegate_id: str, names: Iterable[str]) -> bool:
    """Returns whether a delegate's named data depends only on its weights. False for the backends of packages, since
    the driver cannot check their claim."""
    backend = of_delegate(delegate_id, names)
    return isinstance(backend, BuiltInBackend) and backend.named_data_is_weights


def loads_everywhere(delegate_id: str, names: Iterable[str]) -> bool:
    """Returns whether ExecuTorch's runtime can load the delegates on any machine that can build them."""
    backend = of_delegate(delegate_id, names)
    return isinstance(backend, BuiltInBackend) and backend.loads_everywhere


def stored_weights(delegate_id: str, compiled: bytes, named_data: Any, names: Iterable[str]) -> StoredWeights | None:
    """Returns what `Backend.stored_weights` says of a delegate. None if `compiled` and each blob of `named_data` count
    as a whole."""
    backend = of_delegate(delegate_id, names)
    return None if backend is None else ask(backend, "stored_weights", compiled, named_data)


def check_delegated(
    name: str, options: Options, delegated: Mapping[str, Iterable[str]], path: DocumentPath
) -> list[Problem]:
    """Returns the problems for which the runtime would refuse a lowered method.

    Args:
        name: The name of the backend.
        options: The options of its partitioner.
        delegated: The operators inside the method's delegates, by `delegate_id`.
        path: The document path of the options.
    """
    backend = get(name)
    operators = set(delegated.get(backend.delegate_id or "", ()))
    return _below(path, ask(backend, "check_delegated", options, operators, path=path))


def owner(name: str) -> str | None:
    """Returns the distribution that a backend comes from. None if it is one of the driver's own."""
    return None if name in BACKENDS else entry_points.owner(name)


def check(name: str, options: Options, path: DocumentPath) -> list[Problem]:
    """Returns the problems of the partitioner entry at `path` of a manifest."""
    options_path = (*path, "options")
    try:
        backend = find(name)
        if backend is None:
            return [_unknown(name, path)]
        problems = json_schema.problems(backend.options_schema, options, options_path)
        return problems or _below(options_path, ask(backend, "check_options", options, path=options_path))
    except InputError as error:
        return [replace(problem, path=problem.path or path) for problem in error.problems]


def check_here(name: str, path: DocumentPath) -> list[Problem]:
    """Returns a problem if the code of the backend is missing to which what stands at `path` of a manifest lowers."""
    try:
        find(name)
    except InputError as error:
        return [replace(problem, path=path) for problem in error.problems]
    return []


def check_quantizer(name: str, options: Options, path: DocumentPath) -> list[Problem]:
    """Returns the problems of the quantizer entry at `path` of a manifest."""
    if problems := check_here(name, path):
        return problems
    backend = find(name)
    if backend is not None and backend.quantizer_schema is not None and backend.has_quantizer:
        return json_schema.problems(backend.quantizer_schema, options, (*path, "options"))
    message = f"unknown backend `{name}`" if backend is None else f"the backend `{name}` has no quantizer"
    without = {one.name for one in BACKENDS.values() if not one.has_quantizer}
    return [Problem(message, path, did_you_mean(name, known() - without - {name}))]


def _below(path: DocumentPath, problems: Sequence[Problem]) -> list[Problem]:
    """Makes the paths of problems, which are relative to the options at `path`, relative to the manifest."""
    return [replace(problem, path=(*path, *(problem.path or ()))) for problem in problems]


def _unknown(name: str, path: DocumentPath) -> Problem:
    hint = plugins.load(_FORMER, name) if name in plugins.group(_FORMER) else did_you_mean(name, known())
    return Problem(f"unknown backend `{name}`", path, hint)


def check_installed(named: Mapping[str, DocumentPath], entries: Mapping[DocumentPath, Mapping[str, Any]]) -> None:
    """Checks that everything that the backends need is installed.

    Args:
        named: The backends, each with the document path that names it.
        entries: The partitioner entries, by document path.

    Raises:
        InputError: Something is not installed. The message says what, and what to do.
    """
    problems = [problem for name, path in named.items() for problem in missing(name, path)]
    for path, entry in entries.items():
        problems += missing(entry["backend"], path, entry["options"])
    InputError.raise_if(problems)


def missing(name: str, path: DocumentPath, options: Options | None = None) -> list[Problem]:
    """Returns a problem for each missing need of the backend that a manifest names at `path`.

    Args:
        name: The name of the backend.
        path: The document path.
        options: The options of a partitioner, for what they need in addition. None: what the backend always needs.
    """
    backend = get(name)
    with _named(name, "it looked for what it needs", path):
        needs = backend.needs if options is None else backend.needs_for(options)
        absent = [need for need in needs if not need.there()]
    return [Problem(f"the backend `{name}` needs {need.what}", path, need.hint()) for need in absent]


@contextlib.contextmanager
def lowering_context(names: Iterable[str], partitioners: Partitioners) -> Iterator[None]:
    """Returns a context manager in which methods can be lowered together, with their partitioners."""
    # A custom partitioner, or a recipe from the sources, may use one of the driver's backends.
    named = {*names}
    loaded = {name for name in of_driver(named) if BACKENDS[name].loaded_marker in sys.modules}
    with contextlib.ExitStack() as contexts:
        for name in sorted(named | loaded):
            contexts.enter_context(get(name).lowering_context(partitioners))
        yield
