"""What a backend is to the driver. Nothing here needs torch: a manifest is checked without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.errors import DocumentPath, InputError, Problem

Options = dict[str, Any]
Partitioners = Mapping[str, Sequence[Any]]
"""ExecuTorch's `Partitioner`s of each method."""


class OptionError(Exception):
    """An option has a value that its backend finds wrong only when it makes something of it.

    Args:
        message: What is wrong.
        path: Where in the options.
        hint: What to write instead.
    """

    def __init__(self, message: str, path: DocumentPath, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.path, self.hint = message, path, hint


@contextmanager
def options_at(path: DocumentPath) -> Iterator[None]:
    """Inside, an `OptionError` becomes an error of the manifest, which has the options at `path`."""
    try:
        yield
    except OptionError as error:
        raise InputError([Problem(error.message, (*path, *error.path), error.hint)]) from error


@dataclass(frozen=True)
class Context:
    """What a backend may ask for besides its options.

    Attributes:
        method: The method that the partitioner is for.
        load: Loads a `module:callable` of the declared sources.
        program: The method's exported program.
    """

    method: str
    load: Callable[[str], Any]
    program: Any


@dataclass(frozen=True)
class Edge:
    """What a backend wants of a method before any partitioner sees it.

    Attributes:
        passes: Run over the method in the edge dialect, in this order: callables on a graph module, or ExecuTorch's
            `ExportedProgramPassBase`.
        config: Fields of ExecuTorch's `EdgeCompileConfig`. There is one for the whole program: lists of several methods
            are put together, and of flags the most permissive one holds.
    """

    passes: Sequence[Any] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Need:
    """Something besides ExecuTorch's wheel without which a backend cannot lower.

    Attributes:
        what: Its name.
        install: What a user has to do to have it.
        there: Whether it is there: a quick look that imports nothing.
    """

    what: str
    install: str
    there: Callable[[], bool]


def _always(options: Options) -> bool:
    del options
    return True


@dataclass(frozen=True)
class Pairing:
    """A backend shares between methods by pairing their partitions, the first with the first: it needs as many in each.

    Attributes:
        of_options: Whether it does with these options of a manifest.
        of_partitioner: Whether it does with a partitioner that a recipe made, which holds where it does with those of
            all methods. None: the partitioner is not the backend's. Asked where the backend is one of ours, or the
            manifest names it.
        otherwise: What a manifest says to have it otherwise.
    """

    of_options: Callable[[Options], bool] = _always
    of_partitioner: Callable[[Any], bool | None] | None = None
    otherwise: str | None = None


@dataclass(frozen=True)
class Backend:
    """One backend.

    Attributes:
        name: Its name in a manifest.
        create: Makes ExecuTorch's `Partitioner` from the options. May raise an `OptionError`. None: nothing is
            delegated, and what the backend does it does in `edge`.
        separable: Lowering methods one by one and merging them gives what lowering them together gives: the backend
            inherits ExecuTorch's `preprocess_multimethod`, a loop over the methods, compiles a partition the same way
            whatever it has compiled before, pairs no partitions, and asks for nothing in `edge`. Of other packages'
            backends this is checked.
        pairing: How it pairs partitions of methods. None: it does not.
        apart: The backend is called for methods together where this gives the same of their options, else apart. None:
            always together.
        apart_of: The same of a partitioner that something else made: a recipe, or a factory. None: the partitioner is
            another backend's. Asked where the backend is one of ours, or the manifest names it.
        needs: What has to be installed.
        needs_for: What these options need besides.
        distributions: Distributions that reach the bytes besides those of ExecuTorch: they are part of the key.
        edge: What it wants of a method, by the method's options, which has this exported program.
        around: Is entered while all methods are lowered, given their partitioners by method, those of other backends
            and of a recipe too.
        module: The module of ExecuTorch that is there once something has made a partitioner of it, whatever that was;
            of a backend with `around`.
        options: The file with the JSON Schema of its options; None: `backend-NAME.schema.json` of this package, which
            has those of its own backends.
        check_options: What is wrong with options that their schema takes, each with its path in them.
        whole_program: What it asks of the edge dialect changes methods that do not name it: all methods have to.
        weight_only: It takes linear layers of which torchao has quantized the weights alone.
        create_quantizer: Makes its PT2E `Quantizer` from its options and `qat`: whether the method is trained. Its
            second argument loads a `module:callable` of the declared sources. May raise an `OptionError`. None: it has
            none.
        fold_quantize: It takes weights that are quantized already; else weights and the operator that quantizes them.
        same_options: Options of the quantizer that have to be those of the partitioner.
        quantizer_options: The same of the quantizer's options; None: `quantizer-NAME.schema.json`.
    """

    name: str
    create: Callable[[Options, Context], Any] | None
    separable: bool
    pairing: Pairing | None = None
    apart: Callable[[Options], Any] | None = None
    apart_of: Callable[[Any], Any] | None = None
    needs: tuple[Need, ...] = ()
    needs_for: Callable[[Options], tuple[Need, ...]] | None = None
    distributions: tuple[str, ...] = ()
    edge: Callable[[Options, Any], Edge] | None = None
    around: Callable[[Partitioners], AbstractContextManager[None]] | None = None
    module: str | None = None
    options: Path | None = None
    check_options: Callable[[Options], list[Problem]] | None = None
    whole_program: bool = False
    weight_only: bool = False
    create_quantizer: Callable[[Options, Callable[[str], Any]], Any] | None = None
    fold_quantize: bool = True
    quantizer_options: Path | None = None
    same_options: tuple[str, ...] = ()

    def check(self, options: Options, path: DocumentPath) -> list[Problem]:
        """What is wrong with the options that stand at `path`."""
        found = json_schema.problems(self.options or f"backend-{self.name}", options, path)
        if found or self.check_options is None:
            return found
        return [replace(problem, path=(*path, *(problem.path or ()))) for problem in self.check_options(options)]

    def check_quantizer(self, options: Options, path: DocumentPath) -> list[Problem]:
        """What is wrong with the quantizer's options that stand at `path`."""
        return json_schema.problems(self.quantizer_options or f"quantizer-{self.name}", options, path)

    def missing(self, path: DocumentPath) -> list[Problem]:
        """What is not installed that the backend needs, which the manifest names at `path`."""
        return self._missing(self.needs, path)

    def missing_for(self, options: Options, path: DocumentPath) -> list[Problem]:
        """What is not installed that these options need, which are those of the entry at `path`."""
        return self._missing(self.needs_for(options) if self.needs_for else (), path)

    def _missing(self, needs: Sequence[Need], path: DocumentPath) -> list[Problem]:
        return [
            Problem(f"the backend `{self.name}` needs {need.what}", path, need.install)
            for need in needs
            if not need.there()
        ]
