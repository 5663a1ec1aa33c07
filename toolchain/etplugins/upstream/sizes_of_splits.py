"""Keeps the sizes in results of `split` and `chunk` dynamic while ExecuTorch verifies them.

Limit: `sizes-of-splits`.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.verification import arg_validator

from etbuild.patching import replacing


@replacing(arg_validator, "len")
def verified_as_symbols(values: Any) -> int:
    """A length for ExecuTorch's verifier that fixes no size.

    It asks for the length of the list of tensors that an operator such as `split` returns. But it takes the first
    tensor for the list, and the length of that is a size. It needs no length: an empty list may have any dtype.
    """
    return 0 if isinstance(values, torch.Tensor) else len(values)
