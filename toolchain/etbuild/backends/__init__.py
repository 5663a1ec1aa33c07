"""Finds backends by name, and exports the classes that packages need to add one. Checks options without torch.

Other packages add their own backends with an entry point of the group `etbuild.backends`, which names a subclass of
`Backend`. If a name is not one of the driver's backends, the driver loads the entry point with that name, and no other.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from etbuild import json_schema
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
    "options_at",
]

_CLASSES = {
    "cadence": "cadence.Cadence",
    "coreml": "coreml.backend.CoreMl",
    "cortex-m": "cortex_m.CortexM",
    "cuda": "cuda.Cuda",
    "custom": "custom.Custom",
    "ethos-u": "arm.ethos_u.EthosU",
    "mediatek": "mediatek.MediaTek",
    "metal": "metal.Metal",
    "mlx": "mlx.Mlx",
    "native": "native.Native",
    "nxp": "nxp.Nxp",
    "openvino": "openvino.OpenVino",
    "portable": "portable.Portable",
    "qualcomm": "qualcomm.Qualcomm",
    "samsung": "samsung.Samsung",
    "tosa": "arm.tosa.Tosa",
    "vgf": "arm.vgf.Vgf",
    "vulkan": "vulkan.Vulkan",
    "webgpu": "webgpu.WebGpu",
    "xnnpack": "xnnpack.Xnnpack",
}


class _BuiltIn(Mapping[str, BuiltInBackend]):
    """The driver's own backends, by name. Each module is imported when its backend is first used."""

    def __init__(self) -> None:
        self._made: dict[str, BuiltInBackend] = {}

    def __getitem__(self, name: str) -> BuiltInBackend:
        if name not in self._made:
            module, _, kind = _CLASSES[name].rpartition(".")
            self._made[name] = make(getattr(importlib.import_module(f"{__name__}.{module}"), kind))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


BACKENDS: Mapping[str, BuiltInBackend] = _BuiltIn()
"""The driver's own backends, by name."""

FROM_SOURCES = "custom"
"""The backend that stands for the unknown backends of a recipe from the declared sources."""


def find(name: str) -> Backend | None:
    """Returns the backend of this name, from the driver or from another package. None if there is none.

    Raises:
        InputError: The package of the backend is broken.
    """
    return BACKENDS.get(name) or entry_points.load(name)


def known() -> set[str]:
    """Returns the names of all backends, including those of other packages."""
    return {*BACKENDS, *entry_points.names()}


def get(name: str) -> Backend:
    """Returns the backend of a name that `check` has accepted.

    Raises:
        InputError: There is no such backend, or its package is broken.
    """
    backend = find(name)
    if backend is None:
        raise InputError([_unknown(name, ())])
    return backend


@contextlib.contextmanager
def asked(name: str, method: str, path: DocumentPath | None = None) -> Iterator[None]:
    """Returns a context manager for a call of a backend's method, such as `shown_name`, and a look at its answer.

    Args:
        name: The name of the backend.
        method: The name of the method.
        path: The document path that the method is asked about.

    Raises:
        InputError: The code inside failed, and the backend is one of a package. The error names the backend.
    """
    with _named(name, f"it was asked for `{method}`", path):
        yield


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


def claims(name: str) -> Backend:
    """Returns the backend of this name, for its attributes. One that claims nothing if there is none or it is broken,
    which `check` reports."""
    try:
        return find(name) or Backend()
    except InputError:
        return Backend()


def callables(name: str, options: Options) -> tuple[str, ...]:
    """Returns each `module:callable` of the declared sources that a partitioner's options name.

    A backend that is not installed has none: an index of a build elsewhere may name it.

    Raises:
        InputError: A backend of a package raised an error.
    """
    return _references(name, "callables", options)


def quantizer_callables(name: str, options: Options) -> tuple[str, ...]:
    """Returns the same as `callables` for a quantizer's options."""
    return _references(name, "quantizer_callables", options)


def _references(name: str, method: str, options: Options) -> tuple[str, ...]:
    backend = find(name)
    if backend is None:
        return ()
    with asked(name, method):
        found: object = getattr(backend, method)(options)
        if not isinstance(found, tuple) or not all(isinstance(each, str) and ":" in each for each in found):
            raise TypeError(f"{found!r} is not a tuple of `module:callable`")
        return found


