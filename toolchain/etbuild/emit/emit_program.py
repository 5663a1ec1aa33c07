"""Emits lowered methods as a `.pte` and the `.ptd` files of each tag, and checks that these files fit together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir._serialize._cord import Cord
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

from etbuild import backends
from etbuild.emit import mutable_buffers, runtime_limits
from etbuild.emit.runtime_limits import Limit
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.exception_text import hints
from etbuild.files import program_file
from etbuild.files.artifacts import Artifact, write
from etbuild.foreign_errors import from_exception, wrap_errors
from etbuild.inputs import source_lines
from etbuild.inputs.user_code import SourceFinder, failed
from etbuild.lower import dequantize, failed_nodes, named_data, passes
from etbuild.lower.executorch_config import backend_config
from etbuild.model.weights_files import tag_of_shard
from etbuild.plan.plan import LowerPlan
from etbuild.results import ProgramFacts


@dataclass(frozen=True)
class Emission:
    """The result of `emit`.

    Attributes:
        artifacts: The program, then the named data in the order of the tags and their shards.
        program: Facts about the program, read from its file.
        named_data: For each tag, the size in bytes of each blob by key, read from its files.
        limits: What ExecuTorch's own runtime cannot run, or computes wrongly, in the program.
    """

    artifacts: list[Artifact]
    program: ProgramFacts
    named_data: dict[str, dict[str, int]]
    limits: list[Limit]


def emit(
    lower_plan: LowerPlan, edge: EdgeProgramManager, shards: dict[str, str], finder: SourceFinder, directory: Path
) -> Emission:
    """Writes the program and its named data, and reads them back.

    Args:
        lower_plan: The lower plan.
        edge: The lowered methods.
        shards: The shard of each parameter that has a tag, by name.
        finder: Finds declared sources, which may contain passes and planning algorithms.
        directory: The directory to write to.

    Raises:
        InputError: The plan names an operator or a callable that does not exist.
        BuildError: ExecuTorch cannot emit the program, a file cannot be written, or the files do not fit together.
    """
    if lower_plan.share_mutable_buffers:
        mutable_buffers.share(edge, lower_plan.backends)
    if lower_plan.executorch.external_mutable_weights:
        mutable_buffers.check_trained_weights(edge, shards)
    _check_names(edge)
    _check_outputs(edge)
    initialized = mutable_buffers.initialized(edge)
    early = passes.executorch(lower_plan, finder)
    early += [InitializedMutableBufferPass(initialized)] if initialized else []
    config = backend_config(lower_plan, early, named_data.shard_of if shards else False, finder)
    segments = named_data.program_alignment(edge, config.segment_alignment)
    dequantize.register_kernels(edge)
    expected = {shard: named_data.portable_weights(edge, shard) for shard in sorted(set(shards.values()))}
    with wrap_errors(lambda error: _emission_error(error, lower_plan, edge, finder)):
        manager = edge.to_executorch(replace(config, segment_alignment=segments))
    if lower_plan.share_mutable_buffers:
        mutable_buffers.check_shared(manager)
    program = write(directory, f"{lower_plan.name}.pte", "program", manager.write_to_file)
    data = _write_named_data(lower_plan, named_data.files_by_shard(edge, manager, config.segment_alignment), directory)
    parsed = program_file.read_program(program.path.read_bytes())
    blobs = {shard: program_file.named_data_facts(file.path) for shard, file in data.items()}
    _check_keys(edge, program_file.external_keys(parsed), program_file.pte_named_data(parsed), blobs)
    _check_tags(expected, blobs)
    by_tag: dict[str, dict[str, int]] = {tag: {} for tag in lower_plan.tags}
    for shard, keys in blobs.items():
        by_tag[tag_of_shard(shard)].update(keys)
    facts = program_file.program_facts(parsed)
    return Emission([program, *data.values()], facts, by_tag, runtime_limits.find(parsed))


def _write_named_data(lower_plan: LowerPlan, written: dict[str, Cord], directory: Path) -> dict[str, Artifact]:
    """Writes the file of each shard. If a tag is split, the names of its files contain their digests.

    Args:
        lower_plan: The lower plan.
        written: The content of each shard's file.
        directory: The directory to write to.

    Raises:
        BuildError: A tag has no weights that a method reads, or a file cannot be written.
    """
    missing = set(lower_plan.tags) - {tag_of_shard(shard) for shard in written}
    if missing:
        raise BuildError(
            [
                Problem(
                    "no method reads a weight of this tag, so its file would be empty",
                    ("named_data", tag),
                    "remove the tag, or change its patterns",
                )
                for tag in sorted(missing)
            ]
        )
    files = {}
    for shard, cord in written.items():
        tag = tag_of_shard(shard)
        if tag == shard:
            name = f"{lower_plan.name}.{tag}.ptd"
            files[shard] = write(directory, name, "named_data", cord.write_to_file, tag)
        else:
            files[shard] = _write_shard(directory, f"{lower_plan.name}.{tag}", tag, cord)
    return files


def _write_shard(directory: Path, shards: str, tag: str, cord: Cord) -> Artifact:
    written = write(directory, f"{shards}/{tag}.ptd", "named_data", cord.write_to_file, tag)
    named = replace(written, file=f"{shards}/{tag}-{written.sha256}.ptd")
    written.path.rename(named.path)
    return named


def _check_names(edge: EdgeProgramManager) -> None:
    """Fails if methods have different weights in named data under one name.

    Portable operators find weights by name, so that one method would read the weight of the other.
    """
    seen: dict[str, tuple[str, torch.Tensor]] = {}
    for method in sorted(edge.methods):
        program = edge.exported_program(method)
        for node, name in named_data.weights(program):
            if named_data.shard_of(node) is None:
                continue
            tensor = named_data.tensor(program, name)
            first, known = seen.setdefault(name, (method, tensor))
            if known is not tensor and not (known.shape == tensor.shape and torch.equal(known, tensor)):
                raise BuildError.at(
                    ("methods", method),
                    f"`{name}` has different values in `{first}` and `{method}`",
                    "named data finds weights by name: rename one, or remove it from `named_data`",
                )


def _check_outputs(edge: EdgeProgramManager) -> None:
    """Fails if a method returns no tensor: ExecuTorch cannot plan its memory, and does not name the method."""
    problems = [
        Problem(
            "the method returns no tensor",
            ("methods", method, "entry"),
            "return a number as torch.tensor(number); move numbers that never change to `constant_methods`",
        )
        for method in sorted(edge.methods)
        if not any(
            isinstance(spec.arg, TensorArgument) for spec in edge.exported_program(method).graph_signature.output_specs
        )
    ]
    if problems:
        raise BuildError(problems)


def _check_keys(
    edge: EdgeProgramManager, external: list[str], inside: dict[str, int], blobs: dict[str, dict[str, int]]
) -> None:
    """Fails if a key of named data that the program needs is missing or is in several files.

    The runtime ends with a segmentation fault if a key is missing.
    """
    places: dict[str, list[str]] = {key: [".pte"] for key in inside}
    for shard, keys in blobs.items():
        for key in keys:
            places.setdefault(key, []).append(f".{shard}.ptd")
    wanted = set(external)
    for method in edge.methods:
        for delegate in named_data.delegates(edge.exported_program(method).graph_module):
            wanted.update(named_data.keys(delegate))
    problems = [
        Problem(f"the program needs the named data `{key}`, but no file has it")
        for key in sorted(wanted - places.keys())
    ]
    problems += [
        Problem(f"the named data `{key}` is in {' and in '.join(found)}, but the runtime accepts each key only once")
        for key, found in sorted(places.items())
        if len(found) > 1
    ]
    if problems:
        raise BuildError(problems)


def _check_tags(expected: dict[str, set[str]], blobs: dict[str, dict[str, int]]) -> None:
    """Fails if a tagged weight that a portable operator reads is missing from its tag's file."""
    problems = [
        Problem(f"`{name}` is missing from the file of its tag `{tag}`", ("named_data", tag))
        for shard, names in expected.items()
        for tag in [tag_of_shard(shard)]
        for name in sorted(names - blobs.get(shard, {}).keys())
    ]
    if problems:
        raise BuildError(problems)


