"""The plan: what a manifest asks for.

Comments, order and `defaults` of the manifest are not in it, and every default is filled in.

Each step has its own plan, which contains what the step may read:

    Plan          everything
    ExportPlan    what the export of all methods depends on
    MethodPlan    what lowering one method by itself depends on, in addition to the exported method
    LowerPlan     what lowering all methods depends on: a `MethodPlan` of all methods, and more
    ComparePlan   what the comparison of the program with its exported methods depends on: a `LowerPlan`, and more

The report's options and the checks are only in `Plan`: they are read at the end, so a change of them lowers nothing
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from etbuild import backends
from etbuild.errors import DocumentPath, InputError
from etbuild.manifest.executorch_options import EDGE_COMPILE, HOOKS
from etbuild.manifest.runners import RUNNER_CONSTANTS
from etbuild.manifest.validate import GGUF_SUFFIX
from etbuild.plan.normalize import PLAN_SCHEMA, normalized
from etbuild.plan.part import Part, Readers, each_of, optional, plain
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
    MethodComparison,
    Model,
    ModuleSource,
    NamedData,
    Names,
    Passes,
    Recipe,
    RecipeCall,
    ReportOptions,
    Runner,
    Weights,
    WeightsFile,
)

if TYPE_CHECKING:
    from typing import Self

Bound = bool | float | dict[str, float]
"""The value of a check: whether it runs, a limit, or a limit for each method or tag."""
_COMPARED_WORK = 200_000_000  # as model.schema.json says


class _Document(Part):
    """A plan. In addition to the fields, its JSON has a `schema`."""

    _NOT_READ: ClassVar[tuple[str, ...]] = ("schema",)
    """Keys of the JSON that are no fields."""
    SCHEMA: ClassVar[str]
    DEFINITION: ClassVar[str]
    """The schema of its JSON, as `json_schema.validator` takes it."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Reads the plan, whose `schema` was checked."""
        return super().from_json({key: document[key] for key in document if key not in cls._NOT_READ})

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON data. Keys depend on each byte of its canonical form."""
        return {"schema": self.SCHEMA, **super().to_json()}


D = TypeVar("D", bound=_Document)


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


def from_manifest(manifest: dict[str, Any]) -> Plan:
    """The plan of a checked manifest."""
    return Plan.from_json(normalized(manifest))


def weights_place(weights: Weights, index: int) -> DocumentPath:
    """The place of a checkpoint in the manifest.

    Args:
        weights: The `weights` of a lower plan, or the `read_weights` of an export plan.
        index: The number of the checkpoint.
    """
    return ("model", "weights", index) if len(weights) > 1 else ("model", "weights")


def weights_names(weights: Weights) -> dict[str, DocumentPath]:
    """The names of the checkpoints that contain the weights, each with the place that names it first.

    Args:
        weights: The `weights` of a lower plan, or the `read_weights` of an export plan.
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


def _read_constant(value: Any) -> object:
    return FactoryCall.from_json(value) if isinstance(value, dict) else value


class _Lowered(_Document):
    """The common part of `Plan` and the plans of lowering."""

    methods: Mapping[str, LowerMethod | Method]
    recipe: Recipe | None
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
        for backend in self._recipe_backends or ((backends.FROM_SOURCES,) if self.recipe is not None else ()):
            found.setdefault(backend, ("recipe",))
        return found

    def check_backends(self) -> None:
        """Checks that everything that the backends need is installed.

        Raises:
            InputError: Something is missing. The error says what, and what to do.
        """
        entries = {path: entry.to_json() for path, entry in self.partitioners.items()}
        backends.check_installed(self.used_backends, entries)


