"""Random numbers that are the same in every build."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed(value: int) -> None:
    """Seeds what a model draws numbers from without a generator of its own: PyTorch, NumPy and Python.

    Args:
        value: From 0 to 2**63 - 1. NumPy takes 32 bits of it.
    """
    torch.manual_seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002
    random.seed(value)
