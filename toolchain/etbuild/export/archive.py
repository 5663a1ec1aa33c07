"""Saves an export as a directory: every method without its weights, and the facts that lowering needs.

    module.json           names, shapes and origin of the parameters and buffers; modules to import before loading
    written.json          the buffers that methods write to
    methods/NAME.pt2      the file of torch.export for each method, without the content of parameters and buffers
    made.safetensors      tensors from the factory or the export that no weights file holds, unless they are all zeros
    constants.json, constants.safetensors
                          the values of constant methods from code: tensors are in the second file
    sources/              sources that lowering imports: custom partitioners, passes and custom operators
    export_plan.json      only if the methods cannot be saved without weights; lowering then exports them
    examples.safetensors  the example inputs of the methods, for the comparison; not in the key of lowering
    notes.json            notes about the methods for the report, if there are any
    lines.json            the source lines of nodes, for messages; in no key, and in Bazel outside this directory

Equal graphs give equal bytes, whatever the weights, the place of the sources and the comments in them are. So lowering
need not run again. Only `lines.json` changes with a comment. For this, the module removes stack traces and a random
identifier from the `.pt2` files of torch 2.13. `export.read_archive` reads the directory.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from etbuild import switches
from etbuild.errors import BuildError
from etbuild.exception_text import summary
from etbuild.export import example_values
from etbuild.export.layout import (
    CONSTANT_TENSORS,
    CONSTANTS,
    EXAMPLES,
    LINES,
    MADE,
    METHODS,
    MODULE,
    NOTES,
    PLAN,
    WRITTEN,
)
from etbuild.export.node_sources import remove_addresses
from etbuild.export.written_buffers import written_buffers
from etbuild.files import writing
from etbuild.files.digests import canonical_json
from etbuild.files.zip_archive import canonical_archive
from etbuild.foreign_errors import wrap_library_errors
from etbuild.inputs.source_lines import NO_LINES, SourceLines
from etbuild.inputs.sources import UsedSources, reached_sources
from etbuild.model import written_tensors
from etbuild.model.method_tensors import RecipeOf, carried
from etbuild.model.module import named_tensors
from etbuild.model.spilled_tensors import release
from etbuild.model.stored_tensors import StoredTensors
from etbuild.model.tensor_bytes import equal, flat_bytes
from etbuild.model.tensor_facts import TensorFacts
from etbuild.model.weights_files import describe
from etbuild.plan.step_plans import ExportPlan

_SCHEMA = "executorch-export/v4"
_TORCH_NAMESPACES = {"aten", "prim", "prims"}  # operators that `import torch` registers
# The modules to import for operators of installed distributions, by the namespace of the operators.
_LIBRARIES = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed", "torchao": "torchao.quantization"}
_PLAIN_CONTAINERS = (tuple, list, dict)


@dataclass(frozen=True)
class NewExport:
    """An export that `write` saves.

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
    """Methods cannot be saved without weights. Users see the message as the reason."""


def write(directory: Path, export_plan: ExportPlan, export: NewExport) -> None:
    """Saves an export.

    Args:
        directory: An existing empty directory.
        export_plan: The export plan.
        export: The module, its methods and their constants.

    Raises:
        CannotSave: torch.export cannot save a method, or safetensors cannot save a tensor that the factory made.
        BuildError: A file cannot be written.
    """
    programs, used = export.programs, export.used
    content, tensors = named_tensors(export.module), describe(export.module, export_plan.leaves_weights)
    if export_plan.leaves_weights:
        _check_constants(programs, content)
    of_module: dict[str, object] = {}
    if export_plan.carries_content:
        in_weights = {entry.name for entry in tensors if entry.in_weights}
        of_module = {"module": [entry.facts() for entry in tensors]} if in_weights else {}
        tensors, content = carried(programs, content.keys(), in_weights, export.recipe_of)
        weights = [entry.computed["weight"] for entry in tensors if entry.computed is not None]
        if missing := [name for name in weights if name not in in_weights]:
            raise CannotSave(f"`{missing[0]}` is quantized, and is not in the weights files")
    imports, libraries = _imports(export_plan, programs), _libraries(programs)
    # Write lines and examples first: `_without_weights` removes stack traces and example inputs from the programs.
    _write(directory, LINES, canonical_json(export.lines.to_json()))
    example_values.save_inputs(directory / EXAMPLES, programs)
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
    if export_plan.leaves_weights and export_plan.model.huggingface is not None:
        facts.update(_packing(export.module))
    _save_constants(directory, export.constants)
    _write_module(directory, {**facts, "imports": [*libraries, *imports]})


def _check_constants(programs: Mapping[str, ExportedProgram], content: Mapping[str, torch.Tensor]) -> None:
    """Checks that no tensor of the graphs is a second form of a weight: it would have the factory's numbers. A
    checkpoint cannot load a view in a list, in a `partial` or in a closure: it has no name."""
    names = {tensor.untyped_storage().data_ptr(): name for name, tensor in content.items() if tensor.numel()}
    for method, program in programs.items():
        for name, constant in program.constants.items():
            if name in content or type(constant) is not torch.Tensor or not constant.numel():
                continue
            if (shared := names.get(constant.untyped_storage().data_ptr())) is not None:
                raise CannotSave(f"`{method}` reads a tensor that shares memory with `{shared}`")


