"""Core ML: Apple's CPU, GPU and Neural Engine."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etbuild.backends.backend import (
    BuiltInBackend,
    Context,
    Need,
    OptionError,
    Options,
    Partitioners,
    QuantizerContext,
    StoredWeights,
)
from etbuild.errors import Problem, did_you_mean
from etbuild.patching import replaced

_PARTITIONER_OPTIONS = (
    "lower_full_graph",
    "skip_ops_for_coreml_delegation",
    "take_over_constant_data",
    "take_over_mutable_buffer",
)
_STRATEGY = "multimethod_weight_sharing_strategy"
_TARGET = "minimum_deployment_target"
_NEW = 18  # since this release of iOS, models can have several functions, and weights of 4 bits
# The options that must be equal for methods to become one model, with their defaults.
_AGREED = {
    "compute_precision": "float16",
    _TARGET: None,
    "model_type": "model",
    "op_linear_quantizer_config": None,
    "pass_names": None,
}
_MACOS = Need(
    "macOS for `model_type: compiled_model`",
    "lower this program on a Mac, or leave the option out",
    lambda: sys.platform == "darwin",
)


class CoreMl(BuiltInBackend):
    """The backend `coreml`."""

    name = "coreml"
    separable = False
    exact_gelu_only = ("float16", "float32")  # coremltools 9.0
    delegate_id = "CoreMLBackend"
    distributions = ("coremltools",)
    pairing_hint = "`multimethod_weight_sharing_strategy: disabled`"
    loaded_marker = "executorch.backends.apple.coreml.compiler"
    takes_weight_only_linear = True
    mutable_buffers_hint = "write `take_over_mutable_buffer: false` into the options of `coreml`"

    def create_partitioner(self, options: Options, context: Context) -> Any:
        """Makes ExecuTorch's CoreMLPartitioner with the options of `backend-coreml.schema.json`."""
        from executorch.backends.apple.coreml.partition import CoreMLPartitioner

        _check_names(options)
        specs = [*_compile_specs(options), *_enumerated_shapes(options, context.program)]
        arguments = {name: options[name] for name in _PARTITIONER_OPTIONS if name in options}
        return CoreMLPartitioner(compile_specs=specs, **arguments)

    def create_quantizer(self, options: Options, context: QuantizerContext) -> Any:
        """Makes ExecuTorch's CoreMLQuantizer with the options of `quantizer-coreml.schema.json`."""
        from coremltools.optimize.torch.quantization.quantization_config import LinearQuantizerConfig
        from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer

        chosen = {name: value for name, value in options.items() if name not in ("modules", "leave_out")}
        names: dict[str, Any] = dict.fromkeys(options.get("modules", []), chosen)
        names.update(dict.fromkeys(options.get("leave_out", [])))
        config: dict[str, Any] = {"module_name_configs": names}
        if "modules" not in options:
            config["global_config"] = chosen
        return CoreMLQuantizer(LinearQuantizerConfig.from_dict(config))

    def check_options(self, options: Options) -> list[Problem]:
        """Finds options that need a later system than the named one, or that need another option."""
        quantizer = options.get("op_linear_quantizer_config", {})
        new = {
            (_STRATEGY,): options.get(_STRATEGY) == "positional",
            ("op_linear_quantizer_config", "dtype"): quantizer.get("dtype") in ("int4", "uint4"),
            ("op_linear_quantizer_config", "granularity"): quantizer.get("granularity") == "per_block",
            ("enumerated_shapes",): len(options.get("enumerated_shapes", {})) > 1,
        }
        hint = "write `minimum_deployment_target: iOS18`, or leave it out"
        problems = [
            Problem("this needs `minimum_deployment_target: iOS18` or later", path, hint)
            for path, is_used in new.items()
            if is_used and not _is_new(options.get(_TARGET))
        ]
        if "enumerated_shapes" in options and not options.get("lower_full_graph"):
            message = "the shapes are those of the method's own inputs, so that all of it has to be delegated"
            problems.append(Problem(message, ("enumerated_shapes",), "write `lower_full_graph: true` too"))
        return problems

    def needs_for(self, options: Options) -> tuple[Need, ...]:
        """Returns the need for macOS if Apple's own compiler has to run."""
        return (_MACOS,) if options.get("model_type") == "compiled_model" else ()

    def pairs_partitions(self, options: Options) -> bool:
        """Returns whether partitions of methods become one model, paired by index."""
        return _pairs(options.get(_STRATEGY), options.get(_TARGET))

    def pairs_partitions_of(self, partitioner: Any) -> bool:
        """Returns the same as `pairs_partitions` for a partitioner that is not from a manifest."""
        return _paired(partitioner.delegation_spec.compile_specs)

    def grouping_key(self, options: Options) -> list[Any]:
        """Returns the options that must be equal for methods to become one model."""
        return [self.pairs_partitions(options), *(options.get(name, default) for name, default in _AGREED.items())]

    def grouping_key_of(self, partitioner: Any) -> list[Any]:
        """Returns the same as `grouping_key` for a partitioner that is not from a manifest."""
        from executorch.backends.apple.coreml.compiler.coreml_preprocess import COMPILE_SPEC_KEYS, CoreMLBackend

        specs = partitioner.delegation_spec.compile_specs
        written = {each.key: each.value for each in reversed(specs)}  # the first spec with a key counts
        target = CoreMLBackend.min_deployment_target_from_compile_specs(specs)
        settings = {
            "compute_precision": CoreMLBackend.model_compute_precision_from_compile_specs(specs).value,
            _TARGET: None if target is None else target.name,
            "model_type": CoreMLBackend.model_type_from_compile_specs(specs).value,
            **{
                name: json.loads(written[key.value]) if key.value in written else None
                for name, key in (
                    ("op_linear_quantizer_config", COMPILE_SPEC_KEYS.OP_LINEAR_QUANTIZER_CONFIG),
                    ("pass_names", COMPILE_SPEC_KEYS.PASS_PIPELINE),
                )
            },
        }
        return [_paired(specs), *(settings[name] for name in _AGREED)]

    @contextlib.contextmanager
    def lowering_context(self, partitioners: Partitioners) -> Iterator[None]:
        """A context in which the results of Core ML's tools depend only on the methods. No progress bars are
        drawn.

        It works around two faults of ExecuTorch 1.5, which `docs/upstream.md` describes.
        """
        from coremltools.converters.mil.frontend.torch import ops
        from coremltools.converters.mil.mil.passes import pass_pipeline
        from coremltools.optimize.coreml import _quantization_passes

        from etplugins.coreml.identifiers import derived_from_content

        with (
            replaced(pass_pipeline, "tqdm", _without_bar),
            replaced(ops, "_tqdm", _without_bar),
            replaced(_quantization_passes, "tqdm", _without_bar),
            derived_from_content(),
            _one_by_one(),
            _no_references(),
        ):
            yield

    def stored_weights(self, compiled: bytes, named_data: Any) -> StoredWeights | None:
        """Returns the weights that a function reads from its model's file. None if the delegate contains its own model.

        A model stores most 32-bit weights with 16 bits. `blobs` has their sizes with 32 bits, as in the module.
        """
        from etplugins.coreml import model_files

        reference = model_files.reference(compiled) if named_data is not None else None
        if reference is None:
            return None
        key, function = reference
        model = bytes(named_data.buffers[named_data.pte_data[key].buffer_index])
        size, blobs = 0, {}
        for place, (kind, count) in model_files.weights(model, function).items():
            size += -(-count * model_files.bits(kind) // 8)
            blobs[f"{key} {place}"] = count * (4 if kind in ("FLOAT16", "FLOAT32") else 1)
        return StoredWeights(f"{key} {function}", size, blobs)


def _pairs(strategy: str | None, target: str | None) -> bool:
    """Returns whether partitions are paired: the strategy says so, or there is no strategy and the target supports
    it."""
    return _is_new(target) if strategy is None else strategy == "positional"


def _is_new(target: str | None) -> bool:
    return target is not None and int(target.removeprefix("iOS")) >= _NEW


def _check_names(options: Options) -> None:
    """Checks the names of operators and passes: ExecuTorch ignores unknown operators, and coremltools reports unknown
    passes only later."""
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    known = {"skip_ops_for_coreml_delegation": _operators(), "pass_names": set(PASS_REGISTRY.passes)}
    for option, names in known.items():
        for index, name in enumerate(options.get(option, [])):
            if name not in names:
                near = difflib.get_close_matches(name.lower(), names, n=1)
                hint = f"did you mean `{near[0]}`?" if near else None
                raise OptionError(f"there is no `{name}`", (option, index), hint)


def _operators() -> set[str]:
    """Returns the names of operators as ExecuTorch compares them: in lower case, with a namespace and also without,
    since only the edge dialect has namespaces. Includes Python's operators, which are used for arithmetic on sizes."""
    import torch

    every = torch._C._dispatch_get_all_op_names()
    full = {(name if "." in name else f"{name}.default").replace("::", ".").lower() for name in every}
    return full | {name.partition(".")[2] for name in full} | set(dir(operator))


def _paired(specs: Sequence[Any]) -> bool:
    """Returns whether partitions with these compile specs become one model."""
    from executorch.backends.apple.coreml.compiler import CoreMLBackend

    chosen = any(spec.key == _STRATEGY for spec in specs)
    strategy = CoreMLBackend.multimethod_weight_sharing_strategy_from_compile_specs(specs).value if chosen else None
    target = CoreMLBackend.min_deployment_target_from_compile_specs(specs)
    return _pairs(strategy, None if target is None else target.name)


def _compile_specs(options: Options) -> list[Any]:
    import coremltools
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY

    kinds = {
        "compute_unit": lambda value: coremltools.ComputeUnit[value.upper()],
        _TARGET: lambda value: coremltools.target[value],
        "compute_precision": coremltools.precision,
        "model_type": CoreMLBackend.MODEL_TYPE,
        "op_linear_quantizer_config": dict,
        "pass_names": list,
    }
    specs: list[Any] = CoreMLBackend.generate_compile_specs(
        **{name: kind(options[name]) for name, kind in kinds.items() if name in options}
    )
    if _STRATEGY in options:
        strategy = MULTIMETHOD_WEIGHT_SHARING_STRATEGY(options[_STRATEGY])
        specs.append(CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(strategy))
    return specs


def _enumerated_shapes(options: Options, program: Any) -> list[Any]:
    """Returns the compile spec for `enumerated_shapes`, or an empty list if the options have none."""
    from executorch.backends.apple.coreml.compiler import CoreMLBackend

    name = "enumerated_shapes"
    if name not in options:
        return []
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = {each: getattr(values.get(each), "shape", ()) for each in program.graph_signature.user_inputs}
    dynamic = [each for each, shape in inputs.items() if not all(isinstance(size, int) for size in shape)]
    for each in options[name]:
        if each not in dynamic:
            message = f"the method has no input `{each}` of dynamic shape"
            raise OptionError(message, (name,), did_you_mean(each, dynamic))
    try:
        return [CoreMLBackend.generate_enumerated_shapes_compile_spec(program, options[name])]
    except (AssertionError, ValueError) as error:
        raise OptionError(str(error), (name,)) from error


def _without_bar(items: Iterable[Any], **_settings: Any) -> Iterable[Any]:
    """Replaces `tqdm`, which draws a progress bar."""
    return items


@contextlib.contextmanager
def _one_by_one() -> Iterator[None]:
    """Returns a context manager in which methods become one model only if all of them can, and compute no
    floating-point numbers from integers.

    ExecuTorch checks only the first method, and treats a missing deployment target as any target. So it makes one
    model of methods for older systems, and that model needs iOS18.
    """
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY

    from etplugins.coreml.promotion import promote

    preprocess = CoreMLBackend.preprocess_multimethod
    disabled = CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(
        MULTIMETHOD_WEIGHT_SHARING_STRATEGY.DISABLED
    )

    def preprocess_multimethod(cls: Any, programs: Any, specs: Mapping[str, list[list[Any]]]) -> Any:
        del cls
        for of_method in programs.values():
            for program in of_method:
                promote(program)
        if all(_paired(each) for of_method in specs.values() for each in of_method):
            return preprocess(programs, specs)
        # The first compile spec with a key counts.
        return preprocess(programs, {name: [[disabled, *each] for each in of] for name, of in specs.items()})

    with replaced(CoreMLBackend, "preprocess_multimethod", classmethod(preprocess_multimethod)):
        yield


@contextlib.contextmanager
def _no_references() -> Iterator[None]:
    """Returns a context manager in which Core ML does not take nodes that name another backend's delegate or a branch.

    Its partitioner takes every `get_attr`. ExecuTorch cannot separate such a node from the call that it is an argument
    of.
    """
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    original = CoreMLPartitioner.partition

    def partition(self: Any, program: Any) -> Any:
        result = original(self, program)
        tags = set()
        for node in result.tagged_exported_program.graph.nodes:
            if node.op == "get_attr" and "val" not in node.meta:
                node.meta.pop("delegation_tag", None)
            tags.add(node.meta.get("delegation_tag"))
        partition_tags = {tag: spec for tag, spec in result.partition_tags.items() if tag in tags}
        return dataclasses.replace(result, partition_tags=partition_tags)

    with replaced(CoreMLPartitioner, "partition", partition):
        yield
