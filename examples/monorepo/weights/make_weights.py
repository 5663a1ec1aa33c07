"""Makes the weights: `python weights/make_weights.py`, with NumPy and safetensors.

Exact: integers of NumPy's PCG64, whose raw stream is the same everywhere, scaled by powers of two.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import save

HERE = Path(__file__).parent
FILES = {
    "encoder.safetensors": {
        "encoder.layers.0.weight": (16, 6, 5),
        "encoder.layers.0.bias": (16,),
        "encoder.layers.2.weight": (32, 16, 5),
        "encoder.layers.2.bias": (32,),
    },
    "gesture.safetensors": {"head.weight": (5, 32), "head.bias": (5,)},
}


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 in [-1/4, 1/4), computed from the tensor's name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    integers = np.random.PCG64(seed).random_raw(math.prod(shape)) >> np.uint64(40)  # 24 bits each
    return ((integers.astype(np.float32) / 2**23 - 1) / 4).astype(np.float32).reshape(shape)


for file, shapes in FILES.items():
    (HERE / file).write_bytes(save({name: values(name, shape) for name, shape in shapes.items()}))
