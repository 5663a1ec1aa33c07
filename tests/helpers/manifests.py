"""Manifests of small models: `model.py` with a function `create`."""

from __future__ import annotations

HEAD = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
"""The beginning of most manifests in tests, without methods."""


def one_method(shape: str = "[1, 8]", partitioners: str = "[xnnpack]") -> str:
    """Returns a manifest with the method `forward`.

    Args:
        shape: The shape of its only input, in YAML.
        partitioners: The partitioners, in YAML.
    """
    return (
        f"{HEAD}defaults: {{partitioners: {partitioners}}}\n"
        f"methods: {{forward: {{example_inputs: [{{shape: {shape}}}]}}}}\n"
    )