def _packing(module: torch.nn.Module) -> dict[str, object]:
    from etbuild.model.packing import packed_checkpoints

    found = packed_checkpoints().packing_of(module)
    return {} if found is None else {"packing": found.facts()}


def write_notes(directory: Path, notes: list[str]) -> None:
    """Saves notes about the methods. Errors are those of `write_plan`."""
    if notes:
        _write(directory, NOTES, canonical_json(notes))


def write_plan(directory: Path, export_plan: ExportPlan, constants: dict[str, object], used: UsedSources) -> None:
    """Saves an export plan instead of methods, with the sources that lowering needs to export them.

    Args:
        directory: An existing directory. Files in it are removed: `write` leaves some when it raises `CannotSave`.
        export_plan: The export plan.
        constants: The values of the constant methods from code, by name.
        used: The sources that the export used.

    Raises:
        BuildError: A file cannot be written.
    """
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    # Lowering and comparing export the methods again, and so get the lines and the examples.
    _write(directory, LINES, canonical_json(NO_LINES.to_json()))
    example_values.save_inputs(directory / EXAMPLES, {})
    _copy_sources(directory, used)
    _write(directory, PLAN, canonical_json(export_plan.to_json()))
    _save_constants(directory, constants)
    _write_module(directory, {"tensors": [], "zeros": [], "imports": []})


def _write_module(directory: Path, content: dict[str, object]) -> None:
    _write(directory, MODULE, canonical_json({"schema": _SCHEMA, **content}))


def _write(directory: Path, file: str, content: bytes) -> None:
    writing.write(directory, file, "export", content)


def _copy_sources(directory: Path, used: UsedSources) -> None:
    for name, content in used.contents.items():
        target = directory / "sources" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _imports(export_plan: ExportPlan, programs: dict[str, ExportedProgram]) -> list[str]:
    """The Python modules of the model, if graphs have operators or result types that PyTorch does not define."""
    needs_modules = any(
        _namespaces(program.graph_module) - _TORCH_NAMESPACES - _LIBRARIES.keys() or _has_foreign_types(program)
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


def _has_foreign_types(program: ExportedProgram) -> bool:
    def foreign(spec: pytree.TreeSpec) -> bool:
        is_plain = spec.is_leaf() or spec.type in _PLAIN_CONTAINERS
        return not is_plain or any(map(foreign, spec.children()))

    return foreign(program.call_spec.out_spec)


def _without_weights(program: ExportedProgram, names: set[str]) -> bytes:
    """The bytes of a method's `.pt2` file, in which the tensors in `names` are empty."""
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
    program._example_inputs = None  # lowering needs no examples, and their values must not change the bytes
    saved = io.BytesIO()
    try:
        with switches.on("saving"):
            torch.export.save(program, saved)
    except Exception as error:  # the errors of torch's serializer have no common base class
        raise CannotSave(f"torch.export cannot save it: {summary(error)}") from error
    return canonical_archive(saved.getvalue())


def _save_new_tensors(directory: Path, content: dict[str, torch.Tensor], tensors: list[TensorFacts]) -> list[str]:
    """Saves the tensors that no weights file holds, except those that are all zeros, such as caches.

    Returns:
        The names of the tensors that are all zeros. A tensor with -0.0 does not count: its sign bit is 1.
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
            writing.write(directory, MADE, "export", lambda file: written_tensors.write(file, others))
        except (BuildError, MemoryError):
            raise
        except Exception as error:  # safetensors has no name for a dtype, or a tensor has no plain memory
            raise CannotSave(f"safetensors cannot hold what the factory made: {summary(error)}") from error
        _check_saved(directory / MADE, others)
    return zeros


def _check_saved(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Reads a file of tensors back, one at a time. Raises BuildError if the content of one differs."""
    with wrap_library_errors(BuildError, None, f"{path.name}: cannot be read back"):
        saved = StoredTensors(path)
        wrong = next((name for name, tensor in tensors.items() if not _is_saved(saved[name], tensor)), None)
    if wrong is not None:
        message = f"{path.name}: `{wrong}` has other content than was written"
        raise BuildError.of(message, "does a thread of the model change it, or is the disk faulty?")


def _is_saved(saved: torch.Tensor, tensor: torch.Tensor) -> bool:
    is_equal = equal(saved, tensor)
    release(tensor)
    return is_equal


def _is_zeros(tensor: torch.Tensor) -> bool:
    """Whether all bytes of a tensor are zeros."""
    zeros = not bool(flat_bytes(tensor).any())
    release(tensor)
    return zeros


def _save_written(directory: Path, programs: dict[str, ExportedProgram]) -> None:
    """Saves the names of the buffers that methods write to, in a separate file: few programs have such buffers."""
    written = sorted({name for program in programs.values() for name in written_buffers(program, programs.keys())})
    if written:
        _write(directory, WRITTEN, canonical_json({"schema": _SCHEMA, "written": written}))


def _save_constants(directory: Path, constants: dict[str, object]) -> None:
    """Saves constants in separate files, so that no method is lowered again when the value of a constant changes."""
    from safetensors.torch import save

    tensors = {name: value.clone() for name, value in constants.items() if isinstance(value, torch.Tensor)}
    if tensors:
        _write(directory, CONSTANT_TENSORS, save(tensors))
    plain = {name: value for name, value in constants.items() if name not in tensors}
    if plain:
        _write(directory, CONSTANTS, canonical_json({"schema": _SCHEMA, "constants": plain}))
