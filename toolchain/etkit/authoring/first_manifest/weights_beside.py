"""Finds the weights of a module among the files beside its source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import InputError
from etbuild.files.weights_suffixes import WEIGHTS_SUFFIXES
from etbuild.inputs.given import is_file
from etbuild.key.declared import Inputs
from etkit.authoring.first_manifest.files import Files

if TYPE_CHECKING:
    import torch


def find(root: torch.nn.Module, folders: Sequence[Path], beside: Path) -> tuple[str | None, list[str]]:
    """The file with the weights of a module, and remarks for the user. None if no file fits, or several do.

    A file fits if a build could load it: it has each parameter, in its shape and dtype, and nothing else. A file
    without any tensor name of the module is something else, such as data for a calibration. No code in a file runs.

    Args:
        root: The module.
        folders: The folders of the module's sources.
        beside: The directory of the manifest, to which the name of the file is relative.
    """
    fitting, misfits = [], []
    for name in _candidates(folders, beside):
        why = _unlike(root, name, beside)
        if why is None:
            fitting.append(name)
        elif why:
            misfits.append(f"{name} does not fit the module: {why}")
    if len(fitting) == 1:
        return fitting[0], [f"The weights are those of {fitting[0]}, which fit the module."]
    several = f"Name one of {', '.join(fitting)} as `weights` of the model: all of them fit."
    return None, [several] if fitting else misfits


def _candidates(folders: Sequence[Path], beside: Path) -> list[str]:
    names = {}
    for folder in folders:
        files = Files(folder, beside, (beside,))
        for path in sorted(folder.iterdir()):
            if path.suffix in WEIGHTS_SUFFIXES and is_file(path) and files.root == beside:
                with suppress(InputError):  # a name that a manifest cannot have
                    names[files.named(path.name)] = True
    return list(names)


def _unlike(root: torch.nn.Module, name: str, beside: Path) -> str | None:
    """The reason why a build cannot load a file into a module: None if it can, empty if the file is something else."""
    from etbuild.model.checkpoint import CheckpointTensors
    from etbuild.model.tensor_files import open_checkpoint
    from etbuild.model.weights_files import describe_state
    from etbuild.plan.parts import WeightsFile

    facts = describe_state(root)
    names = {fact.name for fact in facts}
    try:
        stored = open_checkpoint(name, beside / name, ("model", "weights")).names
        if not any(end in names for each in stored for end in _ends(each)):
            return ""
        CheckpointTensors((WeightsFile.from_json(name),), Inputs(roots=[beside]), facts, cast=False, module=root)
    except InputError as error:
        return error.problems[0].message
    return None


def _ends(name: str) -> list[str]:
    """Yields a name, and its ends: `model.fc.bias`, `fc.bias`, `bias`."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]
