"""The bytes and forms of tensors with any strides, and the names of their dtypes."""

from __future__ import annotations

import torch

FLOATING = ("float64", "float32", "bfloat16", "float16")
"""The dtypes that `model.dtype` converts. 8-bit floats may be quantized weights, with scales elsewhere."""


class Promised(torch.Tensor):  # type: ignore[misc]
    """A tensor whose content comes when methods are lowered already. A plug-in makes such tensors."""

    def promise(self) -> bytes:
        """What stands for its bytes until then, with their length."""
        raise NotImplementedError


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the strides of a new tensor of its shape. XNNPACK refuses weights in other layouts.

    `contiguous()` is not enough. It keeps the strides of dimensions of size 1. These would reach the program's bytes,
    and `view` would refuse other dtypes. Computes lazy views that negate or conjugate, because their memory holds other
    numbers.
    """
    tensor = tensor.resolve_conj().resolve_neg()
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor if tensor.stride() == strides else tensor.clone(memory_format=torch.contiguous_format)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in their logical order, as uint8[nbytes]. A view if the tensor is row-major."""
    return row_major(tensor.detach()).view(-1).view(torch.uint8)


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name of a dtype, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def form(tensor: torch.Tensor) -> str:
    """The dtype and shape of a tensor, as errors show them: `float32[2, 3]`."""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits."""
    return one is other or (form(one) == form(other) and torch.equal(_words(one), _words(other)))


def is_uniform(content: torch.Tensor, element_size: int) -> bool:
    """Whether all elements of a tensor are equal.

    Args:
        content: Its bytes, uint8[nbytes].
        element_size: The size of an element in bytes.
    """
    elements = content.view(-1, element_size)
    return len(elements) == 0 or bool(
        torch.equal(elements[0], elements[-1]) and torch.equal(elements, elements[:1].expand_as(elements))
    )


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, as elements of eight bytes if possible, which compare faster."""
    flat = flat_bytes(tensor)
    flat = flat.clone() if flat.storage_offset() % 8 else flat
    return flat if len(flat) % 8 else flat.view(torch.int64)
