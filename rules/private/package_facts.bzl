"""What the rules and the driver both know about packages. `make reference` writes this file; do not edit."""

# The packages that the driver needs, without those that these need: `dependencies` of pyproject.toml.
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

# The extras in pyproject.toml. requirements-EXTRA.lock holds the packages that an extra adds to the lock.
EXTRAS = [
    "delta",
    "ethos-u",
    "gguf",
    "huggingface",
    "openvino",
    "sbom",
    "vgf",
    "watch",
]

# The supported versions of Python, the preferred one first.
VERSIONS = [
    "3.13",
    "3.12",
    "3.11",
]

# The versions of Python with a CPU build of torch in the lock, by platform. The others have what the package index has.
CPU_BUILDS = {
    "linux_x86_64": ["3.11"],
}

# The releases of ExecuTorch: the one in the lock, and those that can take its place.
NEWEST_RELEASE = "1.5.1"
OLDER_RELEASES = [
    "1.4.1",
]

# The constraints of each kind of machine that packages can be for, by the name that rules_python gives it.
PLATFORMS = {
    "linux_aarch64": ["@platforms//os:linux", "@platforms//cpu:aarch64"],
    "linux_x86_64": ["@platforms//os:linux", "@platforms//cpu:x86_64"],
    "osx_aarch64": ["@platforms//os:macos", "@platforms//cpu:aarch64"],
}
