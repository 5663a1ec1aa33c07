"""What the rules and the driver both know about programs. `make reference` writes this file; do not edit."""

# The attributes of a program that hold files besides sources. `reads` has the actions that read them: `export`,
# `template` (lowers methods without weights), `program` (writes or runs the program) and `report`. If `renamed`, there
# is an attribute `NAME_as`.
# buildifier: disable=unsorted-dict-items
INPUTS = {
    "data": struct(reads = ["export", "template", "program"], renamed = True),
    "weights": struct(reads = ["program"], renamed = True),
    "adapters": struct(reads = ["program"], renamed = True),
    "tokenizer": struct(reads = ["report"], renamed = False),
}

# The backends that compile a method without its weights.
TEMPLATES = [
    "portable",
    "xnnpack",
]

# The plug-ins that only some programs use, each with the backends that it provides. A target names those that it
# needs in `plugins`; `backends` name their plug-ins too.
# buildifier: disable=unsorted-dict-items
PLUGINS = {
    "apple_gpu": ["metal", "mlx"],
    "arm": ["ethos-u", "tosa", "vgf"],
    "coreml": ["coreml"],
    "cuda": ["cuda"],
    "lora": [],
    "mediatek": ["mediatek"],
    "microcontrollers": ["cadence", "cortex-m"],
    "model_schema": [],
    "nxp": ["nxp"],
    "openvino": ["openvino"],
    "packed": [],
    "precision": [],
    "pt2_files": [],
    "qualcomm": ["qualcomm"],
    "quantize": [],
    "recipes": [],
    "samples": [],
    "samsung": ["samsung"],
    "transformers": [],
    "vulkan": ["vulkan", "webgpu"],
}

# `plugins` of a target that may use any of them.
ANY_PLUGIN = "*"

# The other plug-ins, which programs have without naming them, each with the steps whose actions have it.
# buildifier: disable=unsorted-dict-items
PLUGINS_OF_STEPS = {
    "accelerate": ["compare", "export", "lower", "report"],
    "applications": ["plan", "report"],
    "assignments": ["compare", "export", "lower", "report"],
    "build_rules": ["plan"],
    "comparison": ["compare", "plan"],
    "edges": ["compare", "export", "lower", "plan", "report"],
    "guard": ["compare", "export", "lower", "plan", "report"],
    "model_tests": ["plan"],
    "runtime": ["compare", "plan"],
    "templates": ["lower", "report"],
    "tokenizer": ["plan", "report"],
    "upstream": ["compare", "export", "lower", "report"],
    "worker": ["compare", "export", "lower", "plan", "report"],
}

# `NAME.TAG` is another output for each of these, so they cannot be tags.
NOT_TAGS = [
    "etrecord",
    "export",
    "pte",
]

# The suffixes of files with weights.
WEIGHTS_SUFFIXES = [
    ".safetensors.index.json",
    ".bin.index.json",
    ".safetensors",
    ".pt",
    ".pth",
    ".bin",
    ".ckpt",
]
GGUF_SUFFIX = ".gguf"

# What the name of a checkpoint in the name of a program consists of.
CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

# The memory that a target can reserve, in MB, by the values of its attribute `resource_set`.
# buildifier: disable=unsorted-dict-items
RESOURCE_SETS = {
    "mem_512m": 512,
    "mem_1g": 1024,
    "mem_2g": 2048,
    "mem_4g": 4096,
    "mem_8g": 8192,
    "mem_16g": 16384,
    "mem_32g": 32768,
}
