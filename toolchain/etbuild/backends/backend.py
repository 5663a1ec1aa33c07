"""What a backend is to the driver. Nothing here imports torch: manifests are checked without it."""

from __future__ import annotations

import difflib
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


class OptionError(Exception):
    """An option has a value that its backend can only refuse when it makes a partitioner or a quantizer.

    Args:
        message: What is wrong.
        path: The place in the options, such as `("operators", 1)`.
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
        raise InputError.at((*path, *error.path), error.message, error.hint) from error


class InterfaceError(TypeError):
    """A class of a backend does not have what `Backend` asks for. The message names the attribute."""


@dataclass(frozen=True)
class Context:
    """What `Backend.create_partitioner` gets besides the options.

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
    """What `Backend.create_quantizer` gets besides the options.

    Attributes:
        qat: Whether the method is trained with simulated quantization (quantization-aware training).
        load: Loads a `module:callable` of the declared sources. `Backend.quantizer_callables` has to name it.
    """

    qat: bool
    load: Callable[[str], Any]


@dataclass(frozen=True)
class EdgeRequirements:
    """What a backend needs of a method before any partitioner sees it.

    Attributes:
        passes: Run over the method in the edge dialect, in this order: callables on a graph module, or ExecuTorch's
            `ExportedProgramPassBase`.
        config: Fields of ExecuTorch's `EdgeCompileConfig`, by name. A program has one configuration: lists of several
            methods are joined, and the most permissive value of a flag holds.
    """

    passes: Sequence[Any] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Need:
    """Something besides ExecuTorch's wheel that a backend needs for lowering.

    Attributes:
        what: Its name, as in "the backend `NAME` needs WHAT".
        install: What a user has to do to have it.
        there: Returns whether it is there. It must be quick, and import nothing.
    """

    what: str
    install: str
    there: Callable[[], bool]


@dataclass(frozen=True)
class StoredWeights:
    """Where a delegate keeps its weights.

    Attributes:
        program: Equal for delegates that store the same weights in the same place.
        size: Bytes that the weights take in the artifacts.
        blobs: The size of each weight in bytes, by a name of the place where it is stored. Delegates of a program that
            have a name in common read one copy.
    """

    program: str
    size: int
    blobs: dict[str, int]


