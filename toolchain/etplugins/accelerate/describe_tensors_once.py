"""Describes tensors of one shape once, while methods are traced.

A node of a graph gets a description of its tensor, with the order of its dimensions in memory, which torch finds in
Python from the shape and the strides. And torch looks each operator up in its cache of fake tensors by the descriptions
of all arguments. It takes such a description apart for this, field by field and dimension by dimension.

Here, tensors with equal dtypes, shapes and strides share the description of their node, and a description without
symbols is one part of a key. Those with symbols are described as before, because asking for their form may make a
condition on sizes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, TensorMetadata
from torch.fx.experimental import proxy_tensor

from etbuild.patching import replaced

_describe, _take_apart = proxy_tensor._extract_tensor_metadata, TensorMetadata._flatten_into
_fields = operator.attrgetter(*(field.name for field in dataclasses.fields(TensorMetadata)))
_INTEGERS = {int}


def _flatten_into(description: TensorMetadata, key: list[object], mode: Any, state: Any) -> None:
    sizes = *description.shape, *description.stride, description.storage_offset, description.storage_bytes
    if _INTEGERS.issuperset(map(type, sizes)):
        key.append(_fields(description))
    else:
        _take_apart(description, key, mode, state)


@contextlib.contextmanager
def describe_tensors_once() -> Iterator[None]:
    """Returns a context manager in which tensors without symbols are described once."""
    described: dict[Hashable, Any] = {}

    def describe(tensor: Any, *arguments: Any, **options: Any) -> Any:
        is_simple = type(tensor) is FakeTensor and tensor.layout is torch.strided and not tensor.is_quantized
        if arguments or options or not is_simple or tensor._has_symbolic_sizes_strides:
            return _describe(tensor, *arguments, **options)
        key = tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad
        if key not in described:
            described[key] = _describe(tensor)
        return described[key]._replace(qparams={})

    with (
        replaced(proxy_tensor, "_extract_tensor_metadata", describe),
        replaced(TensorMetadata, "_flatten_into", _flatten_into),
    ):
        yield
