"""Makes the weights files of the examples: `python examples/make_weights.py`.

Exact: integers of NumPy's PCG64, whose raw stream is the same in every version and on every processor, scaled by powers
of two. The values are of the size that a trained network has, so that activations neither vanish nor explode.
"""

import hashlib
import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save
from torch import Tensor, nn

EXAMPLES = Path(__file__).parent

# The weights file, the manifest whose module holds them, and the prefix of their names.
FILES = [
    ("tiny_lm/tiny_lm.safetensors", "tiny_lm/model.yaml", ""),
    ("vision/vision.safetensors", "vision/model.yaml", ""),
    ("encoder_decoder/encoder_decoder.safetensors", "encoder_decoder/model.yaml", ""),
    ("shared_weights/backbone.safetensors", "shared_weights/embedder.yaml", "backbone."),
    ("shared_weights/classifier.safetensors", "shared_weights/classifier.yaml", "head."),
    ("quantized/spotter.safetensors", "quantized/int8.yaml", ""),
    ("huggingface/llama.safetensors", "huggingface/llama.yaml", ""),
    ("huggingface/bert.safetensors", "huggingface/bert.yaml", ""),
]

# Calibration data: the file, the name of its tensor, and the tensor's shape (batches of inputs).
CALIBRATIONS = [("quantized/calibration.safetensors", "spectrogram", (16, 1, 256))]


def create(manifest: Path) -> nn.Module:
    """Calls the factory that the manifest names, with the manifest's directory on the import path."""
    model = yaml.safe_load(manifest.read_text())["model"]
    if "huggingface" in model:
        return create_huggingface(manifest.parent, **model["huggingface"])
    module, _, factory = model["factory"].partition(":")
    loaded = set(sys.modules)
    sys.path.insert(0, str(manifest.parent))
    try:
        return getattr(importlib.import_module(module), factory)(**model.get("kwargs", {}))
    finally:
        sys.path.pop(0)
        for path in manifest.parent.glob("*.py"):  # each example has a module of the same name
            if path.stem not in loaded:
                sys.modules.pop(path.stem, None)


def create_huggingface(directory: Path, config: str | dict[str, object], **model: object) -> nn.Module:
    """The model of transformers that the manifest describes."""
    import transformers

    cls = getattr(transformers, str(model["class"]))
    return cls(
        cls.config_class(**(json.loads((directory / config).read_text()) if isinstance(config, str) else config))
    )


def uniform(name: str, shape: torch.Size) -> Tensor:
    """float32 in [-1, 1), 24 bits each, computed from the tensor's name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    integers = np.random.PCG64(seed).random_raw(math.prod(shape)) >> np.uint64(40)
    return torch.from_numpy((integers.astype(np.float32) / np.float32(2**23) - 1).reshape(shape))


def value(name: str, like: Tensor) -> Tensor:
    """The value of the state dict's entry `name`."""
    if not like.is_floating_point():
        return torch.full_like(like, 1000)  # BatchNorm's num_batches_tracked
    spread = uniform(name, like.shape)
    if name.endswith(".running_var"):
        return 1 + spread / 2
    if like.ndim == 1:  # a norm's weight is near 1, its mean and every bias near 0
        return 1 + spread / 4 if name.endswith(".weight") else spread / 8
    fan_in = like.numel() // like.shape[0]
    return spread * 2.0 ** -round(math.log2(fan_in / 3) / 2)  # variance of about 1 / fan_in


def contents(manifest: Path, prefix: str) -> bytes:
    """The weights file: the entries of the module's state dict that start with `prefix`."""
    state = create(manifest).state_dict()
    content: bytes = save({name: value(name, like) for name, like in state.items() if name.startswith(prefix)})
    return content


def main() -> None:
    """Writes all files."""
    made = {file: contents(EXAMPLES / manifest, prefix) for file, manifest, prefix in FILES}
    made.update({file: save({name: uniform(name, torch.Size(shape))}) for file, name, shape in CALIBRATIONS})
    for file, content in made.items():
        path = EXAMPLES / file
        path.write_bytes(content)
        print(f"{path.stat().st_size:>9,} bytes  {file}")


if __name__ == "__main__":
    main()
