"""Reads an export that `export.archive` wrote: its facts, its methods, and their parameters and buffers."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from etbuild.errors import InputError
from etbuild.export.layout import CONSTANT_TENSORS, CONSTANTS, MADE, METHODS, MODULE, PLAN, WRITTEN, ExportFiles
from etbuild.files import json_file
from etbuild.foreign_errors import from_exception, wrap_errors, wrap_library_errors
from etbuild.model.packing import Packing, packed_checkpoints
from etbuild.model.stored_tensors import LazyTensors, StoredTensors
from etbuild.model.tensor_bytes import row_major
from etbuild.model.tensor_facts import TensorFacts, first_name
from etbuild.plan.step_plans import ExportPlan, read_plan

if TYPE_CHECKING:
    from torch.export import ExportedProgram

EXPERTS = 'for a mixture of experts, call `model.set_experts_implementation("batched_mm")` in the factory'
"""What to do about the operators of transformers' default, which ExecuTorch lacks."""


@dataclass(frozen=True)
class SavedExport:
    """What `read` returns: an export without its methods. `load_methods` reads those.

    Attributes:
        files: The location of its files.
        tensors: Facts about the parameters and buffers of the methods.
        of_module: Facts about those of the module, if they differ from those of the methods.
        zeros: Names of the tensors that are all zeros and that no weights file holds.
        constants: The values of the constant methods from code, by name.
        imports: Modules that must be imported before a method is loaded.
        written: The buffers that methods write to.
        sources: The sources in the export: the file of each, by its import path.
        export_plan: The plan with which lowering must export the methods; None if the export contains them.
        packing: How the weights files are packed; None if they are not.
    """

    files: ExportFiles
    tensors: list[TensorFacts]
    of_module: list[TensorFacts] | None
    zeros: list[str]
    constants: dict[str, object]
    imports: list[str]
    written: frozenset[str]
    sources: dict[str, Path]
    export_plan: ExportPlan | None
    packing: Packing | None = None

    @property
    def in_weights(self) -> list[TensorFacts]:
        """Facts about the parameters and buffers that are in weights files, and about the others."""
        return self.tensors if self.of_module is None else self.of_module


def read(export: ExportFiles) -> SavedExport:
    """Reads an export without its methods.

    Raises:
        InputError: The directory holds no export, or a damaged one.
    """
    directory = export.directory
    what = "an export that `etbuild export` wrote"
    content = json_file.read(directory / MODULE, json_file.Format(what, "step#export"))
    with wrap_library_errors(InputError, None, f"{directory}: not {what}"):
        root = directory / "sources"
        return SavedExport(
            export,
            [_tensor_facts(entry) for entry in content["tensors"]],
            [_tensor_facts(entry) for entry in content["module"]] if "module" in content else None,
            content["zeros"],
            _read_constants(directory),
            content["imports"],
            _read_written(directory),
            {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))},
            read_plan(directory / PLAN, ExportPlan) if export.needs_reexport else None,
            packed_checkpoints().packing(content["packing"]) if "packing" in content else None,
        )


def _tensor_facts(entry: dict[str, Any]) -> TensorFacts:
    if not isinstance(getattr(torch, entry["dtype"], None), torch.dtype):
        raise ValueError(f"`{entry['dtype']}` is not a type of tensors")
    return TensorFacts.from_facts(entry)


def _read_written(directory: Path) -> frozenset[str]:
    form = json_file.Format("the written buffers of an export", "step#written")
    path = directory / WRITTEN
    return frozenset(json_file.read(path, form)["written"] if path.exists() else ())


def _read_constants(directory: Path) -> dict[str, object]:
    from safetensors.torch import load_file

    plain, tensors = directory / CONSTANTS, directory / CONSTANT_TENSORS
    form = json_file.Format("the constants of an export", "step#constants")
    constants = json_file.read(plain, form)["constants"] if plain.exists() else {}
    return {**constants, **(load_file(tensors) if tensors.exists() else {})}


