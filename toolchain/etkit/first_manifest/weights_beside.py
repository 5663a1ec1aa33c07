"""Finds the weights of a module among the files beside its source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import InputError
from etbuild.inputs.declared import Inputs, is_file
from etkit.first_manifest.files import Files

if TYPE_CHECKING:
    import torch

_SUFFIX = ".safetensors"  # other formats can hold code


def find(root: torch.nn.Module, folders: Sequence[Path], beside: Path) -> tuple[str | None, list[str]]:
    """The file with the weights of a module, and what the user should know about it. None if no file fits, or several.

    A file fits if a build could load it: it has each parameter, in its shape and dtype, and nothing else.

    Args:
        root: The module.
        folders: The folders of the module's sources.
        beside: The directory of the manifest, to which the name of the file is relative.
    """
    fitting, misfits = [], []
    for name in _candidates(folders, beside):
        why = _misfit(root, name, beside)
        if why is None:
            fitting.append(name)
        else:
            misfits.append(f"The weights are not those of {name}: {why}")
    if len(fitting) == 1:
        return fitting[0], [f"The weights are those of {fitting[0]}, which fit the module."]
    several = f"Name one of {', '.join(fitting)} as `weights` of the model: all of them fit."
    return None, [several] if fitting else misfits


def _candidates(folders: Sequence[Path], beside: Path) -> list[str]:
    names = {}
    for folder in folders:
        files = Files(folder, beside, (beside,))
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            if is_file(path) and files.root == beside:
                with suppress(InputError):  # a name that a manifest cannot have
                    names[files.named(path.name)] = True
    return list(names)


def _misfit(root: torch.nn.Module, name: str, beside: Path) -> str | None:
    """Why a build could not load a file into a module; None if it could."""
    from etbuild.model.checkpoint import Checkpoint
    from etbuild.model.weights_files import describe_state
    from etbuild.plan.parts import WeightsFile

    try:
        Checkpoint((WeightsFile.read(name),), Inputs(roots=[beside]), describe_state(root), cast=False, module=root)
    except InputError as error:
        return error.problems[0].message
    return None
