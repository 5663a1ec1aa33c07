"""Changes the weights of one layer of a checkpoint.

python benchmarks/llm/change_layer.py FILE.safetensors
"""

import sys

from safetensors.torch import load_file, save_file

tensors = load_file(sys.argv[1])
tensors["model.layers.3.mlp.up_proj.weight"] *= 2
save_file(tensors, sys.argv[1], {"format": "pt"})
