"""The bytes of tensors with any strides, and the names of their dtypes."""

from __future__ import annotations

import torch


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the strides of a new tensor of its shape. XNNPACK refuses weights in other layouts.

    `contiguous()` is not enough: it keeps the strides of dimensions of size 1, which would reach the program's bytes,
    and with which `view` refuses other dtypes. A view that negates or conjugates when it is read is computed: its
    memory holds other numbers.
    """
    tensor = tensor.resolve_conj().resolve_neg()
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor if tensor.stride() == strides else tensor.clone(memory_format=torch.contiguous_format)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in their logical order, as uint8[nbytes]. It is a view of the tensor if the
    memory has them in that order."""
    return row_major(tensor.detach()).view(-1).view(torch.uint8)


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name of a dtype, such as `float32`."""
    return str(dtype).removeprefix("torch.")
