"""Gives XNNPACK norms, means over rows, and sums and products with a number: it has all operators that they need.

ExecuTorch's partitioner leaves them out. Outside of delegates, norms lose digits: see `norms.py`. Here, a norm is

    shifted = x - x[..., :1]
    centered = shifted - mean(shifted)
    centered * rsqrt(mean(centered * centered) + eps) * weight + bias

The first difference keeps the digits for any mean, and is 0 for a flat row. The numbers that are left are as large as
the deviation, so the rounding of the mean is small beside it. The mean of a row is its product with a constant vector,
by XNNPACK's kernel for linear layers: its own kernel for means is for images, and is slower. It adds one number after
the other, so a long row is a matrix: its mean is the mean of the means of its rows.

Limit: `xnnpack-norms`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.config.generic_node_configs import GenericNodePartitionerConfig
from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
from executorch.backends.xnnpack.utils.quant_utils import is_dequant
from executorch.exir.dialects._ops import ops
from torch._guards import detect_fake_mode
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from etbuild.patching import replaced
from etplugins.upstream import graph_changes
from etplugins.upstream.graph_changes import Add, Writer

_ATEN = ops.edge.aten
_LONGEST = 1 << 10  # a mean of more numbers is the mean of several means
_LEAST_EPS = 1e-30  # XNNPACK's `rsqrt` gives NaN for numbers that are nearly 0
_IMAGE_DIMENSIONS = 4


class _Float32(GenericNodePartitionerConfig):  # type: ignore[misc]  # of a package without types
    """An operator of float32 tensors that becomes several of XNNPACK's operators."""

    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        """As the base says."""
        return [ConfigPrecisionType.FP32]

    def check_constraints(self, node: Any, ep: Any) -> bool:
        """As the base says."""
        tensors = [each.meta["val"] for each in node.all_input_nodes]
        is_float32 = all(isinstance(each, torch.Tensor) and each.dtype is torch.float32 for each in tensors)
        return is_float32 and self.check_common_constraints(node, ep) and self.is_usual(node)

    def is_usual(self, node: Any) -> bool:
        """Whether XNNPACK's operators compute a call as PyTorch does."""
        raise NotImplementedError


class _NormConfig(_Float32):
    """Norms. Nothing reads their other results, which are the mean and the deviation."""

    def is_usual(self, node: Any) -> bool:
        """As the base says."""
        reads = {(user.target, user.args[1]) for user in node.users}
        return reads == {(operator.getitem, 0)} and node.args[-1] >= _LEAST_EPS and self.has_rows(node)

    def has_rows(self, node: Any) -> bool:
        """Whether a norm is of rows of a usual size."""
        raise NotImplementedError

    def get_node_and_deps(self, node: Any, ep: Any) -> list[Any]:
        """As the base says."""
        return [node, *node.users]


class LayerNormConfig(_NormConfig):
    """Layer norms."""

    target_name = "native_layer_norm.default"

    def has_rows(self, node: Any) -> bool:
        """As the base says."""
        given, sizes, *_ = node.args
        return _has_rows(given, len(sizes))


