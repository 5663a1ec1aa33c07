"""Manifests of small models: `model.py` with a function `create`."""

from __future__ import annotations

HEAD = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
"""What most manifests of tests begin with. It has no method."""


def one_method(shape: str = "[1, 8]", partitioners: str = "[xnnpack]") -> str:
    """A manifest with the method `forward`.

    Args:
        shape: Of its one input, in YAML.
        partitioners: In YAML.
    """
    return (
        f"{HEAD}defaults: {{partitioners: {partitioners}}}\n"
        f"methods: {{forward: {{example_inputs: [{{shape: {shape}}}]}}}}\n"
    )