def load_methods(
    saved: SavedExport, content: dict[str, torch.Tensor], names: Iterable[str]
) -> dict[str, ExportedProgram]:
    """Reads methods, and puts in the content of their parameters and buffers.

    Args:
        saved: The export. Its `imports` must have been imported.
        content: Every parameter and buffer by name, from `Content`.
        names: The names of the methods to read.

    Returns:
        The methods by name.

    Raises:
        InputError: A method cannot be read.
    """
    from torch.export.pt2_archive._package import load_pt2  # binding reads no graphs

    from etbuild.export import size_conditions

    programs = {}
    for name in sorted(names):
        path = saved.files.methods.get(name, saved.files.directory / METHODS / f"{name}.pt2")
        with wrap_errors(functools.partial(_unread, name)):
            program = load_pt2(path).exported_programs["model"]  # torch.export.load hides the reason of a failure
            size_conditions.forget_ranges(program)
        for tensors in (program._state_dict, program._constants):
            tensors.update({key: tensor for key, tensor in content.items() if key in tensors})
        programs[name] = program
    return programs


def _unread(method: str, error: BaseException) -> InputError:
    """The error for a method that cannot be read back."""
    path = ("methods", method)
    unknown = re.search(r"failed to resolve torch\.ops\.(\w+)\.(\w+)", str(error))
    if unknown:
        message = f"lowering does not know the operator `{unknown[1]}::{unknown[2]}`"
        hint = "name the module that registers it in `custom_ops.modules`"
        return InputError.at(path, message, EXPERTS if unknown[1] == "transformers" else hint)
    hint = "the method has something that torch.export cannot save, or the export is damaged: remove it"
    return from_exception(error, InputError, path, "cannot read the exported method back", hint)


class Content(LazyTensors):
    """The parameters and buffers of an export by name. Each access reads one anew, and nothing here keeps it.

    Two tensors with equal content stay separate: otherwise, ExecuTorch would treat two caches of zeros as one.
    """

    def __init__(
        self, saved: SavedExport, weights: Callable[[str], torch.Tensor], needed: Collection[str] | None = None
    ) -> None:
        """Args:
        saved: The export.
        weights: Returns a tensor by name, from weights files or computed from them.
        needed: The names of the tensors that it has. None: all.

        Raises:
            InputError: The file of the export is damaged.
        """
        path = saved.files.directory / MADE
        self._damaged = f"{saved.files.directory}: cannot read the parameters and buffers"
        plain = needed is None or not {*needed} <= {*saved.zeros}  # tensors of zeros are in no file
        with wrap_library_errors(InputError, None, self._damaged):
            self._made: Mapping[str, torch.Tensor] = StoredTensors(path) if plain and path.exists() else {}
            known = {entry.name: entry for entry in saved.tensors}
            self._entries = {name: known[name] for name in known if needed is None or name in needed}
            self._firsts = {name: known[first_name(entry)] for name, entry in self._entries.items()}
        self._weights, self._zeros = weights, {*saved.zeros}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Raises InputError if the tensor is missing or damaged."""
        with wrap_library_errors(InputError, None, self._damaged):
            return self._read(self._firsts[name])

    def _read(self, entry: TensorFacts) -> torch.Tensor:
        if entry.in_weights or entry.computed is not None:
            content = row_major(self._weights(entry.name))
        elif entry.name in self._zeros:
            content = torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype))
        else:
            content = self._made[entry.name]
        return torch.nn.Parameter(content, requires_grad=False) if entry.parameter else content

    def only(self, names: Collection[str]) -> Content:
        """The tensors with these names."""
        found = copy.copy(self)
        found._entries = {name: entry for name, entry in self._entries.items() if name in names}
        found._firsts = {name: self._firsts[name] for name in found._entries}
        return found

    def loaded(self) -> dict[str, torch.Tensor]:
        """All tensors, in memory. A tensor with several names is loaded once.

        Raises:
            InputError: A tensor is missing or damaged.
        """
        found: dict[str, torch.Tensor] = {}
        firsts: dict[str, torch.Tensor] = {}
        for name, first in self._firsts.items():
            found[name] = firsts[first.name] = firsts[first.name] if first.name in firsts else self[name]
        return found
