"""The checkpoints in `model.weights`: a name, a mapping with rules, or a list of these."""

from __future__ import annotations

from etbuild.errors import DocumentPath
from etbuild.manifest.sections import Checkpoint, Model


def checkpoints(model: Model) -> dict[DocumentPath, Checkpoint]:
    """The checkpoints of a model, each with its rules, by the place of its file's name."""
    weights = model.get("weights", [])
    entries = enumerate(weights) if isinstance(weights, list) else [(None, weights)]
    found: dict[DocumentPath, Checkpoint] = {}
    for index, entry in entries:
        path: DocumentPath = ("model", "weights") if index is None else ("model", "weights", index)
        found |= {path: {"file": entry}} if isinstance(entry, str) else {(*path, "file"): entry}
    return found
