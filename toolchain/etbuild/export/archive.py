"""Saves and reads an export as a directory: every method without its weights, and the facts that lowering needs.

    module.json           names, shapes and origin of the parameters and buffers; modules to import before loading
    written.json          the buffers that methods write to
    methods/NAME.pt2      the file of torch.export for each method, without the content of parameters and buffers
    made.safetensors      tensors from the factory or the export that no weights file holds, except all zeros
    constants.json, constants.safetensors
                          what constant methods from code return: tensors in the second file
    sources/              sources that lowering imports: of custom partitioners, passes and custom operators
    export_plan.json      only if the methods cannot be saved without weights; lowering then exports them
    examples.safetensors  the example inputs of the methods, for the comparison; not in the key of lowering
    lines.json            the lines of the sources that nodes come from, for messages; in no key, and in Bazel elsewhere

Equal graphs give equal bytes, independently of the weights, the location of the sources and comments in them. Lowering
then need not run again. Only `lines.json` changes with a comment. To make this so, the module removes stack traces and
a random identifier from the `.pt2` files of torch 2.13.
"""

from __future__ import annotations

import copy
import functools
import io
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2
from torch.utils import _pytree as pytree

from etbuild.accelerate.exports import saving
from etbuild.errors import BuildError, InputError
from etbuild.exception_text import summary
from etbuild.export import derived_dims, saved_examples
from etbuild.export.layout import (
    CONSTANT_TENSORS,
    CONSTANTS,
    EXAMPLES,
    LINES,
    MADE,
    METHODS,
    MODULE,
    PLAN,
    WRITTEN,
    ExportFiles,
)
from etbuild.export.provenance import remove_addresses
from etbuild.export.written_buffers import written_buffers
from etbuild.files import artifacts, json_file
from etbuild.files.digests import canonical_json
from etbuild.files.zip_archive import canonical_archive
from etbuild.foreign_errors import from_exception, wrap_errors, wrap_library_errors
from etbuild.inputs.import_graph import UsedSources, reached_sources
from etbuild.inputs.source_lines import NO_LINES, SourceLines
from etbuild.model import stored_tensors
from etbuild.model.method_tensors import RecipeOf, carried
from etbuild.model.module import loading_code, named_tensors
from etbuild.model.packed.packing import Packing, packing_of
from etbuild.model.stored_tensors import LazyTensors, StoredTensors
from etbuild.model.tensor_bytes import flat_bytes, row_major
from etbuild.model.weights_files import TensorFacts, describe, equal, first_name
from etbuild.plan.step_plans import ExportPlan, read_plan

_SCHEMA = "executorch-export/v4"
_TORCH_NAMESPACES = {"aten", "prim", "prims"}  # operators that `import torch` registers
# The modules to import for operators of installed distributions, by the namespace of the operators.
_LIBRARIES = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed", "torchao": "torchao.quantization"}
_PLAIN_CONTAINERS = (tuple, list, dict)


