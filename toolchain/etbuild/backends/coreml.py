"""Core ML: Apple's CPU, GPU and Neural Engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from etbuild.backends.backend import Context, Options, Partitioners

_PARTITIONER_OPTIONS = (
    "lower_full_graph",
    "skip_ops_for_coreml_delegation",
    "take_over_constant_data",
    "take_over_mutable_buffer",
)


def create(options: Options, context: Context) -> Any:
    """ExecuTorch's CoreMLPartitioner with the options of `backend-coreml.schema.json`."""
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    del context
    arguments = {name: options[name] for name in _PARTITIONER_OPTIONS if name in options}
    return CoreMLPartitioner(compile_specs=_compile_specs(options), **arguments)


def equal_partitions(options: Options) -> bool:
    """Whether partitions of methods are made one model, the first with the first."""
    return bool(options.get("multimethod_weight_sharing_strategy", "positional") == "positional")


def _compile_specs(options: Options) -> list[Any]:
    import coremltools
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import MULTIMETHOD_WEIGHT_SHARING_STRATEGY

    kinds = {
        "compute_unit": lambda value: coremltools.ComputeUnit[value.upper()],
        "minimum_deployment_target": lambda value: coremltools.target[value],
        "compute_precision": coremltools.precision,
        "model_type": CoreMLBackend.MODEL_TYPE,
        "op_linear_quantizer_config": dict,
        "pass_names": list,
    }
    specs: list[Any] = CoreMLBackend.generate_compile_specs(
        **{name: kind(options[name]) for name, kind in kinds.items() if name in options}
    )
    if "multimethod_weight_sharing_strategy" in options:
        strategy = MULTIMETHOD_WEIGHT_SHARING_STRATEGY(options["multimethod_weight_sharing_strategy"])
        specs.append(CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(strategy))
    return specs


@contextlib.contextmanager
def around(partitioners: Partitioners) -> Iterator[None]:
    """Inside, what Core ML's tools make depends on the methods alone, and they draw no progress bars."""
    from coremltools.converters.mil.frontend.torch import ops
    from coremltools.converters.mil.mil.passes import pass_pipeline

    from etbuild.accelerate.replaced import replaced
    from etbuild.backends.coreml_identifiers import derived_from_content

    def no_bar(items: Iterable[Any], **settings: Any) -> Iterable[Any]:
        del settings
        return items

    del partitioners
    with replaced(pass_pipeline, "tqdm", no_bar), replaced(ops, "_tqdm", no_bar), derived_from_content():
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
