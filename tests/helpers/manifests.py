"""Small models, `model.py` with a function `create`, and their manifests."""

from __future__ import annotations

import textwrap

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


def net(*init: str, create: str = "return Net()", **methods: str) -> str:
    """Returns the source of a model.

    Args:
        init: The lines of `__init__`.
        create: The body of the factory.
        methods: The body of each method. Its only input is `x`.
    """
    bodies = {f"{name}(self, x)": body for name, body in methods.items()}
    if init:
        bodies = {"__init__(self)": "\n".join(["super().__init__()", *init]), **bodies}
    defined = "\n".join(f"    def {head}:\n{textwrap.indent(body, ' ' * 8)}\n" for head, body in bodies.items())
    return f"import torch\n\nclass Net(torch.nn.Module):\n{defined}\ndef create():\n{textwrap.indent(create, '    ')}\n"
