"""Checks the results of a backend before ExecuTorch puts them into programs.

ExecuTorch does not check what `preprocess_multimethod` returns. It drops extra results, and leaves partitions without a
result in the graph. If a result has the wrong type, it fails later with an error that does not name the backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult

from etbuild import releases
from etbuild.errors import BuildError, Problem, counted
from etbuild.patching import replaced, replacing

_HINT = (
    "`preprocess_multimethod` must return a dict from the names of the given methods to lists with "
    "one `PreprocessResult` for each partition"
)


def backend_class(backend_id: str) -> type[BackendDetails] | None:
    """The class that ExecuTorch calls for a backend; None: no imported module defines one."""
    # If two classes have the same name, ExecuTorch uses the last one.
    by_name: dict[str, type[BackendDetails]] = {each.__name__: each for each in BackendDetails.__subclasses__()}
    return by_name.get(backend_id)


_lower_all = backend_api.lower_all_submodules_to_backend


@replacing(backend_api, "lower_all_submodules_to_backend")
def checked(backend: str, *arguments: Any) -> None:
    """Calls a backend, and checks its results as soon as it returns them.

    Raises:
        BuildError: The backend did not return one valid result for each partition. The error names the backend.
    """
    owner = backend_class(backend)
    if owner is None:
        _lower_all(backend, *arguments)  # ends with ExecuTorch's own error
        return
    preprocess = owner.preprocess_multimethod

    def preprocess_multimethod(programs: Mapping[str, Sequence[Any]], specs: Any) -> Any:
        counts = {method: len(partitions) for method, partitions in programs.items()}  # a backend may change `programs`
        results = preprocess(programs, specs)
        problems = list(_problems(backend, counts, results))
        BuildError.raise_if(problems)
        return results

    with replaced(owner, "preprocess_multimethod", preprocess_multimethod):
        _lower_all(backend, *arguments)


def _problems(backend: str, counts: dict[str, int], results: Any) -> Iterator[Problem]:
    """The errors in the results of a backend. `counts` has the number of partitions of each method."""
    if not isinstance(results, Mapping):
        yield Problem(f"{backend} returned {_named(results)}, not a dict of results", ("methods",), _HINT)
        return
    for method in sorted(results.keys() - counts.keys(), key=str):
        yield Problem(f"{backend} returned results for `{method}`, which it was not given", ("methods",), _HINT)
    for method, count in sorted(counts.items()):
        for message in _messages(count, results.get(method)):
            yield Problem(f"{backend} returned {message}", ("methods", method, "partitioners"), _HINT)


def _messages(count: int, results: Any) -> Iterator[str]:
    """The errors in a backend's results for one method, as words that follow "the backend returned"."""
    if not isinstance(results, (list, tuple)):
        yield f"{_named(results)} for the method, not a list of results"
        return
    if len(results) != count:
        yield f"{counted(len(results), 'result')} for {counted(count, 'partition')}"
        return
    for number, result in enumerate(results):
        if not isinstance(result, PreprocessResult):
            yield f"{_named(result)} for partition {number}, not a `PreprocessResult`"
        elif not _is_blob(result.processed_bytes):
            yield f"{_named(result.processed_bytes)} as the compiled partition {number}, not bytes"
        elif not isinstance(result.data_store_output, NamedDataStoreOutput | None):
            problem = _named(result.data_store_output)
            yield f"{problem} as the named data of partition {number}, not a `NamedDataStoreOutput`"
        elif result.data_store_output is not None and _damage(result.data_store_output):
            yield f"named data for partition {number} that {_damage(result.data_store_output)}"


def _is_blob(value: Any) -> bool:
    return isinstance(value, bytes) or releases.is_file_backed(value)


def _damage(output: NamedDataStoreOutput) -> str | None:
    """The error in a partition's named data, as words that follow "named data that"; None: there is none."""
    wrong = sorted({_named(each) for each in output.buffers if not _is_blob(each)})
    if wrong:
        return f"has {' and '.join(wrong)} instead of `bytes`"
    entries = [entry for keys in (output.pte_data, *output.external_data.values()) for entry in keys.values()]
    known = range(len(output.buffers))
    if all(isinstance(entry, DataEntry) and entry.buffer_index in known for entry in entries):
        return None
    return "has keys without a blob"


def _named(value: Any) -> str:
    return "None" if value is None else f"`{type(value).__name__}`"