class GroupNormConfig(_NormConfig):
    """Group norms of tensors with fixed sizes, except for the number of images."""

    target_name = "native_group_norm.default"

    def has_rows(self, node: Any) -> bool:
        """As the base says."""
        shape, groups = node.args[0].meta["val"].shape, node.args[6]
        sizes = shape[1:]
        return all(isinstance(size, int) for size in sizes) and bool(_factors(math.prod(sizes) // groups))


class InstanceNormConfig(_NormConfig):
    """Batch norms without statistics, for one image: PyTorch makes this of an instance norm."""

    target_name = "_native_batch_norm_legit.no_stats"

    def has_rows(self, node: Any) -> bool:
        """As the base says."""
        one, *sizes = node.args[0].meta["val"].shape
        is_fixed = all(isinstance(size, int) for size in (one, *sizes))
        return is_fixed and one == 1 and bool(_factors(math.prod(sizes[1:])))


class MulNumberConfig(_Float32):
    """The product of a tensor and a number, such as the scale of an attention."""

    target_name = "mul.Scalar"

    def is_usual(self, node: Any) -> bool:
        """As the base says."""
        number = node.args[1]
        return isinstance(number, int | float) and abs(number) <= torch.finfo(torch.float32).max


class AddNumberConfig(MulNumberConfig):
    """The sum of a tensor and a number, such as `eps` of `torch.nn.RMSNorm`."""

    target_name = "add.Scalar"

    def is_usual(self, node: Any) -> bool:
        """As the base says."""
        return super().is_usual(node) and node.args[2:] in ((), (1,)) and node.kwargs.get("alpha", 1) == 1


_CONFIGS: Sequence[type[_Float32]] = (
    LayerNormConfig,
    GroupNormConfig,
    InstanceNormConfig,
    AddNumberConfig,
    MulNumberConfig,
)
_OF_TENSORS = {_ATEN.add.Scalar: _ATEN.add.Tensor, _ATEN.mul.Scalar: _ATEN.mul.Tensor}


@contextlib.contextmanager
def more_operators(partitioner: Any) -> Iterator[None]:
    """A context in which a partitioner of XNNPACK also takes the operators of this module. It does not if the manifest
    chooses other operators, or leaves out float32.

    Args:
        partitioner: The partitioner. In the context, it has other configurations.
    """
    own = partitioner.target_partitioner_configs
    layer = own.get("linear.default")
    if not all(config.target_name in own for config in ALL_PARTITIONER_CONFIGS) or (
        ConfigPrecisionType.FP32 not in layer.enabled_precision_types or layer.force_non_static_weights_for_f32_linear
    ):
        yield
        return
    mean = own["mean.dim"]
    added = {config.target_name: config() for config in _CONFIGS if config.target_name not in own}
    with (
        replaced(partitioner, "target_partitioner_configs", {**own, **added}),
        replaced(mean, "check_constraints", _also_of_rows(mean)),
    ):
        yield


def _also_of_rows(config: Any) -> Callable[[Any, Any], bool]:
    check = config.check_constraints

    def checked(node: Any, program: Any) -> bool:
        return bool(_is_of_rows(node) and config.check_common_constraints(node, program)) or bool(check(node, program))

    return checked


def _is_of_rows(node: Any) -> bool:
    """Whether a node is the mean of each row of a float32 tensor, and keeps the dimension with the size 1."""
    if node.target is not _ATEN.mean.dim or node.kwargs:
        return False
    given, dims = node.args[:2]
    keeps = len(node.args) > 2 and bool(node.args[2])
    value = given.meta["val"]
    is_last: bool = isinstance(dims, Sequence) and [dim % value.dim() for dim in dims] == [value.dim() - 1]
    is_float32 = value.dtype is torch.float32 and node.meta["val"].dtype is torch.float32
    return is_last and keeps and is_float32 and value.dim() > 1 and not is_dequant(given) and _has_rows(given, 1)


def _has_rows(given: Any, dimensions: int) -> bool:
    """Whether the last dimensions of a tensor are rows of a fixed size, and it can get the shape of a matrix if that is
    needed: only one other size is dynamic then."""
    shape = given.meta["val"].shape
    row, others = shape[-dimensions:], shape[:-dimensions]
    if not all(isinstance(size, int) for size in row) or not _factors(math.prod(row)):
        return False
    return _is_matrix(given, dimensions) or sum(not isinstance(size, int) for size in others) <= 1


def _is_matrix(given: Any, dimensions: int) -> bool:
    """Whether operators for rows can read a tensor as it is. After a convolution, an image is not in rows."""
    shape = given.meta["val"].shape
    return dimensions == 1 and 1 < len(shape) != _IMAGE_DIMENSIONS and shape[-1] <= _LONGEST


@functools.cache
def _factors(size: int) -> tuple[int, ...]:
    """One or two sizes with this product, none above `_LONGEST`; empty if there are none."""
    least = max(1, -(-size // _LONGEST))
    other = next((each for each in range(least, _LONGEST + 1) if size % each == 0), 0) if size else 0
    return () if not other else (size,) if other == 1 else (other, size // other)


def write_out(program: Any) -> None:
    """Replaces the operators of this module by those of XNNPACK.

    Args:
        program: The graph of a delegate, before ExecuTorch's passes. It is changed in place.
    """
    constants = _Constants(program)

    def writer(node: Any) -> Writer | None:
        if node.target in _NORMS:
            return lambda add, *inputs: _NORMS[node.target](add, constants, *inputs)
        if (of_tensors := _OF_TENSORS.get(node.target)) is not None:
            return lambda add, given, number, *_, **__: add(of_tensors, given, constants.number(given, number))
        return (lambda add, given, *_: _mean_of_rows(add, constants, given)) if _is_of_rows(node) else None

    graph_changes.write(program, writer)


class _Constants:
    """Adds constants to the graph of a delegate, each once."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._made: dict[Any, Any] = {}

    def number(self, like: Any, number: float) -> Any:
        """A float32 number."""
        return self._of(like, "number", torch.tensor(number, dtype=torch.float32))

    def vector(self, like: Any, numbers: Sequence[float]) -> Any:
        """The weight of a linear layer with one result."""
        return self._of(like, "row", torch.tensor([[*numbers]], dtype=torch.float32))

    def _of(self, like: Any, name: str, value: torch.Tensor) -> Any:
        key = value.shape, value.numpy().tobytes()
        if key not in self._made:
            graph, signature = self._program.graph, self._program.graph_signature
            first = next(iter(graph.nodes))
            with graph.inserting_before(first):
                node = graph.placeholder(f"_{name}_of_norms")
            node.target = node.name
            node.meta["val"] = detect_fake_mode(like.meta["val"]).from_tensor(value)
            self._program.constants[node.name] = value
            signature.input_specs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name))
            self._made[key] = node
        return self._made[key]


def _layer_norm(
    add: Add, constants: _Constants, given: Any, sizes: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Any, None, None]:
    is_matrix = _is_matrix(given, len(sizes))
    rows = given if is_matrix else add(_ATEN.view_copy.default, given, [-1, *_factors(math.prod(sizes))])
    normalized = _normalized(add, constants, rows, 1 if is_matrix else rows.meta["val"].dim() - 1, eps)
    normalized = normalized if is_matrix else _in_form_of(add, given, normalized)
    return _with(add, normalized, weight, bias), None, None


def _group_norm(
    add: Add, constants: _Constants, given: Any, weight: Any, bias: Any, *options: Any
) -> tuple[Any, None, None]:
    *_, groups, eps = options
    shape = given.meta["val"].shape
    rows = add(_ATEN.view_copy.default, given, [-1, *_factors(math.prod(shape[1:]) // groups)])
    normalized = _in_form_of(add, given, _normalized(add, constants, rows, rows.meta["val"].dim() - 1, eps))
    form = [-1, *[1] * (len(shape) - 2)]
    factors = [each if each is None else add(_ATEN.view_copy.default, each, form) for each in (weight, bias)]
    return _with(add, normalized, *factors), None, None


def _instance_norm(
    add: Add, constants: _Constants, given: Any, weight: Any, bias: Any, *options: Any
) -> tuple[Any, None, None]:
    channels, eps = given.meta["val"].shape[1], options[-1]
    return _group_norm(add, constants, given, weight, bias, channels, eps)


_NORMS: dict[Any, Callable[..., Any]] = {
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.native_group_norm.default: _group_norm,
    _ATEN._native_batch_norm_legit.no_stats: _instance_norm,
}


def _in_form_of(add: Add, given: Any, result: Any) -> Any:
    known = [size if isinstance(size, int) else -1 for size in given.meta["val"].shape]
    return add(_ATEN.view_copy.default, result, known)


def _with(add: Add, normalized: Any, weight: Any, bias: Any) -> Any:
    for operation, factor in ((_ATEN.mul.Tensor, weight), (_ATEN.add.Tensor, bias)):
        normalized = normalized if factor is None else add(operation, normalized, factor)
    return normalized


def _normalized(add: Add, constants: _Constants, rows: Any, dimensions: int, eps: float) -> Any:
    """Rows with the mean 0 and the variance 1. A row has one or two dimensions."""
    shifted = add(_ATEN.sub.Tensor, rows, _first(add, constants, rows, dimensions))
    centered = add(_ATEN.sub.Tensor, shifted, _mean(add, constants, shifted, dimensions))
    variance = _mean(add, constants, add(_ATEN.mul.Tensor, centered, centered), dimensions)
    variance = add(_ATEN.add.Tensor, variance, constants.number(rows, eps))
    return add(_ATEN.mul.Tensor, centered, add(_ATEN.rsqrt.default, variance))


def _first(add: Add, constants: _Constants, rows: Any, dimensions: int) -> Any:
    """The first number of each row. XNNPACK cuts no tensor with a dynamic size."""
    if all(isinstance(size, int) for size in rows.meta["val"].shape):
        count = rows.meta["val"].dim()
        for dim in range(count - 1, count - 1 - dimensions, -1):
            rows = add(_ATEN.slice_copy.Tensor, rows, dim, 0, 1)
        return rows
    return _product(add, constants, rows, dimensions, lambda size: [1.0, *[0.0] * (size - 1)])


def _mean_of_rows(add: Add, constants: _Constants, given: Any) -> Any:
    *others, size = given.meta["val"].shape
    if size <= _LONGEST:
        return _mean(add, constants, given, 1)
    found = _mean(add, constants, add(_ATEN.view_copy.default, given, [-1, *_factors(size)]), 2)
    return add(_ATEN.view_copy.default, found, [*(each if isinstance(each, int) else -1 for each in others), 1])


def _mean(add: Add, constants: _Constants, rows: Any, dimensions: int) -> Any:
    """The mean of each row."""
    return _product(add, constants, rows, dimensions, lambda size: [1 / size] * size)


def _product(add: Add, constants: _Constants, rows: Any, dimensions: int, vector: Callable[[int], list[float]]) -> Any:
    """The products of rows with a vector; of two dimensions: of the products of their rows with another vector."""
    shape = rows.meta["val"].shape
    found = add(_ATEN.linear.default, rows, constants.vector(rows, vector(shape[-1])))
    if dimensions == 1:
        return found
    found = add(_ATEN.view_copy.default, found, [-1, 1, shape[-2]])
    return add(_ATEN.linear.default, found, constants.vector(rows, vector(shape[-2])))
