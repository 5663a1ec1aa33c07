"""Keeps operators from XNNPACK that the runtime cannot load, or that ExecuTorch's passes make wrong.

Limits: `xnnpack-dimensions`, `xnnpack-own-weight`, `xnnpack-prelu`, `xnnpack-dynamic-sizes`, `xnnpack-addmm`,
`xnnpack-rsqrt`, `xnnpack-sigmoid`, `xnnpack-max`, `xnnpack-scale`, `xnnpack-written-weight`.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from executorch.backends.xnnpack.partition.config.gemm_configs import GEMMConfig
from executorch.exir.backend.canonical_partitioners.config_partitioner import ConfigerationBasedPartitioner
from torch.fx import Node

from etbuild.backends.xnnpack import Xnnpack
from etbuild.patching import replaced
from etplugins.upstream import xnnpack_norms

_MAX_DIMENSIONS = 6  # XNN_MAX_TENSOR_DIMS: the runtime refuses a method if a delegate has tensors of more
_IMAGE_DIMENSIONS = 4
_FAR = 1e20
_NUMBER = "_lifted_tensor_constant"  # the name of an input for a number of the graph begins with this
_NEAR = 64  # this many operators before another one are looked at


@contextlib.contextmanager
def corrected_operators(partitioners: Mapping[str, Sequence[Any]]) -> Iterator[None]:
    """A context in which XNNPACK takes only operators that the runtime can load, and that it computes as PyTorch does.

    Args:
        partitioners: The partitioners of each method.
    """
    written = functools.lru_cache(maxsize=1)(_written_buffers)  # it is called for each operator of a method
    with contextlib.ExitStack() as changed:
        for partitioner in {id(one): one for own in partitioners.values() for one in own}.values():
            if not isinstance(partitioner, ConfigerationBasedPartitioner):
                continue
            if partitioner.delegation_spec.backend_id == Xnnpack.delegate_id:
                changed.enter_context(xnnpack_norms.more_operators(partitioner))
                for config in partitioner.target_partitioner_configs.values():
                    changed.enter_context(replaced(config, "check_constraints", _of_usual_tensors(config, written)))
                    if isinstance(config, GEMMConfig):
                        changed.enter_context(replaced(config, "_get_bias_deps", _counting_each(config)))
        yield


def operator_of(node: Any) -> str:
    """The name of the operator that a node calls, such as `aten.linear.default`; empty if it calls none."""
    return str(getattr(node.target, "__name__", ""))


def _of_usual_tensors(config: Any, written_buffers: Callable[[Any], set[str]]) -> Callable[[Any, Any], bool]:
    """Returns the check of an operator's configuration. It is also false in these cases:

    - A tensor has more dimensions than XNNPACK knows.
    - The check of the operator in `_USUAL` is false.
    - The operator is a sigmoid after a large number: XNNPACK gives NaN for finite numbers beyond about 1e20.
    - A weight of the operator is a buffer that the method writes. ExecuTorch would treat it as a constant.
    """
    check = config.check_constraints

    def checked(node: Any, program: Any) -> bool:
        is_usual = _USUAL.get(operator_of(node).removeprefix("aten."), lambda node: True)
        if max(_ranks(node)) > _MAX_DIMENSIONS or not is_usual(node) or not check(node, program):
            return False
        if operator_of(node) == "aten.sigmoid.default" and _follows_far_number(node, program):
            return False
        written = written_buffers(program)
        return not written or all(each.name not in written for each in config.get_node_and_deps(node, program))

    return checked


def _counting_each(config: Any) -> Callable[[Any, Any, Any], Any]:
    """Returns the search for the bias of a layer. It also counts an input that is the layer's weight.

    ExecuTorch looks for a bias only if a layer has three different inputs.
    """
    find = config._get_bias_deps

    def found(layer: Any, program: Any, precision: Any) -> Any:
        inputs = [each for each in layer.args if isinstance(each, Node)]
        return find(SimpleNamespace(args=layer.args, all_input_nodes=inputs), program, precision)

    return found


def _is_of_images(node: Any) -> bool:
    """Whether the input of PReLU is a batch of images, as ExecuTorch's passes assume."""
    return len(_shape(node.args[0])) == _IMAGE_DIMENSIONS


def _can_be_reshaped(node: Any) -> bool:
    """Whether at most one size of a result is dynamic: XNNPACK can compute only one when it changes a shape."""
    return _fixed(_shape(node)).count(None) <= 1


def _can_be_an_image(node: Any) -> bool:
    """Whether a convolution is of images, or ExecuTorch's passes can change its shapes to make it one."""
    return len(_shape(node)) == _IMAGE_DIMENSIONS or all(map(_can_be_reshaped, (node.args[0], node)))


def _has_usual_sizes(node: Any) -> bool:
    """Whether a batch norm is of images, or of a shape that ExecuTorch's passes can change: they turn each batch norm
    into a convolution, unless it follows one in the delegate."""
    image = node.args[0]
    return len(_shape(image)) == _IMAGE_DIMENSIONS or _can_be_reshaped(image)