@dataclass(frozen=True)
class SavedExport:
    """What `read` returns: an export without its methods. `load_methods` reads those.

    Attributes:
        files: The location of its files.
        tensors: Facts about the parameters and buffers of the methods.
        of_module: Facts about those of the module, if the methods have others.
        zeros: Names of the tensors that are all zeros and that no weights file holds.
        constants: The values of the constant methods that come from code, by name.
        imports: Modules that must be imported before a method is loaded.
        written: The buffers that methods write to.
        sources: The sources in the export: the file of each, by its import path.
        export_plan: The plan by which lowering must export the methods; None if the export contains them.
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
        """Facts about the parameters and buffers that weights files hold, and others."""
        return self.tensors if self.of_module is None else self.of_module


@dataclass(frozen=True)
class NewExport:
    """What `write` saves.

    Attributes:
        module: The module.
        programs: Its methods by name. The content of their weights is removed from them.
        constants: The values of the constant methods from code, by name.
        used: The sources that the export used.
        lines: The lines of the sources that the methods' nodes come from.
        recipe_of: How the content of tensors is computed from weights.
    """

    module: torch.nn.Module
    programs: dict[str, ExportedProgram]
    constants: dict[str, object]
    used: UsedSources
    lines: SourceLines = NO_LINES
    recipe_of: RecipeOf = lambda _: None


class CannotSave(Exception):
    """Methods cannot be saved without weights. The message gives users the reason."""


def write(directory: Path, export_plan: ExportPlan, export: NewExport) -> None:
    """Saves an export.

    Args:
        directory: An existing empty directory.
        export_plan: The export plan.
        export: What was exported.

    Raises:
        CannotSave: torch.export cannot save a method, or safetensors cannot save a tensor that the factory made.
        BuildError: A file cannot be written.
    """
    programs, used = export.programs, export.used
    content, tensors = named_tensors(export.module), describe(export.module, export_plan.weights)
    of_module: dict[str, object] = {}
    if export_plan.carries_content:
        in_weights = {entry.name for entry in tensors if entry.in_weights}
        of_module = {"module": [entry.facts() for entry in tensors]} if in_weights else {}
        tensors, content = carried(programs, content.keys(), in_weights, export.recipe_of)
        made = [entry.computed["weight"] for entry in tensors if entry.computed is not None]
        if others := [name for name in made if name not in in_weights]:
            raise CannotSave(f"`{others[0]}` is quantized, and is not in the weights files")
    imports, libraries = _imports(export_plan, programs), _libraries(programs)
    _write(
        directory, LINES, canonical_json(export.lines.to_json())
    )  # before `_without_weights` removes the stack traces
    saved_examples.write(directory / EXAMPLES, programs)  # and the example inputs
    (directory / METHODS).mkdir()
    names = {entry.name for entry in tensors}
    for name, program in programs.items():
        _write(directory, f"{METHODS}/{name}.pt2", _without_weights(program, names))
    _save_written(directory, programs)
    zeros = _save_new_tensors(directory, content, tensors)
    roots = [name.partition(":")[0] for name in export_plan.lowering_callables]
    roots += export_plan.model.modules if roots else []
    roots += export_plan.custom_ops.modules
    _copy_sources(directory, used if imports else reached_sources(used, roots))
    facts: dict[str, object] = {"tensors": [entry.facts() for entry in tensors], **of_module, "zeros": zeros}
    packing = packing_of(export.module)
    if packing is not None and export_plan.weights:
        facts["packing"] = {"config": packing.config, "dtype": packing.dtype}
    _save_constants(directory, export.constants)
    _write_module(directory, {**facts, "imports": [*libraries, *imports]})


def write_plan(directory: Path, export_plan: ExportPlan, constants: dict[str, object], used: UsedSources) -> None:
    """Saves an export plan instead of methods, with the sources that lowering needs to export them.

    Args:
        directory: An existing directory. What `write` left there before it raised `CannotSave` is removed.
        export_plan: The export plan.
        constants: The values of the constant methods from code, by name.
        used: The sources that the export used.

    Raises:
        BuildError: A file cannot be written.
    """
    for left in directory.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()
    # Lowering exports the methods, and knows the lines itself.
    _write(directory, LINES, canonical_json(NO_LINES.to_json()))
    saved_examples.write(directory / EXAMPLES, {})  # and the comparison does so too
    _copy_sources(directory, used)
    _write(directory, PLAN, canonical_json(export_plan.to_json()))
    _save_constants(directory, constants)
    _write_module(directory, {"tensors": [], "zeros": [], "imports": []})


def reexport_reason(export_plan: ExportPlan, module: torch.nn.Module) -> str | None:
    """Finds out whether the module must be exported together with its weights.

    Args:
        export_plan: The export plan.
        module: The module.

    Returns:
        The reason, for users; None if methods can be saved without weights.
    """
    code = loading_code(module) if export_plan.weights else None
    return None if code is None else f"{code} takes part in loading its weights"


def _write_module(directory: Path, content: dict[str, object]) -> None:
    _write(directory, MODULE, canonical_json({"schema": _SCHEMA, **content}))


def _write(directory: Path, file: str, content: bytes) -> None:
    artifacts.write(directory, file, "export", content)


def _copy_sources(directory: Path, used: UsedSources) -> None:
    for name, content in used.contents.items():
        target = directory / "sources" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _imports(export_plan: ExportPlan, programs: dict[str, ExportedProgram]) -> list[str]:
    """The model's modules, if the graphs have operators or types of results that PyTorch does not define."""
    needs_modules = any(
        _namespaces(program.graph_module) - _TORCH_NAMESPACES - _LIBRARIES.keys() or _types_of_others(program)
        for program in programs.values()
    )
    factory = (export_plan.model.factory or "").partition(":")[0]
    return [*([factory] if factory else []), *export_plan.model.modules] if needs_modules else []


