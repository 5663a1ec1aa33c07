"""Defines the interface of a backend. Nothing here imports torch, because manifests are checked without it."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from etbuild import json_schema
from etbuild.errors import DocumentPath, InputError, Problem

Options = dict[str, Any]
"""The options of a partitioner or a quantizer in a manifest, as JSON data."""

Partitioners = Mapping[str, Sequence[Any]]
"""ExecuTorch's `Partitioner`s by method, in the order in which ExecuTorch calls them."""

LOOP = "__loop__"
"""Marks an override of `preprocess_multimethod` that gives the same results as ExecuTorch's loop."""


class OptionError(Exception):
    """An option has an invalid value that is only noticed when the partitioner or the quantizer is made.

    Args:
        message: The problem.
        path: The location in the options, such as `("operators", 1)`.
        hint: What to write instead.
    """

    def __init__(self, message: str, path: DocumentPath, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.path, self.hint = message, path, hint


@contextmanager
def options_at(path: DocumentPath) -> Iterator[None]:
    """Returns a context manager that turns an `OptionError` into an error of the manifest, whose options are at
    `path`."""
    try:
        yield
    except OptionError as error:
        raise InputError.at((*path, *error.path), error.message, error.hint) from error


class InterfaceError(TypeError):
    """A backend's class does not fit the interface of `Backend`. The message names the attribute."""


@dataclass(frozen=True)
class Context:
    """The arguments of `Backend.create_partitioner` other than the options.

    Attributes:
        method: The name of the method that the partitioner is for.
        load: Loads a `module:callable` of the declared sources. `Backend.callables` has to name it.
        program: The method's `torch.export.ExportedProgram`, before it is converted to the edge dialect.
    """

    method: str
    load: Callable[[str], Any]
    program: Any


@dataclass(frozen=True)
class QuantizerContext:
    """The arguments of `Backend.create_quantizer` other than the options.

    Attributes:
        qat: Whether the method is trained with simulated quantization (quantization-aware training).
        load: Loads a `module:callable` of the declared sources. `Backend.quantizer_callables` has to name it.
    """

    qat: bool
    load: Callable[[str], Any]


@dataclass(frozen=True)
class EdgeRequirements:
    """The changes to a method that a backend needs before any partitioner sees it.

    Attributes:
        passes: The passes to run over the method in the edge dialect, in this order. Each is a callable that takes a
            graph module, or an `ExportedProgramPassBase` of ExecuTorch.
        config: Fields of ExecuTorch's `EdgeCompileConfig`, by name. A program has one configuration: the lists of its
            methods are joined, and the most permissive value of a flag is used.
    """

    passes: Sequence[Any] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Need:
    """Something that a backend needs for lowering and that ExecuTorch's wheel does not contain.

    Attributes:
        what: Its name, as in "the backend `NAME` needs WHAT".
        install: How the user can install it, or what returns it.
        there: Returns whether it is installed. Must be fast, and must not import anything.
    """

    what: str
    install: str | Callable[[], str]
    there: Callable[[], bool]

    def hint(self) -> str:
        """Returns how the user can install it."""
        return self.install if isinstance(self.install, str) else self.install()


@dataclass(frozen=True)
class StoredWeights:
    """Where a delegate keeps its weights.

    Attributes:
        program: A string that is equal for delegates that store the same weights in the same place.
        size: The number of bytes that the weights take in the artifacts.
        blobs: The size of each weight in bytes, by a name for the location where it is stored. Delegates of a program
            with a common name read the same copy.
    """

    program: str
    size: int
    blobs: dict[str, int]


@dataclass(frozen=True)
class WeightFunction:
    """A function that reads the content of weights.

    Attributes:
        owner: The module or class that has it. Callers find it there.
        attribute: Its name there.
        checks: Whether it only raises an exception for wrong content. Otherwise it returns a tensor whose dtype and
            shape do not depend on content.
    """

    owner: Any
    attribute: str
    checks: bool


class Backend:
    """Base class of all backends. A subclass sets the attributes and overrides the methods that its backend needs.

    The driver makes one instance of each subclass, without arguments, and checks it. Public names in a subclass must
    exist in this class: start your own names with `_`. Exceptions of a method are reported to the user as errors of
    the backend, with the location in the manifest.

    Attributes:
        name: Its name in a manifest, and of the entry point.
        separable: Whether lowering methods one by one and merging them gives the same bytes as lowering them together.
            Such a backend inherits ExecuTorch's `preprocess_multimethod`, compiles a partition independently of earlier
            ones, and has neither `pairs_partitions` nor `edge_requirements`. The driver checks this claim for a
            package.
        compiles_templates: Whether it compiles a partition in the same way for all checkpoints: weights are only in its
            named data, under the digests of their content.
        options_schema: The file with the JSON Schema of the partitioner's options.
        quantizer_schema: The file with the JSON Schema of the quantizer's options. Required with `create_quantizer`.
        delegate_id: The name of its subclass of ExecuTorch's `BackendDetails`. None if it has none, or several.
        needs: The things that must be installed.
        distributions: Names of distributions whose content can change the bytes. They become part of the key.
            ExecuTorch's distributions and the backend's package always are part of it.
        pairing_hint: What to write in a manifest so that partitions are not paired. It becomes part of an error's hint.
        takes_weight_only_linear: Whether it takes linear layers in which torchao quantized only the weights.
        mutable_buffers_hint: What to write in a manifest so that its delegates leave out buffers that methods write to.
            None if it has no such option.
        ignores_zero_points: Whether it reads the scales of quantized weights but assumes that their zero points are 0.
            Then a build with other zero points fails.
        exact_gelu_only: The dtypes, such as `float32`, in which it computes the exact form of GELU even if a model uses
            the tanh form. That form is then written out before the lowering.
        whole_program: Whether `edge_requirements` changes methods that do not name the backend. Then all methods of a
            program must name it.
        takes_the_rest: Whether its partitioner leaves nothing for later ones, so that it must be the last.
        delegates_to_any: Whether its partitioners may delegate to any backend. Then their `DelegationSpec` decides
            which partitioners are lowered together, and the distributions of all backends are part of the key.
        fold_quantize: Whether it takes weights that are already quantized. If False, it takes weights in fp32, each
            with the operator that quantizes it.
        same_options: Names of options that the quantizer and the partitioner both have. A manifest must give them the
            same values.
    """

    name: str
    separable: bool
    options_schema: Path
    compiles_templates: bool = False
    quantizer_schema: Path | None = None
    delegate_id: str | None = None
    needs: tuple[Need, ...] = ()
    distributions: tuple[str, ...] = ()
    pairing_hint: str | None = None
    takes_weight_only_linear: bool = False
    mutable_buffers_hint: str | None = None
    ignores_zero_points: bool = False
    exact_gelu_only: tuple[str, ...] = ()
    whole_program: bool = False
    takes_the_rest: bool = False
    delegates_to_any: bool = False
    fold_quantize: bool = True
    same_options: tuple[str, ...] = ()

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes the partitioner of one method. A backend that does not override this delegates nothing.

        Args:
            options: The options in the manifest. `options_schema` and `check_options` have accepted them.
            context: The method.

        Returns:
            An `executorch.exir.backend.partitioner.Partitioner`. It should have its `DelegationSpec` as the attribute
            `delegation_spec`, as ExecuTorch's own partitioners do.

        Raises:
            OptionError: An option has a value that no schema can refuse.
        """
        raise NotImplementedError

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes the quantizer of one method. A backend that does not override this has no quantizer.

        Args:
            options: The options in the manifest. `quantizer_schema` has accepted them.
            context: The method.

        Returns:
            A `torchao.quantization.pt2e.quantizer.Quantizer`.

        Raises:
            OptionError: An option has a value that no schema can refuse.
        """
        raise NotImplementedError

    def check_options(self, options: Options) -> list[Problem]:
        """Checks conditions that a schema cannot express. Must not import torch.

        Args:
            options: The options of a partitioner. `options_schema` has accepted them.

        Returns:
            The problems. Their paths are relative to the options.
        """
        return []

    def needs_for(self, options: Options) -> tuple[Need, ...]:
        """Returns what must be installed for these options, in addition to `needs`."""
        return ()

    def callables(self, options: Options) -> tuple[str, ...]:
        """Returns each `module:callable` of the declared sources that the partitioner's options name.

        Their sources become part of the key, and can be imported while the partitioner is made.
        """
        return ()

    def quantizer_callables(self, options: Options) -> tuple[str, ...]:
        """Returns the same as `callables` for the quantizer's options."""
        return ()

    def shown_name(self, options: Options) -> str:
        """Returns the name of a partitioner with these options, for errors about the order of partitioners."""
        return self.name

    def recognizes(self, partitioner: Any) -> bool:
        """Returns whether a `Partitioner` that a recipe or a factory made delegates to this backend.

        It is called for the driver's own backends and for those that the manifest names.
        """
        spec = getattr(partitioner, "delegation_spec", None)
        return spec is not None and self.delegate_id is not None and spec.backend_id == self.delegate_id

    def pairs_partitions(self, options: Options) -> bool:
        """Returns whether it pairs the partitions of methods by index, so that they can share data.

        Then all methods must have the same number of partitions. Otherwise the build fails before the backend is
        called.
        """
        return False

    def pairs_partitions_of(self, partitioner: Any) -> bool:
        """Returns the same as `pairs_partitions` for a partitioner that it recognizes."""
        return False

    def grouping_key(self, options: Options) -> Any:
        """Returns JSON data as a key. Only partitioners with equal keys are lowered in one call."""
        return None

    def grouping_key_of(self, partitioner: Any) -> Any:
        """Returns the same as `grouping_key` for a partitioner that it recognizes."""
        return None

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns the changes that it needs to one method before the method is partitioned.

        Args:
            options: The options of the method's partitioner.
            program: The method's `torch.export.ExportedProgram`.
        """
        return EdgeRequirements()

    def lowering_context(self, partitioners: Partitioners) -> AbstractContextManager[None]:
        """Returns a context manager in which all methods are lowered.

        Args:
            partitioners: The partitioners of all methods, including those of other backends and of a recipe.
        """
        return nullcontext()

    def check_delegated(self, options: Options, operators: Collection[str]) -> list[Problem]:
        """Checks whether the runtime would accept a lowered method.

        Args:
            options: The options of the method's partitioner.
            operators: The operators inside the method's delegates of this backend, such as `aten::convolution`.

        Returns:
            The problems. Their paths are relative to the options.
        """
        return []

    def option_for_dtype(self, options: Options, dtype: str) -> Options:
        """Returns options with which the partitioner also takes operators of a dtype.

        Args:
            options: The options of the method's partitioner.
            dtype: PyTorch's name of the dtype, such as `bfloat16`.

        Returns:
            The options to add. Empty if it takes the dtype already, or with no option.
        """
        return {}

    def weight_functions(self) -> dict[str, WeightFunction]:
        """Returns functions of ExecuTorch's backend that read weights to convert or check them, by our own names.

        If a method is lowered without the content of weights, they are called later, when the content is known.
        """
        return {}

    def stored_weights(self, compiled: bytes, named_data: Any) -> StoredWeights | None:
        """Returns where a delegate keeps its weights.

        Args:
            compiled: The compiled partition (`processed_bytes`).
            named_data: Its `NamedDataStoreOutput`. None if it has no named data.

        Returns:
            The weights. None means that all of `compiled` and all blobs of its named data count as weights.
        """
        return None

    @property
    def has_partitioner(self) -> bool:
        """Whether the backend has `create_partitioner`."""
        return self._defines("create_partitioner")

    @property
    def has_quantizer(self) -> bool:
        """Whether the backend has `create_quantizer`."""
        return self._defines("create_quantizer")

    def _defines(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(Backend, method)


class BuiltInBackend(Backend):
    """A backend of the driver itself. Its schemas are found by its name, and it can make claims that the driver could
    not check for a package.

    Attributes:
        options_of: The backend that has the same options.
        loaded_marker: A module of ExecuTorch whose presence in `sys.modules` means that a partitioner of this backend
            was created. Then `lowering_context` is entered, even if the manifest does not name the backend.
        named_data_is_weights: Whether each blob of a delegate's named data depends only on the weights that the
            delegate reads, and never on its operators. Then a blob is stored under a tag if all its weights have that
            tag.
        loads_everywhere: Whether the runtime of ExecuTorch's package can load the backend's delegates on each machine,
            also in a fork of the process that made them. Then a build runs them, and compares.
    """

    options_of: str | None = None
    loaded_marker: str | None = None
    named_data_is_weights: bool = False
    loads_everywhere: bool = False

    def named_data_keys(self, compiled: bytes) -> set[str]:
        """Returns the keys of the named data that a compiled partition asks for, if the backend can tell."""
        return set()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "name"):  # only a shared base class has no name
            cls.options_schema = _schema(cls, f"backend-{cls.options_of or cls.name}")
            if cls.create_quantizer is not Backend.create_quantizer:
                cls.quantizer_schema = _schema(cls, f"quantizer-{cls.name}")


def _schema(kind: type, name: str) -> Path:
    """The schema of this name: of a plug-in beside its module, else of the driver."""
    beside = Path(str(sys.modules[kind.__module__].__file__)).with_name(f"{name}.schema.json")
    return beside if beside.exists() else json_schema.file(name)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "a string"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "str | None": (lambda value: isinstance(value, str | None), "a string or None"),
    "tuple[str, ...]": (lambda value: _is_tuple_of(str, value), "a tuple of strings"),
    "tuple[Need, ...]": (lambda value: _is_tuple_of(Need, value), "a tuple of `etbuild.backends.Need`"),
}
"""For types of attributes: whether a value has the type, and its name in messages."""

_Made = TypeVar("_Made", bound=Backend)


def make(kind: type[_Made]) -> _Made:
    """Makes the instance of a backend's class, and checks it.

    Raises:
        InterfaceError: An attribute is missing, does not have the type that `Backend` declares, is not defined in
            `Backend`, or contradicts another attribute.
    """
    for name in ("name", "separable", "options_schema"):
        if not hasattr(kind, name):
            raise InterfaceError(f"`{name}` is missing")
    backend = kind()
    _check_names(backend)
    _check_types(backend)
    # These depend on all methods: pairing lowers them together. The edge configuration holds for the whole program.
    for method in ("edge_requirements", "pairs_partitions", "pairs_partitions_of"):
        if backend.separable and backend._defines(method):
            raise InterfaceError(f"`separable` contradicts `{method}`: write `separable = False`, or leave it out")
    return backend


def _check_names(backend: Backend) -> None:
    base = BuiltInBackend if isinstance(backend, BuiltInBackend) else Backend
    known = {*dir(base), *Backend.__annotations__}
    for name in sorted({*dir(backend), *vars(backend)} - known):
        if not name.startswith("_"):
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean `{near[0]}`? " if near else ""
            raise InterfaceError(f"`{name}` is not a name of `Backend`: {meant}Names of your own start with `_`")


def _check_types(backend: Backend) -> None:
    for name, value in vars(Backend).items():
        if callable(value) and not callable(getattr(backend, name)):
            raise InterfaceError(f"`{name}` has to be a method")
    for name, kind in Backend.__annotations__.items():
        fits, expected = _KINDS.get(kind, (lambda value: True, ""))
        if not fits(getattr(backend, name)):
            raise InterfaceError(f"`{name}` has to be {expected}")


def _is_tuple_of(kind: type, value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, kind) for each in value)
