"""The suffixes of files with weights."""

from etbuild import plugins

WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
GGUF_SUFFIX = ".gguf"
NUMPY_SUFFIX = ".npy"
INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")


def suffixes_of_plugins() -> tuple[str, ...]:
    """The suffixes of files that plug-ins read. The export reads their weights, because that may need the module."""
    return tuple(name for name in plugins.group("tensor_file") if name.startswith("."))