def _emission_error(
    error: BaseException, lower_plan: LowerPlan, edge: EdgeProgramManager, finder: SourceFinder
) -> BuildError:
    path, hint = _place_and_hint(str(error), lower_plan, edge)
    action = failed(f"emitting {', '.join(sorted(edge.methods))}", error, finder)
    programs = {name: edge.exported_program(name) for name in edge.methods}
    at = source_lines.shown(failed_nodes.lines(error, programs, finder))
    return from_exception(error, BuildError, path, action, hints(at, hint))


def _place_and_hint(text: str, lower_plan: LowerPlan, edge: EdgeProgramManager) -> tuple[DocumentPath, str | None]:
    """The document path of the value that caused ExecuTorch's message, and a hint."""
    if "Missing out variants" in text:
        return _of_missing_kernels(text, lower_plan, edge)
    if "without a name" in text:
        hint = "buffers without planned memory need names: write `executorch: {emit_mutable_buffer_names: true}`"
        return ("executorch", "memory_planning", "alloc_mutable_buffers"), hint
    return ("methods",), None


def _of_missing_kernels(text: str, lower_plan: LowerPlan, edge: EdgeProgramManager) -> tuple[DocumentPath, str | None]:
    if "torchao::" in text:
        return _of_quantized_layers(lower_plan, edge)
    if lower_plan.custom_ops.libraries or lower_plan.custom_ops.modules:
        hint = (
            "register an overload with `out` for each of these operators, such as "
            "`demo::twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)`"
        )
        return ("custom_ops",), hint
    return ("methods",), None


def _of_quantized_layers(lower_plan: LowerPlan, edge: EdgeProgramManager) -> tuple[DocumentPath, str]:
    """The place and a hint for the first method that calls operators of torchao, which only backends take."""
    for name in sorted(edge.methods):
        layers = _layers_of_torchao(edge.exported_program(name))
        if layers:
            method = lower_plan.methods[name]
            named = [entry.backend for entry in method.partitioners if backends.get(entry.backend).has_partitioner]
            shown = ", ".join(f"`{backend}`" for backend in named)
            left_out = f"{shown} did not take the quantized layer `{layers[0]}`: leave it out of `quantize`"
            missing = (
                "these quantized layers need a backend that takes them, such as `xnnpack`: add it to `partitioners`"
            )
            return ("methods", name, "quantize"), left_out if named else missing
    return ("methods",), "leave the layers out of `quantize`"


def _layers_of_torchao(program: ExportedProgram) -> list[str]:
    """The names of layers that call operators of torchao, in the order of the graph. A name may be empty."""
    modules = [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    calls = [node for module in modules for node in module.graph.nodes if "torchao." in str(node.target)]
    # Weights are dequantized outside of their layer, which is that of the operator that reads them.
    readers = [reader for node in calls for reader in [*node.users, node]]
    stacks = [list(reader.meta.get("nn_module_stack", {}).values()) for reader in readers]
    return sorted((stack[-1][0] for stack in stacks if stack), key=lambda name: not name) or [""] * bool(calls)