def _libraries(programs: dict[str, ExportedProgram]) -> list[str]:
    """The installed modules that define operators of the graphs."""
    namespaces = {name for program in programs.values() for name in _namespaces(program.graph_module)}
    return [library for name, library in _LIBRARIES.items() if name in namespaces]


def _namespaces(graph_module: torch.nn.Module) -> set[str]:
    return {
        node.target.namespace
        for child in graph_module.modules()
        if isinstance(child, torch.fx.GraphModule)
        for node in child.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    }


def _types_of_others(program: ExportedProgram) -> bool:
    def foreign(spec: pytree.TreeSpec) -> bool:
        plain = spec.is_leaf() or spec.type in _PLAIN_CONTAINERS
        return not plain or any(map(foreign, spec.children()))

    return foreign(program.call_spec.out_spec)


def _without_weights(program: ExportedProgram, names: set[str]) -> bytes:
    """The content of a method's `.pt2` file, without the content of the named tensors."""
    for child in program.graph_module.modules():
        if isinstance(child, torch.fx.GraphModule):
            for node in child.graph.nodes:
                node.meta.pop("stack_trace", None)  # paths and line numbers would reach the bytes
    remove_addresses(program.graph_module)
    for content in (program._state_dict, program._constants):
        for name in names & content.keys():
            empty = torch.empty(0, dtype=content[name].dtype)
            parameter = isinstance(content[name], torch.nn.Parameter)
            content[name] = torch.nn.Parameter(empty, requires_grad=False) if parameter else empty
    program._example_inputs = None  # their values do not reach the program
    saved = io.BytesIO()
    try:
        with saving():
            torch.export.save(program, saved)
    except Exception as error:  # the errors of torch's serializer have no common base class
        raise CannotSave(f"torch.export cannot save it: {summary(error)}") from error
    return canonical_archive(saved.getvalue())


def _save_new_tensors(directory: Path, content: dict[str, torch.Tensor], tensors: list[TensorFacts]) -> list[str]:
    """Saves the tensors that no weights file holds, and returns the names of those that are all zeros.

    Tensors that are all zeros, such as caches, are not saved. -0.0 has a bit that is not zero.
    """
    candidates = {
        entry.name: content[entry.name].detach()
        for entry in tensors
        if not entry.in_weights and entry.computed is None and not entry.same_as
    }
    zeros = sorted(name for name, tensor in candidates.items() if _is_zeros(tensor))
    others = {name: tensor for name, tensor in candidates.items() if name not in zeros}
    if others:
        try:
            artifacts.write(directory, MADE, "export", lambda file: stored_tensors.write(file, others))
        except (BuildError, MemoryError):
            raise
        except Exception as error:  # safetensors has no name for a dtype, or a tensor has no plain memory
            raise CannotSave(f"safetensors cannot hold what the factory made: {summary(error)}") from error
        _check_saved(directory / MADE, others)
    return zeros


