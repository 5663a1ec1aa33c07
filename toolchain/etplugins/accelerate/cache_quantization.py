"""Lets PyTorch's cache of fake tensors hold results of quantization.

The cache gives an operator with the same arguments its earlier result. It holds only operators of PyTorch itself,
because the fake form of another operator may do anything. The operators of torchao's quantization and of PT2E depend
only on their arguments. They are written in Python with up to twenty operators each. Every quantized layer has some of
them, and each decomposition runs these four times.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from etbuild.patching import replacing

# ExecuTorch replaces operators that it keeps whole by copies in its own library.
_QUANTIZES = re.compile(
    r"(?:torchao|EDGE_DO_NOT_DECOMP)::(?:choose_qparams|quantize|dequantize)_affine\w*"
    r"|quantized_decomposed::(?:choose_qparams|quantize|dequantize)\w*"
)

_validate = FakeTensorMode._validate_cache_key


@functools.cache
def _quantizes(operator: Any) -> bool:
    """Whether an operator quantizes or dequantizes a tensor, without a change of its arguments."""
    if not isinstance(operator, OpOverload) or not _QUANTIZES.fullmatch(operator._schema.name):
        return False
    return all(each.alias_info is None for each in (*operator._schema.arguments, *operator._schema.returns))


@replacing(FakeTensorMode, "_validate_cache_key")
def cache_quantization(self: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> None:
    """Also lets the cache hold results of quantization operators."""
    if not _quantizes(func):
        _validate(self, func, args, kwargs)