def pairs_partitions_of(partitioner: Any, names: Iterable[str]) -> bool:
    """Returns whether its backend pairs the partitions of methods, for a partitioner that a recipe made.

    Args:
        partitioner: ExecuTorch's `Partitioner`.
        names: The backends that a plan names. The backend is looked for among them and the driver's own.

    Raises:
        InputError: A backend of a package raised an error.
    """
    backend = _backend_of(partitioner, names)
    if backend is None:
        return False
    with asked(backend.name, "pairs_partitions_of"):
        return backend.pairs_partitions_of(partitioner)


def grouping_key(name: str, options: Options, path: DocumentPath) -> tuple[str, str]:
    """Returns a key for the partitioner entry at `path`. The backend may be called once for entries with equal keys.

    Raises:
        InputError: A backend of a package raised an error, or its key is not JSON data.
    """
    backend = get(name)
    with asked(name, "grouping_key", path):
        return name, json.dumps(backend.grouping_key(options), sort_keys=True)


def grouping_key_of(partitioner: Any, names: Iterable[str]) -> str:
    """Returns the second part of `grouping_key` for a partitioner that a recipe or a factory made.

    Args:
        partitioner: ExecuTorch's `Partitioner`.
        names: The backends that a plan names. The backend is looked for among them and the driver's own.

    Raises:
        InputError: A backend of a package raised an error, or its key is not JSON data.
    """
    backend = _backend_of(partitioner, names)
    if backend is None:
        return json.dumps(None)
    with asked(backend.name, "grouping_key_of"):
        return json.dumps(backend.grouping_key_of(partitioner), sort_keys=True)


def _backend_of(partitioner: Any, names: Iterable[str]) -> Backend | None:
    for backend in _ours_and(names):
        with asked(backend.name, "recognizes"):
            if backend.recognizes(partitioner):
                return backend
    return None


def of_delegate(delegate_id: str, names: Iterable[str]) -> Backend | None:
    """Returns the backend that compiled a delegate. None if it is neither the driver's own nor one of `names`.

    Args:
        delegate_id: ExecuTorch's name of the backend.
        names: The backends that a plan names.
    """
    return next((backend for backend in _ours_and(names) if backend.delegate_id == delegate_id), None)


def of_driver(names: Iterable[str]) -> list[str]:
    """Returns the driver's own backends that run if a plan names these: all of them if one of these may call any."""
    wanted = {*names}
    calls_any = any(name not in BACKENDS or BACKENDS[name].delegates_to_any for name in wanted)
    return [name for name in BACKENDS if calls_any or name in wanted]


def _ours_and(names: Iterable[str]) -> list[Backend]:
    """Returns the driver's own backends that may run, and then the named ones of packages, which cannot replace the
    driver's."""
    wanted = {*names}
    return [get(name) for name in (*of_driver(wanted), *sorted(wanted - BACKENDS.keys()))]


def named_data_is_weights(delegate_id: str, names: Iterable[str]) -> bool:
    """Returns whether a delegate's named data depends only on its weights. False for the backends of packages, since
    the driver cannot check their claim. `names` are the backends that a plan names."""
    ours = (BACKENDS[name] for name in of_driver(names))
    return any(each.named_data_is_weights for each in ours if each.delegate_id == delegate_id)


def loads_everywhere(delegate_id: str, names: Iterable[str]) -> bool:
    """Returns whether ExecuTorch's runtime can load the delegates on the machine that built them, whatever it has.
    `names` are the backends that a plan names."""
    ours = (BACKENDS[name] for name in of_driver(names))
    return any(each.loads_everywhere for each in ours if each.delegate_id == delegate_id)


def stored_weights(delegate_id: str, compiled: bytes, named_data: Any, names: Iterable[str]) -> StoredWeights | None:
    """Returns where a delegate keeps its weights. None if `compiled` and each blob of `named_data` count as a whole.

    Args:
        delegate_id: ExecuTorch's name of the backend.
        compiled: The compiled partition.
        named_data: The delegate's `NamedDataStoreOutput`, if it has one.
        names: The backends that a plan names.

    Raises:
        InputError: A backend of a package raised an error.
    """
    backend = of_delegate(delegate_id, names)
    if backend is None:
        return None
    with asked(backend.name, "stored_weights"):
        stored = backend.stored_weights(compiled, named_data)
        if not isinstance(stored, StoredWeights | None):
            raise TypeError(f"{stored!r} is not a `StoredWeights`")
        return stored


