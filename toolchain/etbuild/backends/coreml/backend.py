"""Core ML: Apple's CPU, GPU and Neural Engine."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from etbuild.backends.backend import Context, Need, OptionError, Options, Partitioners
from etbuild.errors import Problem, did_you_mean

_PARTITIONER_OPTIONS = (
    "lower_full_graph",
    "skip_ops_for_coreml_delegation",
    "take_over_constant_data",
    "take_over_mutable_buffer",
)
_STRATEGY = "multimethod_weight_sharing_strategy"
_TARGET = "minimum_deployment_target"
_NEW = 18  # the release of iOS from which on models can have several functions, and weights of 4 bits
# The defaults of what methods must agree on to be made one model: how it keeps weights, and where it runs.
_AGREED = {
    "compute_precision": "float16",
    _TARGET: None,
    "model_type": "model",
    "op_linear_quantizer_config": None,
    "pass_names": None,
}


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's CoreMLPartitioner with the options of `backend-coreml.schema.json`."""
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    _check_names(options)
    specs = [*_compile_specs(options), *_enumerated_shapes(options, context.program)]
    arguments = {name: options[name] for name in _PARTITIONER_OPTIONS if name in options}
    return CoreMLPartitioner(compile_specs=specs, **arguments)


MACOS = Need(
    "macOS for `model_type: compiled_model`",
    "lower this program on a Mac, or leave the option out",
    lambda: sys.platform == "darwin",
)


def needs_for(options: Options) -> tuple[Need, ...]:
    """What Apple's own compiler needs, where it is to be run."""
    return (MACOS,) if options.get("model_type") == "compiled_model" else ()


def check_options(options: Options) -> list[Problem]:
    """Options that need a later system than the one that is named, or another option."""
    quantizer = options.get("op_linear_quantizer_config", {})
    new = {
        (_STRATEGY,): options.get(_STRATEGY) == "positional",
        ("op_linear_quantizer_config", "dtype"): quantizer.get("dtype") in ("int4", "uint4"),
        ("op_linear_quantizer_config", "granularity"): quantizer.get("granularity") == "per_block",
        ("enumerated_shapes",): len(options.get("enumerated_shapes", {})) > 1,
    }
    hint = "write `minimum_deployment_target: iOS18`, or leave it out"
    found = [
        Problem("this needs `minimum_deployment_target: iOS18` or later", path, hint)
        for path, wanted in new.items()
        if wanted and not _is_new(options.get(_TARGET))
    ]
    if "enumerated_shapes" in options and not options.get("lower_full_graph"):
        message = "the shapes are those of the method's own inputs, so that all of it has to be delegated"
        found.append(Problem(message, ("enumerated_shapes",), "write `lower_full_graph: true` too"))
    return found


def pairs(options: Options) -> bool:
    """Whether partitions of methods are made one model, the first with the first."""
    return _pairs(options.get(_STRATEGY), options.get(_TARGET))


def _pairs(strategy: str | None, target: str | None) -> bool:
    """They are where it is said so, or nothing is said and they can be."""
    return _is_new(target) if strategy is None else strategy == "positional"


def _is_new(target: str | None) -> bool:
    return target is not None and int(target.removeprefix("iOS")) >= _NEW


def _check_names(options: Options) -> None:
    """ExecuTorch passes over the name of an operator that there is not; coremltools finds out about a pass later.

    Raises:
        OptionError: There is no operator, or no pass, of a name.
    """
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    known = {"skip_ops_for_coreml_delegation": _operators(), "pass_names": set(PASS_REGISTRY.passes)}
    for option, names in known.items():
        for index, name in enumerate(options.get(option, [])):
            if name not in names:
                near = difflib.get_close_matches(name.lower(), names, n=1)
                hint = f"did you mean `{near[0]}`?" if near else None
                raise OptionError(f"there is no `{name}`", (option, index), hint)


def _operators() -> set[str]:
    """The operators, as ExecuTorch compares their names: in lower case, and without a namespace until they are in the
    edge dialect. Arithmetic on sizes is Python's."""
    import torch

    every = torch._C._dispatch_get_all_op_names()
    full = {(name if "." in name else f"{name}.default").replace("::", ".").lower() for name in every}
    return full | {name.partition(".")[2] for name in full} | set(dir(operator))


def apart(options: Options) -> list[Any]:
    """What methods must have in common to be made one model."""
    return [pairs(options), *(options.get(name, default) for name, default in _AGREED.items())]


def pairs_of(partitioner: Any) -> bool | None:
    """Whether a partitioner that is in no manifest makes one model of methods' partitions."""
    spec = getattr(partitioner, "delegation_spec", None)
    return _paired(spec.compile_specs) if spec is not None and spec.backend_id == "CoreMLBackend" else None


