"""The plans of the steps: each contains what its step may read.

ExportPlan    what the export of all methods depends on
MethodPlan    what lowering one method by itself depends on, in addition to the exported method
LowerPlan     what lowering all methods depends on: a `MethodPlan` of all methods, and more
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from etbuild import backends
from etbuild.errors import DocumentPath, InputError
from etbuild.plan.kinds import FileStem, Identifier, Names, ProgramName
from etbuild.plan.part import Part, PluginKeys
from etbuild.plan.parts import (
    BackendEntry,
    CustomOps,
    EdgeCompile,
    Executorch,
    ExportMethod,
    FactoryCall,
    LowerMethod,
    LowerPasses,
    MemoryPlanning,
    Method,
    ModuleSource,
    NamedData,
    Recipe,
    RecipeCall,
    Runner,
    Weights,
)

if TYPE_CHECKING:
    from typing import Self


class Document(Part):
    """A plan. Besides the fields, its JSON has a `schema`."""

    _NOT_READ: ClassVar[tuple[str, ...]] = ("schema",)
    """Keys of the JSON that are not fields."""
    SCHEMA: ClassVar[str]
    DEFINITION: ClassVar[str]
    """The schema of its JSON, as `json_schema.validator` takes it."""

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Reads the plan, whose `schema` was checked."""
        return super().from_json({key: document[key] for key in document if key not in cls._NOT_READ})

    def to_json(self) -> dict[str, object]:
        """The plan as JSON data. Keys depend on each byte of its canonical form."""
        return {"schema": self.SCHEMA, **super().to_json()}


D = TypeVar("D", bound=Document)


def read_plan(path: Path, kind: type[D]) -> D:
    """Reads a plan that another step wrote.

    Args:
        path: The file.
        kind: The class of the plan, such as `Plan` or `ExportPlan`.

    Raises:
        InputError: The file is not a plan, or is one of another class.
    """
    from etbuild.files import json_file

    wanted = json_file.Format("a plan", kind.DEFINITION, "`etbuild plan` writes them")
    document = json_file.read(path, wanted)
    try:
        return kind.from_json(document)
    except ValueError as error:
        raise InputError.of(f"{path}: not {wanted.what}: {error}", wanted.hint) from None


def weights_place(weights: Weights, index: int) -> DocumentPath:
    """The place of a checkpoint in the manifest.

    Args:
        weights: The `weights` of a plan.
        index: The number of the checkpoint.
    """
    return ("model", "weights", index) if len(weights) > 1 else ("model", "weights")


def weights_names(weights: Weights) -> dict[str, DocumentPath]:
    """The names of the checkpoints that contain the weights, each with the place that names it first.

    Args:
        weights: The `weights` of a plan.
    """
    found: dict[str, DocumentPath] = {}
    for index, entry in enumerate(weights):
        own = () if entry.to_json() == entry.file else ("file",)
        found.setdefault(entry.file, (*weights_place(weights, index), *own))
    return found


def adapter_files(files: Mapping[str, str], key: str) -> dict[str, DocumentPath]:
    """The names of one of the files of each adapter, each with the place in the manifest that names it first.

    Args:
        files: The names of the files by adapter.
        key: The key of the file in the manifest: `config` or `weights`.
    """
    return {name: ("model", "adapters", adapter, key) for adapter, name in reversed([*files.items()])}