def _adds_a_row(node: Any) -> bool:
    """Whether `addmm` adds one number to each column, as a linear layer does, and does not scale anything."""
    *others, columns = _fixed(_shape(node.args[0])) or (1,)
    factors = {node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)}
    return factors == {1} and [columns] == _fixed(_shape(node)[-1:]) and all(size == 1 for size in others)


def _is_a_pool(node: Any) -> bool:
    """Whether a maximum is over a dimension of an image with a fixed size above 1. XNNPACK counts the dimension from
    the front, and keeps it with the size 1."""
    image, dimension, keeps = (*node.args, False)[:3]
    size = _fixed(_shape(image))[dimension]
    return keeps and dimension in (2, 3) and size is not None and size > 1 and len(node.users) == 1


def _scales_by_sizes(node: Any) -> bool:
    """Whether the scale of a resize is the ratio of its sizes, as XNNPACK assumes."""
    before, after = _fixed(_shape(node.args[0])[2:]), _fixed(_shape(node)[2:])
    _, _, align_corners, scales = (*node.args, None)[:4]
    if not scales or align_corners:
        return True
    sizes = zip(before, scales, after, strict=True)
    return all(a is not None and b is not None and math.isclose(a * scale, b, rel_tol=1e-6) for a, scale, b in sizes)


def _is_above_zero(node: Any) -> bool:
    """Whether `rsqrt` is of a sum with a number, as in an RMS norm, or of a clamped value: XNNPACK gives NaN for 0."""
    source = node.args[0]
    is_sum = operator_of(source) in ("aten.add.Tensor", "aten.add.Scalar")
    numbers = [each for each in getattr(source, "args", ()) if not isinstance(each, Node) or not _shape(each)]
    return (is_sum and bool(numbers)) or (operator_of(source) == "aten.clamp.default" and (source.args[1] or 0) > 0)


def _follows_far_number(node: Any, program: Any) -> bool:
    """Whether a number larger than `_FAR` is used before an operator, as in a mask."""
    waiting, seen = [node], {node}
    while waiting and len(seen) < _NEAR:
        each = waiting.pop(0)
        numbers = [value for value in each.args if isinstance(value, int | float)]
        if each.op == "placeholder":
            numbers += _largest_of(program, each)
        if any(_FAR < abs(value) < math.inf for value in numbers):
            return True
        waiting += [source for source in each.all_input_nodes if source not in seen]
        seen.update(each.all_input_nodes)
    return False


def _largest_of(program: Any, given: Node) -> list[float]:
    """The finite number of a constant that is farthest from 0; empty for a weight, which may not be known yet."""
    name = program.graph_signature.inputs_to_lifted_tensor_constants.get(given.name, "")
    value = program.state_dict.get(given.target) if given.name.startswith(_NUMBER) else program.constants.get(name)
    content = getattr(value, "constant", value)  # a fake tensor may know its number
    if type(content) is not torch.Tensor:
        return []
    numbers = content.double()  # a mask may be of booleans
    finite = numbers[numbers.isfinite()]
    return [float(finite.abs().max())] if finite.numel() else []


def _is_needless(node: Any) -> bool:
    """Whether a copy may be left out, as XNNPACK does. Then a result must not become another result too, or an input: a
    delegate writes each of its results to its own memory, and returns no input."""
    source = node.args[0]
    if not _is_result(node):
        return True
    others = [user for user in source.users if user is not node and operator_of(user) == operator_of(node)]
    return source.op != "placeholder" and not _is_result(source) and not any(map(_is_result, others))


def _is_result(node: Any) -> bool:
    return any(user.op == "output" for user in node.users)


_USUAL: dict[str, Callable[[Any], bool]] = {
    "_native_batch_norm_legit_no_training.default": _has_usual_sizes,
    "addmm.default": _adds_a_row,
    "convolution.default": _can_be_an_image,
    "dim_order_ops._clone_dim_order.default": _is_needless,
    "max.dim": _is_a_pool,
    "native_batch_norm.default": _has_usual_sizes,
    "prelu.default": _is_of_images,
    "rsqrt.default": _is_above_zero,
    "unsqueeze_copy.default": _can_be_reshaped,
    "upsample_bilinear2d.vec": _scales_by_sizes,
}
"""By operator: whether XNNPACK computes a call of it as PyTorch does."""


def _written_buffers(program: Any) -> set[str]:
    """The names of the inputs for buffers that a method writes."""
    written = set(program.graph_signature.buffers_to_mutate.values())
    return {name for name, buffer in program.graph_signature.inputs_to_buffers.items() if buffer in written}


def _shape(node: Any) -> Sequence[Any]:
    shape: Sequence[Any] = node.meta["val"].shape
    return shape


def _fixed(sizes: Sequence[Any]) -> list[int | None]:
    """Sizes, with None for a dynamic one: a comparison would fix it."""
    return [size if isinstance(size, int) else None for size in sizes]


def _ranks(node: Any) -> Iterator[int]:
    """The numbers of dimensions of an operator's inputs and results."""
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        for one in value if isinstance(value, tuple | list) else (value,):
            yield len(getattr(one, "shape", ()))