class ExportPlan(_Document):
    """What the export depends on.

    Attributes:
        model: Where the module comes from.
        weights: Whether lowering reads the weights from files. If so, the export leaves them out.
        read_weights: The checkpoints that the export itself reads, because the exported methods contain what it makes
            from them, because a checkpoint may lack some weights, or because it is a GGUF file, which needs the module.
        adapters: The declared file with the configuration of each adapter, by the adapter's name.
        methods: The methods by name.
        custom_ops: Operators that do not belong to PyTorch.
        recipe: ExecuTorch's export recipe.
        passes: Callables that change a method after its export.
        constant_methods: The constant methods whose values a callable computes, by name.
        lowering_callables: Callables whose sources lowering needs, sorted.
        runner: The contract of the runner that runs the program; None if there is none.
    """

    SCHEMA = "executorch-export-plan/v1"
    DEFINITION = "plan#exportPlan"
    _LEFT_OUT: ClassVar[Mapping[str, Any]] = {"runner": None, "adapters": {}}
    _READERS: ClassVar[Readers] = {
        "model": ModuleSource.from_json,
        "read_weights": each_of(WeightsFile.read),
        "methods": each_of(ExportMethod.from_json),
        "custom_ops": CustomOps.from_json,
        "recipe": optional(RecipeCall.from_json),
        "constant_methods": each_of(FactoryCall.from_json),
        "runner": optional(Runner.from_json),
    }

    model: ModuleSource
    weights: bool
    read_weights: Weights
    adapters: dict[str, str]
    methods: dict[str, ExportMethod]
    custom_ops: CustomOps
    recipe: RecipeCall | None
    passes: Names
    constant_methods: dict[str, FactoryCall]
    lowering_callables: Names
    runner: Runner | None

    @cached_property
    def carries_content(self) -> bool:
        """Whether the exported methods contain the content of weights."""
        return any(method.carries_content for method in self.methods.values())

    @cached_property
    def callables(self) -> list[str]:
        """Every `module:callable`, sorted. The search for the used sources starts from them."""
        found = {self.model.factory or "", *self.passes, *self.lowering_callables}
        found.update(self.recipe.callables if self.recipe is not None else ())
        found.update(call.factory for call in self.constant_methods.values())
        found.update(name for method in self.methods.values() for name in method.callables)
        return sorted(found - {""})

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that the export reads, each with the place that names it first: example inputs,
        calibration data, exported programs, weights that it reads itself, shared libraries, and the configurations of
        a model and of adapters."""
        adapters = adapter_files(self.adapters, "config")
        found = {**weights_names(self.read_weights), **self.custom_ops.library_names, **adapters}
        if self.model.huggingface is not None:
            for file, place in self.model.huggingface.data_names.items():
                found.setdefault(file, place)
        for name, method in self.methods.items():
            for file, place in method.data_names(("methods", name)):
                found.setdefault(file, place)
        return found


class MethodPlan(_Lowered):
    """What lowering one method by itself depends on, in addition to the exported method.

    Attributes:
        name: The name of the program.
        weights: The checkpoints that the export leaves to lowering.
        cast: Whether tensors of another floating-point dtype are converted to that of the module.
        methods: The method by name; in a `LowerPlan`, all methods.
        recipe: ExecuTorch's export recipe.
        named_data: The weights that leave the program, by tag.
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
    _NOT_READ: ClassVar[tuple[str, ...]] = ("schema", "adapters", "constant_methods")
    _LEFT_OUT: ClassVar[Mapping[str, Any]] = {"cast": False}
    _READERS: ClassVar[Readers] = {
        "weights": each_of(WeightsFile.read),
        "methods": each_of(LowerMethod.from_json),
        "recipe": optional(Recipe.from_json),
        "named_data": each_of(NamedData.from_json),
        "custom_ops": CustomOps.from_json,
        "edge_compile": EdgeCompile.from_json,
        "passes": LowerPasses.from_json,
        "executorch": Executorch.from_json,
        "memory_planning": each_of(MemoryPlanning.from_json),
    }

    name: str
    weights: Weights
    cast: bool
    methods: dict[str, LowerMethod]
    recipe: Recipe | None
    named_data: dict[str, NamedData]
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
        return self.edge_compile.to_json() == EDGE_COMPILE

    def of_method(self, name: str) -> MethodPlan:
        """The plan for lowering this method by itself. It leaves out what is read when methods become a program."""
        return self.as_part(MethodPlan).replace(
            methods={name: self.methods[name]},
            memory_planning={name: self.memory_planning[name]},
            executorch=self.executorch.of_method(name),
        )


