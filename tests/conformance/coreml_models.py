"""Partitioners for Core ML, and the Core ML models in a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.conftest import Outcome

NEW, OLD = "minimum_deployment_target: iOS18", "minimum_deployment_target: iOS17"


def coreml(*options: str) -> str:
    return f"[{{backend: coreml, options: {{{', '.join(options)}}}}}]"


def models(outcome: Outcome, scratch: Path) -> list[tuple[int, list[str]]]:
    """Returns the version of the format and the functions of each Core ML model in a program."""
    found = specs(outcome, scratch)
    return sorted((spec.specificationVersion, sorted(spec.mlProgram.functions)) for spec in found)


def specs(outcome: Outcome, scratch: Path) -> list[Any]:
    """Returns coremltools' descriptions of the Core ML models in a program."""
    import coremltools
    from executorch.backends.apple.coreml import executorchcoreml
    from executorch.exir._serialize._program import deserialize_pte_binary

    assert outcome.code == 0, outcome.err
    content = deserialize_pte_binary(outcome.read("net.pte"))
    inside = [bytes(data.data) for data in content.program.backend_delegate_data]
    named = list(content.named_data.buffers) if content.named_data else []
    found = []
    for number, flat in enumerate([data for data in [*inside, *named] if not data.startswith(b"CMJR")]):
        place = scratch / f"{outcome.directory.parent.name}-{number}"
        place.mkdir()
        assert executorchcoreml.unflatten_directory_contents(flat, str(place))
        model = coremltools.models.MLModel(str(next(place.rglob("*.mlpackage"))), skip_model_load=True)
        found.append(model.get_spec())
    return found