def _check_saved(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Reads a file of tensors back, one at a time. Raises BuildError if a name has other content than its tensor."""
    with wrap_library_errors(BuildError, None, f"{path.name}: cannot be read back"):
        saved = StoredTensors(path)
        wrong = next((name for name, tensor in tensors.items() if not _is_saved(saved[name], tensor)), None)
    if wrong is not None:
        message = f"{path.name}: `{wrong}` has other content than was written"
        raise BuildError.of(message, "does a thread of the model change it, or is the disk faulty?")


def _is_saved(saved: torch.Tensor, tensor: torch.Tensor) -> bool:
    same = equal(saved, tensor)
    stored_tensors.release(tensor)
    return same


def _is_zeros(tensor: torch.Tensor) -> bool:
    """Whether all bytes of a tensor are zeros."""
    found = not bool(flat_bytes(tensor).any())
    stored_tensors.release(tensor)
    return found


def _save_written(directory: Path, programs: dict[str, ExportedProgram]) -> None:
    """Saves the names of the buffers that methods write to in a file of its own, because few programs need them."""
    written = sorted({name for program in programs.values() for name in written_buffers(program, programs.keys())})
    if written:
        _write(directory, WRITTEN, canonical_json({"schema": _SCHEMA, "written": written}))


def _read_written(directory: Path) -> frozenset[str]:
    form = json_file.Format("the written buffers of an export", "step#written")
    path = directory / WRITTEN
    return frozenset(json_file.read(path, form)["written"] if path.exists() else ())


def _save_constants(directory: Path, constants: dict[str, object]) -> None:
    """Saves constants in files of their own, so that another value lowers no method."""
    from safetensors.torch import save

    tensors = {name: value.clone() for name, value in constants.items() if isinstance(value, torch.Tensor)}
    if tensors:
        _write(directory, CONSTANT_TENSORS, save(tensors))
    plain = {name: value for name, value in constants.items() if name not in tensors}
    if plain:
        _write(directory, CONSTANTS, canonical_json({"schema": _SCHEMA, "constants": plain}))


def _read_constants(directory: Path) -> dict[str, object]:
    from safetensors.torch import load_file

    plain, tensors = directory / CONSTANTS, directory / CONSTANT_TENSORS
    form = json_file.Format("the constants of an export", "step#constants")
    constants = json_file.read(plain, form)["constants"] if plain.exists() else {}
    return {**constants, **(load_file(tensors) if tensors.exists() else {})}


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
            Packing(**content["packing"]) if "packing" in content else None,
        )


def _tensor_facts(entry: dict[str, Any]) -> TensorFacts:
    if not isinstance(getattr(torch, entry["dtype"], None), torch.dtype):
        raise ValueError(f"`{entry['dtype']}` is not a type of tensors")
    return TensorFacts.from_facts(entry)


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
    programs = {}
    for name in sorted(names):
        path = saved.files.methods.get(name, saved.files.directory / METHODS / f"{name}.pt2")
        with wrap_errors(functools.partial(_unread, name)):
            program = load_pt2(path).exported_programs["model"]  # torch.export.load hides why it failed
            derived_dims.forget_ranges(program)
        for tensors in (program._state_dict, program._constants):
            tensors.update({key: tensor for key, tensor in content.items() if key in tensors})
        programs[name] = program
    return programs


EXPERTS = 'for a mixture of experts, call `model.set_experts_implementation("batched_mm")` in the factory'
"""What to do about the operators of transformers' default, which ExecuTorch lacks."""


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
    """The parameters and buffers of an export by name. Each is read when it is asked for, and nothing here keeps it.

    Two tensors with equal content stay separate: ExecuTorch would otherwise treat two caches of zeros as one.
    """

    def __init__(
        self, saved: SavedExport, weights: Callable[[str], torch.Tensor], needed: Collection[str] | None = None
    ) -> None:
        """Args:
        saved: The export.
        weights: Returns a tensor from weights files, or one that is computed from them, by name.
        needed: The names of those that it has. None: all.

        Raises:
            InputError: The file of the export is damaged.
        """
        path = saved.files.directory / MADE
        self._damaged = f"{saved.files.directory}: cannot read the parameters and buffers"
        plain = needed is None or not {*needed} <= {*saved.zeros}  # what is all zeros is in no file
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
        """Those with these names."""
        found = copy.copy(self)
        found._entries = {name: entry for name, entry in self._entries.items() if name in names}
        found._firsts = {name: self._firsts[name] for name in found._entries}
        return found

    def loaded(self) -> dict[str, torch.Tensor]:
        """All of them in memory. A tensor with several names is loaded once.

        Raises:
            InputError: A tensor is missing or damaged.
        """
        found: dict[str, torch.Tensor] = {}
        firsts: dict[str, torch.Tensor] = {}
        for name, first in self._firsts.items():
            found[name] = firsts[first.name] = firsts[first.name] if first.name in firsts else self[name]
        return found
