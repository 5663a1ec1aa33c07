"""The plan: the requests of a manifest.

It does not contain the manifest's comments, order and `defaults`, but it contains every default value. Each step has
its own plan, which contains what the step may read: see `plan.step_plans`. The report's options and the checks are only
in `Plan`: they are read at the end, so a change of them lowers nothing again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import PurePath
from typing import Annotated, Any

from etbuild import backends, plugins
from etbuild.errors import DocumentPath
from etbuild.files.weights_suffixes import suffixes_of_plugins
from etbuild.manifest.sections import Checks, Manifest, Metadata
from etbuild.plan.kinds import FileStem, Identifier, Names, ProgramName
from etbuild.plan.normalize import PLAN_SCHEMA, normalized
from etbuild.plan.part import PluginKeys, Says
from etbuild.plan.parts import (
    BackendEntry,
    CustomOps,
    EdgeCompile,
    Executorch,
    ExportMethod,
    FactoryCall,
    LowerPasses,
    Method,
    Model,
    ModelExample,
    ModuleSource,
    NamedData,
    Passes,
    Recipe,
    ReportOptions,
    Runner,
)
from etbuild.plan.step_plans import (
    ExportPlan,
    Lowered,
    LowerPlan,
    adapter_files,
    weights_names,
)


def from_manifest(manifest: Manifest) -> Plan:
    """The plan of a checked manifest."""
    return Plan.from_json(normalized(manifest))


Constant = Annotated[
    FactoryCall | object,
    lambda value: FactoryCall.from_json(value) if isinstance(value, dict) else value,
    Says(plan={"if": {"type": "object"}, "then": {"$ref": "#/$defs/factoryCall"}}),
]


class Plan(Lowered):
    """All requests of a manifest.

    Attributes:
        name: The name of the program.
        model: The origin of the module and its weights.
        methods: The methods by name.
        recipe: ExecuTorch's export recipe.
        constant_methods: The values of constant methods by name, or the callables that compute them.
        constant_schemas: The constant methods that describe all methods, by name, each with the form of its text.
        named_data: The weights outside the program, by tag.
        custom_ops: Operators that do not belong to PyTorch.
        passes: Callables that change methods or return passes.
        edge_compile: The configuration of the edge dialect.
        executorch: The configuration of the program.
        share_mutable_buffers: Whether all methods that write to a buffer share it.
        report: What the report lists.
        checks: The manifest's checks, without those that `etbuild test` runs.
        runner: The contract of the runner that runs the program; None if there is none.
        tokenizer: The declared files that travel with the program; None if there are none.
        metadata: Facts about the program for people; None if the manifest has none.
        applications: The kinds of applications that must be able to load the program.
    """

    SCHEMA = PLAN_SCHEMA
    DEFINITION = "plan#plan"
    _LEFT_OUT = ("metadata", "runner", "tokenizer", "applications", "constant_schemas")
    _KEYS = {"applications": "for"}

    name: ProgramName
    model: Model
    methods: dict[Identifier, Method]
    recipe: Annotated[Recipe, PluginKeys("recipe")] | None
    constant_methods: dict[str, Constant]
    named_data: dict[FileStem, NamedData]
    custom_ops: CustomOps
    passes: Passes
    edge_compile: EdgeCompile
    executorch: Executorch
    share_mutable_buffers: bool
    report: ReportOptions
    checks: Checks
    runner: str | None = None
    tokenizer: Names | None = None
    metadata: Metadata | None = None
    constant_schemas: dict[str, str] = {}
    applications: Annotated[tuple[Annotated[Any, PluginKeys("for")], ...], Says(one=True)] = ()

    @property
    def _quantizers(self) -> dict[DocumentPath, BackendEntry]:
        return {
            ("methods", name, "quantize", *place): entry
            for name, method in self.methods.items()
            if method.quantize is not None
            for place, entry in method.quantize.quantizers.items()
        }

    @cached_property
    def export_backends(self) -> dict[str, DocumentPath]:
        """The backends of quantizers and of the recipe, whose code the export runs. Each has the first place that names
        it."""
        found: dict[str, DocumentPath] = {}
        for path, entry in self._quantizers.items():
            found.setdefault(entry.backend, path)
        return {**found, **({} if self.recipe is None else self.used_backends)}

    def plugins_of(self, step: str) -> frozenset[str]:
        """The packages of the plug-ins that a step uses for this program. The export uses only some of the backends."""
        named = self.export_backends if step == "export" else self.used_backends
        used = [("step", step), *self._provided, *(("backend", name) for name in backends.of_driver(named))]
        if step == "report":
            used += [("report_part", name) for name in self.report_parts]
        found = [plugins.group(group).get(name) for group, name in used]
        found += [plugin for plugin in plugins.plugins().values() if step in plugin.always]
        return frozenset(plugin.package for plugin in found if plugin is not None)

    def plugins_of_target(self, needed: Iterable[str] = (), step: str = "lower") -> list[str]:
        """The names of the plug-ins that a target of this program names; `*` if it may use any backend.

        Args:
            needed: The packages of the plug-ins that planning needs: `plugin_sections.needed`.
            step: `export` for those that exporting needs, which runs only some of the backends.
        """
        if backends.calls_any(self.used_backends):
            return [plugins.ANY]
        of_export, of_backends = self.plugins_of("export"), {each.package for each in plugins.group("backend").values()}
        others = {*needed} - of_backends if step == "export" else self.plugins_of("lower") | {*needed}
        return [plugin.name for plugin in plugins.with_used(of_export | others) if plugin.is_named]

    @property
    def report_parts(self) -> list[str]:
        """What plug-ins add to the report."""
        quantized = any(method.quantize for method in self.methods.values())
        described = {"inputs", "outputs"} & (self.metadata or {}).keys()
        asked: dict[str, object] = {"quantization": quantized, "tokenizer": self.tokenizer, "interface": described}
        asked |= {"precision": self.model.precision, "applications": self.applications}
        named = sorted((self.used_backends.keys() | self.checks.keys()) & plugins.group("report_part").keys())
        return [*(part for part, is_asked in asked.items() if is_asked), *named]

    @property
    def _provided(self) -> list[tuple[str, str]]:
        """The plug-ins of each step of this program, besides backends: groups and names."""
        inputs = (leaf for method in self.methods.values() for leaf, _ in method.leaves(()))
        used: list[tuple[str, str]] = [
            ("example_input", leaf.of_model) for leaf in inputs if isinstance(leaf, ModelExample)
        ]
        used += [("method_source", PurePath(each.program).suffix) for each in self.methods.values() if each.program]
        used += [("method_change", "adapters")] if self.model.adapters else []
        used += [("method_change", "precision")] if self.model.precision else []
        used += [("samples", "files")] if any(method.samples for method in self.methods.values()) else []
        used += [("module_source", self.model.plugin)] if self.model.plugin is not None else []
        used += [("export_recipe", "executorch")] if self.recipe is not None else []
        used += [("runner", self.runner)] if self.runner is not None else []
        used += [("constant_schema", form) for form in self.constant_schemas.values()]
        used += [("quantizer", "torchao")] if self.export_plan.quantizes else []
        used += [("tensor_file", "packed")] if self.export_plan.may_be_packed else []
        files = [entry.file for entry in self.model.weights]
        used += [("tensor_file", end) for end in suffixes_of_plugins() if any(file.endswith(end) for file in files)]
        task = None if self.model.huggingface is None else self.model.huggingface.task
        used += [("task", task)] if task is not None else []
        return used

    @cached_property
    def export_plan(self) -> ExportPlan:
        """The part of the plan that the export depends on."""
        suffixes = suffixes_of_plugins()
        read = any(method.needs_content for method in self.methods.values()) or any(
            entry.optional or entry.file.endswith(suffixes) for entry in self.model.weights
        )
        return self.as_part(
            ExportPlan,
            model=self.model.as_part(ModuleSource),
            leaves_weights=bool(self.model.weights) and not read,
            weights=self.model.weights if read else (),
            adapters={name: adapter.config for name, adapter in self.model.adapters.items()},
            methods={name: method.as_part(ExportMethod) for name, method in self.methods.items()},
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
        if self.runner is None:
            return None
        constants = plugins.load("runner_constants", self.runner)
        return Runner(self.runner, tuple(name for name in constants if name in self.constant_methods))

    @property
    def _lowering_callables(self) -> set[str]:
        found = {name for entry in self.partitioners.values() for name in entry.callables}
        found.update(self.recipe.callables if self.recipe is not None else ())
        found.update(self.passes.edge, self.passes.edge_manager, self.passes.executorch)
        algorithms = {method.memory_planning.memory_planning_algo for method in self.methods.values()}
        return found | {algorithm for algorithm in algorithms if ":" in algorithm}

    @cached_property
    def lower_plan(self) -> LowerPlan:
        """The part of the plan that lowering depends on, besides the exported methods."""
        constants = self.constant_methods.items()
        weights = self.model.weights if self.export_plan.leaves_weights else ()
        return self.as_part(
            LowerPlan,
            weights=weights,
            cast=bool(weights) and self.model.dtype is not None,
            methods={name: method.of_lowering for name, method in self.methods.items()},
            passes=self.passes.as_part(LowerPasses),
            constant_methods={name: value for name, value in constants if not isinstance(value, FactoryCall)},
            adapters={name: adapter.weights for name, adapter in self.model.adapters.items()},
            memory_planning={name: method.memory_planning for name, method in self.methods.items()},
        )

    @cached_property
    def compare_plan(self) -> LowerPlan:
        """The part of the plan that the comparison depends on, besides the program and the exported methods."""
        compare_plan: LowerPlan = plugins.load("step_plan", "compare").of(self)
        return compare_plan

    @cached_property
    def data_names(self) -> dict[str, DocumentPath]:
        """All declared inputs of the plan, each with the first place that names it."""
        of_adapters = adapter_files(self.lower_plan.adapters, "weights")
        return {**of_adapters, **self.weights_names, **self.tokenizer_names, **self.export_plan.data_names}

    @property
    def weights_names(self) -> dict[str, DocumentPath]:
        """The checkpoints of the model, each with the place that names it first."""
        return weights_names(self.model.weights)

    @property
    def tokenizer_names(self) -> dict[str, DocumentPath]:
        """The declared files of the tokenizer, each with its place in the manifest."""
        return {name: ("tokenizer", index) for index, name in enumerate(self.tokenizer or ())}