class Backend:
    """Base class of all backends. A subclass says in its body what holds of the backend.

    The driver makes one instance of each subclass, without arguments, and checks it then. A public name in a subclass
    has to be one that this class has: names of your own start with `_`. What a method raises is reported to the user as
    an error of the backend, with the place in the manifest.

    Attributes:
        name: Its name in a manifest, and of the entry point.
        separable: Whether lowering methods one by one, and merging them, gives the bytes of lowering them together.
            Then the backend inherits ExecuTorch's `preprocess_multimethod`, compiles a partition the same way whatever
            it compiled before, and has neither `pairs_partitions` nor `edge_requirements`. The driver checks this claim
            of a package.
        options_schema: The file with the JSON Schema of the partitioner's options.
        quantizer_schema: The file with the JSON Schema of the quantizer's options. Required with `create_quantizer`.
        delegate_id: The name of its subclass of ExecuTorch's `BackendDetails`. None: it has none, or several.
        needs: What has to be installed.
        distributions: Names of distributions whose content reaches the bytes: they become part of the key. ExecuTorch's
            own, and the backend's package, always are.
        pairing_hint: What to write in a manifest so that partitions are not paired; part of an error's hint.
        takes_weight_only_linear: Whether it takes linear layers of which torchao has quantized only the weights.
        mutable_buffers_hint: What to write in a manifest so that it leaves buffers that methods write to outside of
            its delegates. None: it has no such option.
        ignores_zero_points: Whether it reads the scales of quantized weights and takes their zero points for zero. A
            build with other zero points then fails.
        whole_program: Whether `edge_requirements` changes methods that do not name the backend. Then all methods of a
            program have to name it.
        takes_the_rest: Whether nothing is left for a partitioner after it: it must be the last one.
        delegates_to_any: Whether its partitioners may be for any backend. Then their `DelegationSpec` decides which
            partitioners are lowered together, and the distributions of all backends are part of the key.
        fold_quantize: Whether it takes weights that are already quantized. False: it takes weights in fp32, each with
            the operator that quantizes it.
        same_options: Names of options that the quantizer and the partitioner both have. A manifest must give them the
            same values.
    """

    name: str
    separable: bool
    options_schema: Path
    quantizer_schema: Path | None = None
    delegate_id: str | None = None
    needs: tuple[Need, ...] = ()
    distributions: tuple[str, ...] = ()
    pairing_hint: str | None = None
    takes_weight_only_linear: bool = False
    mutable_buffers_hint: str | None = None
    ignores_zero_points: bool = False
    whole_program: bool = False
    takes_the_rest: bool = False
    delegates_to_any: bool = False
    fold_quantize: bool = True
    same_options: tuple[str, ...] = ()

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes the partitioner of one method. A backend without it delegates nothing.

        Args:
            options: As the manifest has them. They fit `options_schema` and `check_options`.
            context: The method.

        Returns:
            An `executorch.exir.backend.partitioner.Partitioner`. Let it hold its `DelegationSpec` as an attribute, as
            ExecuTorch's own do (`delegation_spec`).

        Raises:
            OptionError: An option has a value that no schema can refuse.
        """
        raise NotImplementedError

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes the quantizer of one method. A backend without it has no quantizer.

        Args:
            options: As the manifest has them. They fit `quantizer_schema`.
            context: The method.

        Returns:
            A `torchao.quantization.pt2e.quantizer.Quantizer`.

        Raises:
            OptionError: An option has a value that no schema can refuse.
        """
        raise NotImplementedError

    def check_options(self, options: Options) -> list[Problem]:
        """Checks what a schema cannot say. Must not import torch.

        Args:
            options: They fit `options_schema`.

        Returns:
            What is wrong. The path of each problem is one in the options.
        """
        return []

    def needs_for(self, options: Options) -> tuple[Need, ...]:
        """Returns what these options need in addition to `needs`."""
        return ()

    def callables(self, options: Options) -> tuple[str, ...]:
        """Returns each `module:callable` of the declared sources that the partitioner's options name.

        Their sources become part of the key, and can be imported when the partitioner is made.
        """
        return ()

    def quantizer_callables(self, options: Options) -> tuple[str, ...]:
        """Returns the same as `callables`, of the quantizer's options."""
        return ()

    def shown_name(self, options: Options) -> str:
        """Returns what errors about the order of partitioners call a partitioner with these options."""
        return self.name

    def recognizes(self, partitioner: Any) -> bool:
        """Returns whether a `Partitioner` that a recipe or a factory made delegates to this backend.

        Asked of the driver's own backends, and of those that the manifest names.
        """
        spec = getattr(partitioner, "delegation_spec", None)
        return spec is not None and self.delegate_id is not None and spec.backend_id == self.delegate_id

    def pairs_partitions(self, options: Options) -> bool:
        """Returns whether it pairs the partitions of methods, the first with the first, to share between them.

        Then each method needs as many partitions. Other counts are an error before the backend is called.
        """
        return False

    def pairs_partitions_of(self, partitioner: Any) -> bool:
        """Returns the same as `pairs_partitions`, of a partitioner that it recognizes."""
        return False

    def grouping_key(self, options: Options) -> Any:
        """Returns JSON data. Only partitioners with equal keys are lowered in one call."""
        return None

    def grouping_key_of(self, partitioner: Any) -> Any:
        """Returns the same as `grouping_key`, of a partitioner that it recognizes."""
        return None

    def edge_requirements(self, options: Options, program: Any) -> EdgeRequirements:
        """Returns what it needs of one method before that is partitioned.

        Args:
            options: Of the method's partitioner.
            program: The method's `torch.export.ExportedProgram`.
        """
        return EdgeRequirements()

    def lowering_context(self, partitioners: Partitioners) -> AbstractContextManager[None]:
        """Returns a context manager in which all methods are lowered.

        Args:
            partitioners: Those of all methods, also of other backends and of a recipe.
        """
        return nullcontext()

    def check_delegated(self, options: Options, operators: Collection[str]) -> list[Problem]:
        """Checks a lowered method for what its runtime would refuse.

        Args:
            options: Of the method's partitioner.
            operators: The operators inside the method's delegates of this backend, such as `aten::convolution`.

        Returns:
            What is wrong. The path of each problem is one in the options.
        """
        return []

    def stored_weights(self, compiled: bytes, named_data: Any) -> StoredWeights | None:
        """Returns where a delegate keeps its weights.

        Args:
            compiled: What the backend made of a partition (`processed_bytes`).
            named_data: Its `NamedDataStoreOutput`. None: it has no named data.

        Returns:
            None: in `compiled`, and in the blobs of its named data, each as a whole.
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
    """A backend of the driver itself: its schemas have names, and it may say what nothing could check of a package.

    Attributes:
        loaded_marker: A module of ExecuTorch that is in `sys.modules` once anything has made a partitioner of this
            backend. Then `lowering_context` is entered, also where the manifest does not name the backend.
        named_data_is_weights: Whether each blob of a delegate's named data depends only on the weights that the
            delegate reads, and never on its operators. Then a blob whose weights have one tag goes to that tag.
    """

    loaded_marker: str | None = None
    named_data_is_weights: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "name"):  # a base class of several has none
            cls.options_schema = json_schema.file(f"backend-{cls.name}")
            if cls.create_quantizer is not Backend.create_quantizer:
                cls.quantizer_schema = json_schema.file(f"quantizer-{cls.name}")


_BOOLEANS = (
    "separable",
    "takes_weight_only_linear",
    "ignores_zero_points",
    "whole_program",
    "takes_the_rest",
    "delegates_to_any",
    "fold_quantize",
)
_STRINGS = ("delegate_id", "pairing_hint", "mutable_buffers_hint")
_TUPLES = {"needs": Need, "distributions": str, "same_options": str}
_KINDS: dict[type, str] = {Need: "`etbuild.backends.Need`", str: "strings"}


_Made = TypeVar("_Made", bound=Backend)


def make(kind: type[_Made]) -> _Made:
    """Makes the instance of a backend's class, and checks it.

    Raises:
        InterfaceError: An attribute is missing, has another type than `Backend` says, is none of `Backend`, or
            contradicts another one.
    """
    for name in ("name", "separable", "options_schema"):
        if not hasattr(kind, name):
            raise InterfaceError(f"`{name}` is missing")
    backend = kind()
    _check_names(backend)
    _check_types(backend)
    # Both look at all methods: one lowers them together, the other has one configuration for the whole program.
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
            raise InterfaceError(f"`{name}` is no part of `Backend`: {meant}Names of your own start with `_`")


def _check_types(backend: Backend) -> None:
    for name, value in vars(Backend).items():
        if callable(value) and not callable(getattr(backend, name)):
            raise InterfaceError(f"`{name}` has to be a method")
    for name in _BOOLEANS:
        if not isinstance(getattr(backend, name), bool):
            raise InterfaceError(f"`{name}` has to be True or False")
    if not isinstance(backend.name, str):
        raise InterfaceError("`name` has to be a string")
    for name in _STRINGS:
        if not isinstance(getattr(backend, name), str | None):
            raise InterfaceError(f"`{name}` has to be a string or None")
    for name, kind in _TUPLES.items():
        value = getattr(backend, name)
        if not (isinstance(value, tuple) and all(isinstance(each, kind) for each in value)):
            raise InterfaceError(f"`{name}` has to be a tuple of {_KINDS[kind]}")