class Lowered(Document):
    """The common part of `Plan` and the plans of lowering."""

    methods: Mapping[str, LowerMethod | Method]
    passes: LowerPasses
    recipe: Annotated[Recipe, PluginKeys("recipe")] | None
    named_data: dict[str, NamedData]

    @cached_property
    def tags(self) -> list[str]:
        """The named-data tags, sorted."""
        return sorted(self.named_data)

    @cached_property
    def sharded_tags(self) -> list[str]:
        """The tags whose weights are split over several files, sorted."""
        return [tag for tag in self.tags if self.named_data[tag].shard_size is not None]

    @cached_property
    def partitioners(self) -> dict[DocumentPath, BackendEntry]:
        """The partitioner entries of all methods, by their place in the manifest."""
        return {
            ("methods", name, "partitioners", index): entry
            for name, method in self.methods.items()
            for index, entry in enumerate(method.partitioners)
        }

    @cached_property
    def backends(self) -> list[str]:
        """The backends of all methods, including those of their recipe, sorted."""
        return sorted({entry.backend for entry in self.partitioners.values()} | set(self._recipe_backends))

    @property
    def _recipe_backends(self) -> Names:
        """The backends of the recipe, if it decides something for a method; otherwise empty."""
        decides = any(method.from_recipe for method in self.methods.values())
        return self.recipe.backends if self.recipe is not None and decides else ()

    @property
    def _quantizers(self) -> dict[DocumentPath, BackendEntry]:
        """The quantizer entries of all methods, by their place in the manifest."""
        return {}

    @cached_property
    def used_backends(self) -> dict[str, DocumentPath]:
        """The backends that are used as partitioners or quantizers, each with the place that names it first."""
        found: dict[str, DocumentPath] = {}
        for path, entry in {**self.partitioners, **self._quantizers}.items():
            found.setdefault(entry.backend, path)
        for backend in () if self.recipe is None else self.recipe.backends or (backends.FROM_SOURCES,):
            found.setdefault(backend, ("recipe",))
        if self.passes.edge or self.passes.edge_manager:  # they may delegate to any backend
            found.setdefault(backends.FROM_SOURCES, ("passes",))
        return found

    def check_backends(self) -> None:
        """Checks that everything that the backends need is installed.

        Raises:
            InputError: Something is missing. The error says what, and what to do.
        """
        entries = {path: entry.to_json() for path, entry in self.partitioners.items()}
        backends.check_installed(self.used_backends, entries)


