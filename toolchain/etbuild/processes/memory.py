"""Gives memory that Python and PyTorch have freed back to the operating system."""

import ctypes


def give_back() -> None:
    """Gives freed memory back. glibc keeps freed blocks of up to 32 MB; other C libraries have no such function."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
