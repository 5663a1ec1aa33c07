"""Random numbers that are the same in every build."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed(value: int) -> None:
    """Seeds the random numbers that a model draws without its own generator: those of PyTorch, NumPy and Python.

    Args:
        value: From 0 to 2**63 - 1. NumPy uses 32 bits of it.
    """
    torch.manual_seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002 - models use it
    random.seed(value)
