"""The names of files with weights end with these."""

from etbuild import plugins

WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
GGUF_SUFFIX = ".gguf"
NUMPY_SUFFIX = ".npy"
INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")


def suffixes_of_plugins() -> tuple[str, ...]:
    """Those of files that plug-ins read. The export itself reads their weights: it may take the module to do so."""
    return tuple(name for name in plugins.group("tensor_file") if name.startswith("."))
