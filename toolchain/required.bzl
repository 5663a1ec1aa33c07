"""The packages that the driver needs, without those that these need."""

# `dependencies` of pyproject.toml, as indexes write the names. A test compares them.
REQUIRED = [
    "executorch",
    "flatbuffers",
    "jinja2",
    "jsonschema",
    "pyyaml",
    "requests",
    "rich",
    "ruamel-yaml",
    "safetensors",
    "torch",
]
