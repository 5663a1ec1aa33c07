"""The names of files with weights end with these."""

WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
GGUF_SUFFIX = ".gguf"
NUMPY_SUFFIX = ".npy"
INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