class LowerPlan(MethodPlan):
    """What lowering depends on, in addition to the exported methods: a `MethodPlan` of all methods, and more.

    Attributes:
        constant_methods: The values of constant methods, by name.
        adapters: The declared file with the weights of each adapter, by the adapter's name.
    """

    DEFINITION = "plan#lowerPlan"
    _NOT_READ: ClassVar[tuple[str, ...]] = ("schema",)
    _LEFT_OUT: ClassVar[Mapping[str, Any]] = {**MethodPlan._LEFT_OUT, "adapters": {}}

    constant_methods: dict[str, object]
    adapters: dict[str, str]

    @cached_property
    def weights_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that hold weights which lowering reads, each with the place that names it first."""
        return {**adapter_files(self.adapters, "weights"), **weights_names(self.weights)}

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """The declared inputs that lowering reads, each with the place that names it first. One method by itself does
        not read the weights of adapters."""
        return {**self.weights_names, **self.custom_ops.library_names}


class ComparePlan(LowerPlan):
    """What the comparison of the program with its exported methods depends on, in addition to what lowering does.

    Attributes:
        work: How many numbers the operators of a method may read and write in calls after the first one.
        comparisons: How each method is compared, by name.
    """

    DEFINITION = "plan#comparePlan"
    _READERS: ClassVar[Readers] = {**MethodPlan._READERS, "comparisons": each_of(MethodComparison.from_json)}

    work: int
    comparisons: dict[str, MethodComparison]


class Plan(_Lowered):
    """Everything that a manifest asks for.

    Attributes:
        name: The name of the program.
        model: Where the module and its weights come from.
        methods: The methods by name.
        recipe: ExecuTorch's export recipe.
        constant_methods: The values of constant methods by name, or the callables that compute them.
        named_data: The weights that leave the program, by tag.
        custom_ops: Operators that do not belong to PyTorch.
        passes: Callables that change methods or return passes.
        edge_compile: The configuration of the edge dialect.
        executorch: The configuration of the program.
        share_mutable_buffers: Whether all methods that write to a buffer share it.
        report: What the report lists.
        checks: The values of the checks, by name.
        runner: The contract of the runner that runs the program; None if there is none.
        tokenizer: The declared files that travel with the program; None if there are none.
        metadata: What people should know about the program; None if the manifest has none.
    """

    SCHEMA = PLAN_SCHEMA
    DEFINITION = "plan#plan"
    _LEFT_OUT: ClassVar[Mapping[str, Any]] = {"metadata": None, "runner": None, "tokenizer": None}
    _READERS: ClassVar[Readers] = {
        "model": Model.from_json,
        "methods": each_of(Method.from_json),
        "recipe": optional(Recipe.from_json),
        "constant_methods": each_of(_read_constant),
        "named_data": each_of(NamedData.from_json),
        "custom_ops": CustomOps.from_json,
        "passes": Passes.from_json,
        "edge_compile": EdgeCompile.from_json,
        "executorch": Executorch.from_json,
        "report": ReportOptions.from_json,
        "tokenizer": optional(plain),
        "metadata": optional(plain),
    }

    name: str
    model: Model
    methods: dict[str, Method]
    recipe: Recipe | None
    constant_methods: dict[str, object]
    named_data: dict[str, NamedData]
    custom_ops: CustomOps
    passes: Passes
    edge_compile: EdgeCompile
    executorch: Executorch
    share_mutable_buffers: bool
    report: ReportOptions
    checks: dict[str, Bound]
    runner: str | None
    tokenizer: Names | None
    metadata: dict[str, Any] | None

    @property
    def _quantizers(self) -> dict[DocumentPath, BackendEntry]:
        return {
            ("methods", name, "quantize", "pt2e", "quantizers", index): entry
            for name, method in self.methods.items()
            if method.pt2e is not None
            for index, entry in enumerate(method.pt2e.quantizers)
        }

    @cached_property
    def export_backends(self) -> dict[str, DocumentPath]:
        """The backends whose code the export runs, each with the place that names it first: those of quantizers and of
        the recipe."""
        found: dict[str, DocumentPath] = {}
        for path, entry in self._quantizers.items():
            found.setdefault(entry.backend, path)
        return {**found, **({} if self.recipe is None else self.used_backends)}

    @cached_property
    def export_plan(self) -> ExportPlan:
        """The part that the export depends on."""
        carried = any(method.carries_content for method in self.methods.values())
        read = carried or any(entry.optional or entry.file.endswith(GGUF_SUFFIX) for entry in self.model.weights)
        return ExportPlan(
            model=self.model.source,
            weights=bool(self.model.weights) and not read,
            read_weights=self.model.weights if read else (),
            adapters={name: adapter.config for name, adapter in self.model.adapters.items()},
            methods={name: method.of_export for name, method in self.methods.items()},
            custom_ops=self.custom_ops,
            recipe=self.recipe and self.recipe.call,
            passes=self.passes.aten,
            constant_methods={
                name: value for name, value in self.constant_methods.items() if isinstance(value, FactoryCall)
            },
            lowering_callables=tuple(sorted(self._lowering_callables)),
            runner=self._runner,
        )

    @property
    def _runner(self) -> Runner | None:
        said = tuple(name for name in RUNNER_CONSTANTS if name in self.constant_methods)
        return None if self.runner is None else Runner(self.runner, said)

    @property
    def _lowering_callables(self) -> set[str]:
        found = {name for entry in self.partitioners.values() for name in entry.callables}
        found.update(self.recipe.callables if self.recipe is not None else ())
        found.update(name for hook in HOOKS[1:] for name in getattr(self.passes, hook))
        algorithms = {method.memory_planning.memory_planning_algo for method in self.methods.values()}
        return found | {algorithm for algorithm in algorithms if ":" in algorithm}

    @cached_property
    def lower_plan(self) -> LowerPlan:
        """The part that lowering depends on, in addition to the exported methods."""
        constants = self.constant_methods.items()
        weights = self.model.weights if self.export_plan.weights else ()
        return LowerPlan(
            name=self.name,
            weights=weights,
            cast=bool(weights) and self.model.dtype is not None,
            methods={name: method.of_lowering for name, method in self.methods.items()},
            recipe=self.recipe,
            named_data=self.named_data,
            custom_ops=self.custom_ops,
            edge_compile=self.edge_compile,
            passes=self.passes.of_lowering,
            constant_methods={name: value for name, value in constants if not isinstance(value, FactoryCall)},
            adapters={name: adapter.weights for name, adapter in self.model.adapters.items()},
            executorch=self.executorch,
            memory_planning={name: method.memory_planning for name, method in self.methods.items()},
            share_mutable_buffers=self.share_mutable_buffers,
        )

    @cached_property
    def compare_plan(self) -> ComparePlan:
        """The part that the comparison depends on, in addition to the program and the exported methods."""
        given: Any = self.checks.get("compare", {})
        common = {key: given[key] for key in ("tolerance", "leave_out") if key in given}
        of_methods = given.get("methods", {})
        comparisons = {
            name: MethodComparison.from_json({**common, **of_methods.get(name, {})}) for name in self.methods
        }
        return ComparePlan(**self.lower_plan.fields(), work=given.get("work", _COMPARED_WORK), comparisons=comparisons)

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """All declared inputs that the plan reads, each with the place that names it first."""
        of_adapters = adapter_files(self.lower_plan.adapters, "weights")
        weights = {**of_adapters, **weights_names(self.model.weights)}
        return {**weights, **self.tokenizer_names, **self.export_plan.data_names}

    @property
    def tokenizer_names(self) -> dict[str, DocumentPath]:
        """The declared files of the tokenizer, each with its place in the manifest."""
        return {name: ("tokenizer", index) for index, name in enumerate(self.tokenizer or ())}