def mutable_buffers_hint(delegate_id: str, names: Iterable[str]) -> str | None:
    """Returns what to write in a manifest so that delegates leave out buffers that methods write to. None if there is
    no such option."""
    backend = of_delegate(delegate_id, names)
    return None if backend is None else backend.mutable_buffers_hint


def check_delegated(
    name: str, options: Options, delegated: Mapping[str, Iterable[str]], path: DocumentPath
) -> list[Problem]:
    """Returns the problems for which the runtime would refuse a lowered method.

    Args:
        name: The name of the backend.
        options: The options of its partitioner.
        delegated: The operators inside the method's delegates, by ExecuTorch's name of their backend.
        path: The document path of the options.

    Raises:
        InputError: A backend of a package raised an error.
    """
    backend = get(name)
    operators = set(delegated.get(backend.delegate_id or "", ()))
    with asked(name, "check_delegated", path):
        return _below(path, backend.check_delegated(options, operators))


def owner(name: str) -> str | None:
    """Returns the distribution that a backend comes from. None if it is one of the driver's own."""
    return None if name in BACKENDS else entry_points.owner(name)


def check(name: str, options: Options, path: DocumentPath) -> list[Problem]:
    """Returns the problems of the partitioner entry at `path` of a manifest."""
    try:
        backend = find(name)
    except InputError as error:
        return [replace(problem, path=path) for problem in error.problems]
    if backend is None:
        return [_unknown(name, path)]
    options_path = (*path, "options")
    problems = json_schema.problems(backend.options_schema, options, options_path)
    if problems:
        return problems
    try:
        with asked(name, "check_options", options_path):
            return _below(options_path, backend.check_options(options))
    except InputError as error:
        return error.problems


def check_quantizer(name: str, options: Options, path: DocumentPath) -> list[Problem]:
    """Returns the problems of the quantizer entry at `path` of a manifest."""
    try:
        backend = find(name)
    except InputError as error:
        return [replace(problem, path=path) for problem in error.problems]
    if backend is not None and backend.quantizer_schema is not None and backend.has_quantizer:
        return json_schema.problems(backend.quantizer_schema, options, (*path, "options"))
    message = f"unknown backend `{name}`" if backend is None else f"the backend `{name}` has no quantizer"
    without = {one.name for one in BACKENDS.values() if not one.has_quantizer}
    return [Problem(message, path, did_you_mean(name, known() - without - {name}))]


def _below(path: DocumentPath, problems: Sequence[Problem]) -> list[Problem]:
    """Makes the paths of problems, which are relative to the options at `path`, relative to the manifest."""
    return [replace(problem, path=(*path, *(problem.path or ()))) for problem in problems]


def _unknown(name: str, path: DocumentPath) -> Problem:
    return Problem(f"unknown backend `{name}`", path, did_you_mean(name, known()))


def check_installed(named: Mapping[str, DocumentPath], entries: Mapping[DocumentPath, Mapping[str, Any]]) -> None:
    """Checks that everything that the backends need is installed.

    Args:
        named: The backends, each with the document path that names it.
        entries: The partitioner entries, by document path.

    Raises:
        InputError: Something is not installed. The message says what, and what to do.
    """
    problems = []
    for name, path in named.items():
        with _named(name, "it looked for what it needs", path):
            problems += missing(name, path)
    for path, entry in entries.items():
        with _named(entry["backend"], "it looked for what it needs", path):
            problems += _missing(entry["backend"], get(entry["backend"]).needs_for(entry["options"]), path)
    if problems:
        raise InputError(problems)


def missing(name: str, path: DocumentPath) -> list[Problem]:
    """Returns a problem for each missing need of the backend that a manifest names at `path`."""
    return _missing(name, get(name).needs, path)


def _missing(name: str, needs: Sequence[Need], path: DocumentPath) -> list[Problem]:
    return [
        Problem(f"the backend `{name}` needs {need.what}", path, need.install) for need in needs if not need.there()
    ]


@contextlib.contextmanager
def lowering_context(names: Iterable[str], partitioners: Partitioners) -> Iterator[None]:
    """Returns a context manager in which methods can be lowered together.

    Args:
        names: The backends that a plan names.
        partitioners: The partitioners of each method.
    """
    # A custom partitioner, or a recipe from the sources, may use one of the driver's backends.
    wanted = {*names}
    also = {name for name in of_driver(wanted) if BACKENDS[name].loaded_marker in sys.modules}
    with contextlib.ExitStack() as entered:
        for name in sorted(wanted | also):
            entered.enter_context(get(name).lowering_context(partitioners))
        yield
