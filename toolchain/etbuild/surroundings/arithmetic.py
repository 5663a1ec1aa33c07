"""One arithmetic for every machine: sums and functions round in the same way, for any kind and number of processors.

Libraries choose their code by the processor, and split sums among threads. Each has its own switch: variables that it
reads when the process starts, or flags of PyTorch. On x86-64, all of them are set to code that every processor has.
"""

from __future__ import annotations

import os

_NUMPY_WITHOUT = (
    "AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V3 X86_V4"
)

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "default",
    "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    # The functions of C, such as `exp` and `pow`. Releases of glibc before 2.33 have the longer names.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-FMA_Usable,-FMA4_Usable",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": _NUMPY_WITHOUT,
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Prescott" if os.uname().machine == "x86_64" else "ARMV8",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The variables that the libraries read when a process starts."""


def leave_out_other_libraries() -> None:
    """Turns off oneDNN and NNPACK in PyTorch where it has a choice: they also look at the processor's caches."""
    import torch

    torch.backends.mkldnn.set_flags(False)
    torch.backends.nnpack.set_flags(False)