class ExportPlan(Document):
    """What the export depends on.

    Attributes:
        model: Where the module comes from.
        leaves_weights: Whether the export leaves the weights to lowering, which reads them from files.
        weights: The checkpoints that the export itself reads: the exported methods contain tensors made from them, a
            checkpoint may lack some weights, or it is a GGUF file, which needs the module.
        methods: The methods by name.
        custom_ops: Operators that do not belong to PyTorch.
        recipe: ExecuTorch's export recipe.
        passes: Callables that change a method after its export.
        constant_methods: The constant methods whose values a callable computes, by name.
        constant_schemas: The constant methods that describe all methods, by name, each with the form of its text.
        lowering_callables: Callables whose sources lowering needs, sorted.
        adapters: The declared file with the configuration of each adapter, by the adapter's name.
        runner: The contract of the runner that runs the program; None if there is none.
    """

    SCHEMA = "executorch-export-plan/v1"
    DEFINITION = "plan#exportPlan"
    _LEFT_OUT = ("runner", "adapters", "constant_schemas")

    model: ModuleSource
    leaves_weights: bool
    weights: Weights
    methods: dict[Identifier, ExportMethod]
    custom_ops: CustomOps
    recipe: Annotated[RecipeCall, PluginKeys("recipe.call")] | None
    passes: Names
    constant_methods: dict[str, FactoryCall]
    lowering_callables: Names
    adapters: dict[Identifier, str] = {}
    runner: Runner | None = None
    constant_schemas: dict[str, str] = {}

    @property
    def quantizes(self) -> bool:
        """Whether something may be quantized."""
        return self.recipe is not None or any(method.quantize is not None for method in self.methods.values())

    @property
    def keeps_integers(self) -> bool:
        """Whether a method keeps the integers of a packed checkpoint."""
        return any(method.quantize is not None and method.quantize.keeps for method in self.methods.values())

    @property
    def may_be_packed(self) -> bool:
        """Whether the checkpoint may be packed: the configuration of transformers may say so, or a method keeps packed
        integers."""
        return self.keeps_integers or (
            self.model.huggingface is not None and (self.leaves_weights or bool(self.weights))
        )

    @cached_property
    def carries_content(self) -> bool:
        """Whether the exported methods contain tensors that the module does not have, such as quantized weights."""
        return any(method.carries_content for method in self.methods.values())

    @cached_property
    def callables(self) -> dict[str, DocumentPath]:
        """Every `module:callable`, sorted, with its place. The search for the used sources starts from them."""
        found: dict[str, DocumentPath] = dict.fromkeys(self.lowering_callables, ())
        found |= dict.fromkeys(self.recipe.callables if self.recipe is not None else (), ("recipe",))
        found |= dict.fromkeys(self.passes, ("passes", "aten"))
        for name, method in self.methods.items():
            found |= dict.fromkeys(method.callables, ("methods", name))
        found |= {call.factory: ("constant_methods", name, "factory") for name, call in self.constant_methods.items()}
        found |= {} if self.model.factory is None else {self.model.factory: ("model", "factory")}
        return dict(sorted(found.items()))

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that the export reads, each with the place that names it first: example inputs,
        calibration data, exported programs, weights that it reads itself, shared libraries, and the configurations of
        a model and of adapters."""
        adapters = adapter_files(self.adapters, "config")
        found = {**weights_names(self.weights), **self.custom_ops.library_names, **adapters}
        if self.model.huggingface is not None:
            for file, place in self.model.huggingface.data_names.items():
                found.setdefault(file, place)
        for name, method in self.methods.items():
            for file, place in method.data_names(("methods", name)):
                found.setdefault(file, place)
        return found


class MethodPlan(Lowered, kw_only=True):
    """What lowering one method by itself depends on, in addition to the exported method.

    Attributes:
        weights: The checkpoints that the export leaves to lowering.
        cast: Whether tensors of another floating-point dtype are converted to that of the module.
        methods: The method by name; in a `LowerPlan`, all methods.
        recipe: ExecuTorch's export recipe.
        named_data: The weights outside the program, by tag.
        custom_ops: Operators that do not belong to PyTorch.
        edge_compile: The configuration of the edge dialect.
        passes: Callables that return passes.
        executorch: The configuration of the program.
        memory_planning: How the memory of each method is planned, by name.
        share_mutable_buffers: Whether all methods that write to a buffer share it.
    """

    SCHEMA = "executorch-lower-plan/v1"
    DEFINITION = "plan#methodPlan"
    # The file of a `LowerPlan` may be read as this plan.
    _NOT_READ: ClassVar[tuple[str, ...]] = ("schema", "name", "adapters", "constant_methods")
    _LEFT_OUT: ClassVar[tuple[str, ...]] = ("cast",)

    weights: Weights
    cast: bool = False
    methods: dict[Identifier, LowerMethod]
    recipe: Annotated[Recipe, PluginKeys("recipe")] | None
    named_data: dict[FileStem, NamedData]
    custom_ops: CustomOps
    edge_compile: EdgeCompile
    passes: LowerPasses
    executorch: Executorch
    memory_planning: dict[str, MemoryPlanning]
    share_mutable_buffers: bool

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that lowering reads, each with the place that names it first."""
        return {**weights_names(self.weights), **self.custom_ops.library_names}

    @property
    def has_default_edge_compile(self) -> bool:
        """Whether the configuration of the edge dialect is ExecuTorch's default."""
        return self.edge_compile == EdgeCompile()

    @property
    def without_weights(self) -> MethodPlan:
        """The plan for lowering without the content of weights."""
        return self.replace(weights=(), cast=False)

    def of_method(self, name: str) -> MethodPlan:
        """The plan for lowering this method by itself, without the parts for joining methods into a program."""
        return self.as_part(MethodPlan).replace(
            methods={name: self.methods[name]},
            memory_planning={name: self.memory_planning.get(name, MemoryPlanning())},
            executorch=self.executorch.of_method(name),
        )


class LowerPlan(MethodPlan, kw_only=True):
    """What lowering depends on, in addition to the exported methods: a `MethodPlan` of all methods, and more.

    Attributes:
        name: The name of the program.
        constant_methods: The values of constant methods, by name.
        adapters: The declared file with the weights of each adapter, by the adapter's name.
    """

    DEFINITION = "plan#lowerPlan"
    _NOT_READ: ClassVar[tuple[str, ...]] = ("schema",)
    _LEFT_OUT = (*MethodPlan._LEFT_OUT, "adapters")

    name: ProgramName
    constant_methods: dict[str, object]
    adapters: dict[Identifier, str] = {}

    @cached_property
    def weights_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that hold weights which lowering reads, each with the place that names it first."""
        return {**adapter_files(self.adapters, "weights"), **weights_names(self.weights)}

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that lowering reads, each with the place that names it first. One method by itself does
        not read the weights of adapters."""
        return {**self.weights_names, **self.custom_ops.library_names}