def apart_of(partitioner: Any) -> list[Any] | None:
    """The same as `apart`, of a partitioner that is in no manifest."""
    spec = getattr(partitioner, "delegation_spec", None)
    if spec is None or spec.backend_id != "CoreMLBackend":
        return None
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import COMPILE_SPEC_KEYS, CoreMLBackend

    specs = spec.compile_specs
    written = {each.key: each.value for each in reversed(specs)}  # the first of a key is the one that counts
    target = CoreMLBackend.min_deployment_target_from_compile_specs(specs)
    said = {
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
    return [_paired(specs), *(said[name] for name in _AGREED)]


def _paired(specs: Sequence[Any]) -> bool:
    """Whether partitions of these compile specs are made one model."""
    from executorch.backends.apple.coreml.compiler import CoreMLBackend

    said = any(spec.key == _STRATEGY for spec in specs)
    strategy = CoreMLBackend.multimethod_weight_sharing_strategy_from_compile_specs(specs).value if said else None
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
    """The compile spec of that name, if the options have any.

    Raises:
        OptionError: They do not fit the method's inputs.
    """
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


@contextlib.contextmanager
def around(partitioners: Partitioners) -> Iterator[None]:
    """Inside, what Core ML's tools make depends on the methods alone, and they draw no progress bars.

    Two faults of ExecuTorch 1.5 are kept away: `docs/upstream.md` has them.
    """
    from coremltools.converters.mil.frontend.torch import ops
    from coremltools.converters.mil.mil.passes import pass_pipeline
    from coremltools.optimize.coreml import _quantization_passes

    from etbuild.backends.coreml.identifiers import derived_from_content
    from etbuild.patching import replaced

    def no_bar(items: Iterable[Any], **settings: Any) -> Iterable[Any]:
        del settings
        return items

    del partitioners
    with (
        replaced(pass_pipeline, "tqdm", no_bar),
        replaced(ops, "_tqdm", no_bar),
        replaced(_quantization_passes, "tqdm", no_bar),
        derived_from_content(),
        _one_by_one(),
        _no_references(),
    ):
        yield


@contextlib.contextmanager
def _one_by_one() -> Iterator[None]:
    """Inside, methods are made one model only where all of them can be.

    ExecuTorch asks the first method alone, and takes no deployment target for any: the model that it makes of methods
    for older systems needs iOS18.
    """
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY

    from etbuild.patching import replaced

    preprocess = CoreMLBackend.preprocess_multimethod
    disabled = CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(
        MULTIMETHOD_WEIGHT_SHARING_STRATEGY.DISABLED
    )

    def preprocess_multimethod(cls: Any, programs: Any, specs: Mapping[str, list[list[Any]]]) -> Any:
        del cls
        if all(_paired(each) for of_method in specs.values() for each in of_method):
            return preprocess(programs, specs)
        # The first compile spec of a key is the one that counts.
        return preprocess(programs, {name: [[disabled, *each] for each in of] for name, of in specs.items()})

    with replaced(CoreMLBackend, "preprocess_multimethod", classmethod(preprocess_multimethod)):
        yield


@contextlib.contextmanager
def _no_references() -> Iterator[None]:
    """Inside, Core ML does not take the nodes that name another backend's delegate or a branch of control flow.

    Its partitioner takes every `get_attr`. ExecuTorch cannot part these from what they are an argument of.
    """
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    from etbuild.patching import replaced

    original = CoreMLPartitioner.partition

    def partition(self: Any, program: Any) -> Any:
        result = original(self, program)
        tags = set()
        for node in result.tagged_exported_program.graph.nodes:
            if node.op == "get_attr" and "val" not in node.meta:
                node.meta.pop("delegation_tag", None)
            tags.add(node.meta.get("delegation_tag"))
        kept = {tag: spec for tag, spec in result.partition_tags.items() if tag in tags}
        return dataclasses.replace(result, partition_tags=kept)

    with replaced(CoreMLPartitioner, "partition", partition):
        yield


def create_quantizer(options: Options, load_callable: Callable[[str], Any]) -> Any:
    """ExecuTorch's CoreMLQuantizer with the options of `quantizer-coreml.schema.json`."""
    from coremltools.optimize.torch.quantization.quantization_config import LinearQuantizerConfig
    from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer

    del load_callable
    chosen = {name: value for name, value in options.items() if name not in ("qat", "modules", "leave_out")}
    names: dict[str, Any] = dict.fromkeys(options.get("modules", []), chosen)
    names.update(dict.fromkeys(options.get("leave_out", [])))
    config: dict[str, Any] = {"module_name_configs": names}
    if "modules" not in options:
        config["global_config"] = chosen
    return CoreMLQuantizer(LinearQuantizerConfig.from_dict(config))
