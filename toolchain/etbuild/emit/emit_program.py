"""Writes emitted methods as a `.pte` and the `.ptd` files of each tag, and checks that these files fit together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._serialize import serialize_for_executorch
from executorch.exir.schema import ExecutionPlan
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorConfig, FlatTensorSerializer

from etbuild import releases
from etbuild.emit import runtime_limits, shared_buffers
from etbuild.emit.emitted import Emitted, MethodFacts
from etbuild.emit.merge import Merged, merge
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.files import instructions, program_file
from etbuild.files.writing import Artifact, write
from etbuild.foreign_errors import from_exception, wrap_errors
from etbuild.lower import blobs
from etbuild.lower.blobs import Claims
from etbuild.lower.shards import tag_of_shard
from etbuild.plan.step_plans import LowerPlan
from etbuild.results import MemoryPlan, ProgramFacts, RuntimeLimit


@dataclass(frozen=True)
class Emission:
    """The result of `write_program`.

    Attributes:
        artifacts: The program, then the named data in the order of the tags and their shards.
        program: Facts about the program, read from its file.
        template: The digest of the program without the content of its weights (`program_file.template_digest`).
        memory: The planned memory of each method.
        named_data: For each tag, the size in bytes of each blob by key, read from its files.
        constants: The digest of each constant in the program.
        limits: The parts of the program that ExecuTorch's own runtime cannot run, or computes wrongly.
    """

    artifacts: list[Artifact]
    program: ProgramFacts
    template: str
    memory: dict[str, MemoryPlan]
    named_data: dict[str, dict[str, int]]
    constants: list[str]
    limits: list[RuntimeLimit]


def write_program(lower_plan: LowerPlan, parts: Sequence[Emitted], shards: dict[str, str], directory: Path) -> Emission:
    """Writes the program of emitted methods and its named data, and reads them back.

    Args:
        lower_plan: The lower plan.
        parts: The methods, in the order of their names.
        shards: The shard of each parameter that has a tag, by name.
        directory: The directory to write to.

    Raises:
        BuildError: The methods do not fit together, a file cannot be written, or the files do not fit together.
    """
    methods = {name: of_method for part in parts for name, of_method in part.facts.items()}
    output, content, files = unwritten(lower_plan, parts, shards)
    constants = [releases.sha256_of(each.storage).hex() for each in output.program.constant_buffer if each.storage]
    program = write(directory, f"{lower_plan.name}.pte", "program", content.write_to_file)
    data = _write_named_data(lower_plan, files, directory)
    parsed = program_file.read_program_file(program.path)
    found = {shard: program_file.named_data_facts(file.path) for shard, file in data.items()}
    claims = {key for part in parts for key in part.claims}
    _check_keys(claims, program_file.external_keys(parsed), program_file.pte_named_data(parsed), found)
    _check_tags(methods, found)
    by_tag: dict[str, dict[str, int]] = {tag: {} for tag in lower_plan.tags}
    for shard, keys in found.items():
        by_tag[tag_of_shard(shard)].update(keys)
    facts = program_file.program_facts(parsed)
    template = program_file.template_digest(parsed, {*claims, *facts["bytes"]["named_data"]})
    memory = {plan.name: instructions.memory_plan(plan) for plan in parsed.program.execution_plan}
    _check_memory(parsed.program.execution_plan)
    return Emission([program, *data.values()], facts, template, memory, by_tag, constants, runtime_limits.find(parsed))


def unwritten(
    lower_plan: LowerPlan, parts: Sequence[Emitted], shards: dict[str, str]
) -> tuple[Merged, Cord, dict[str, Cord]]:
    """What `write_program` writes: the merged methods, their program, and the named data of each shard. The arguments
    and errors are those of `write_program`."""
    methods = {name: of_method for part in parts for name, of_method in part.facts.items()}
    buffers = {name: each.buffers for name, each in methods.items() if each.buffers is not None}
    shared_buffers.check(buffers, lower_plan.used_backends)
    if lower_plan.executorch.external_mutable_weights:
        _check_trained_weights({name for each in methods.values() for name in each.trained}, shards)
    _check_names(methods)
    claims: Claims = {}
    for part in parts:
        for key, wanted in part.claims.items():
            claims.setdefault(key, set()).update(wanted)
    store = blobs.arrange([request for part in parts for request in part.requests], claims)
    config = _layout(lower_plan)
    alignment = config.segment_alignment
    config.segment_alignment = blobs.program_alignment(store, alignment)
    serializer = FlatTensorSerializer(FlatTensorConfig(segment_alignment=config.segment_alignment))
    output = merge(parts, lower_plan.constant_methods)
    if not config.extract_delegate_segments:  # ExecuTorch takes such data from memory only
        for delegate in output.program.backend_delegate_data:
            if releases.is_file_backed(delegate.data):
                delegate.data = delegate.data.to_bytes()
    with wrap_errors(lambda error: from_exception(error, BuildError, ("methods",), "writing the program")):
        content, files = serialize_for_executorch(output, config, serializer, store.get_named_data_store_output())
    return output, content, blobs.files_by_shard(store, files, alignment)


def _layout(lower_plan: LowerPlan) -> SimpleNamespace:
    """The options for the layout of the files, with the names of `ExecutorchBackendConfig`. Emission used others."""
    options: Any = lower_plan.executorch
    if lower_plan.recipe is not None:
        from etbuild.lower.executorch_config import backend_config

        options = backend_config(lower_plan, [], False)
    names = ("extract_delegate_segments", "segment_alignment", "constant_tensor_alignment", "delegate_alignment")
    return SimpleNamespace(**{name: getattr(options, name) for name in names})


def _check_memory(plans: Iterable[ExecutionPlan]) -> None:
    """Fails if a tensor reaches beyond the memory that ExecuTorch planned: the runtime could not load its method.

    ExecuTorch gives a view the memory of its tensor. If a size is divided by another size, ExecuTorch may compute a
    larger upper limit for the view than for the tensor.
    """
    path: DocumentPath = ("executorch", "remove_view_copy")
    hint = "write `executorch: {remove_view_copy: false}`, or leave out `dynamic_shapes`"
    if short := {plan.name: missing for plan in plans if (missing := instructions.missing_memory(plan))}:
        say = "ExecuTorch planned {} bytes too few for `{}`, because of a dynamic size in a view"
        raise BuildError([Problem(say.format(missing, name), path, hint) for name, missing in short.items()])


def _check_trained_weights(trained: set[str], shards: dict[str, str]) -> None:
    """Checks that all weights that methods train have tags and go to named data, as `external_mutable_weights`
    requires.

    ExecuTorch's own pass is not used: it would put the weights into a file with a fixed name and remove their tags.
    """
    path: DocumentPath = ("executorch", "external_mutable_weights")
    if not trained:
        hint = "add a pass to `passes.aten` that calls `_export_forward_backward`"
        raise BuildError.at(path, "no method trains a weight", hint)
    problems = [
        Problem(
            f"`{name}` is trained but has no tag, so it would stay in the program",
            path,
            f"give it a tag, as in `named_data: {{weights: {{parameters: [{name}]}}}}`",
        )
        for name in sorted(trained - shards.keys())
    ]
    BuildError.raise_if(problems)


def _write_named_data(lower_plan: LowerPlan, written: dict[str, Cord], directory: Path) -> dict[str, Artifact]:
    """Writes the file of each shard. If a tag is split, the names of its files contain their digests. Raises BuildError
    if a tag has no weights that a method reads."""
    missing = set(lower_plan.tags) - {tag_of_shard(shard) for shard in written}
    if missing:
        message = "no method reads a weight of this tag, so its file would be empty"
        hint = "remove the tag, or change its patterns"
        raise BuildError([Problem(message, ("named_data", tag), hint) for tag in sorted(missing)])
    files = {}
    for shard, cord in written.items():
        tag, name = tag_of_shard(shard), f"{lower_plan.name}.{tag_of_shard(shard)}"
        file = f"{name}.ptd" if tag == shard else f"{name}/{tag}.ptd"
        artifact = files[shard] = write(directory, file, "named_data", cord.write_to_file, tag)
        if tag != shard:
            files[shard] = replace(artifact, file=f"{name}/{tag}-{artifact.sha256}.ptd")
            artifact.path.rename(files[shard].path)
    return files


def _check_names(methods: dict[str, MethodFacts]) -> None:
    """Fails if methods have different weights in named data under one name.

    Portable operators find weights by name, so one method would read the weight of the other.
    """
    seen: dict[str, tuple[str, str]] = {}
    for method, facts in sorted(methods.items()):
        for name, weight in sorted(facts.tagged.items()):
            first, known = seen.setdefault(name, (method, weight.identity))
            if known != weight.identity:
                message = f"`{name}` has different values in `{first}` and `{method}`"
                hint = "named data finds weights by name: rename one, or remove it from `named_data`"
                raise BuildError.at(("methods", method), message, hint)


def _check_keys(
    wanted: set[str], external: list[str], inside: dict[str, int], blobs: dict[str, dict[str, int]]
) -> None:
    """Fails if a key of named data that the program needs is missing or is in several files.

    The runtime ends with a segmentation fault if a key is missing.
    """
    held_in: dict[str, list[str]] = {key: [".pte"] for key in inside}
    for shard, keys in blobs.items():
        for key in keys:
            held_in.setdefault(key, []).append(f".{shard}.ptd")
    problems = [
        Problem(f"the program needs the named data `{key}`, but no file has it")
        for key in sorted({*wanted, *external} - held_in.keys())
    ]
    problems += [
        Problem(f"the named data `{key}` is in {' and in '.join(found)}, but the runtime accepts each key only once")
        for key, found in sorted(held_in.items())
        if len(found) > 1
    ]
    BuildError.raise_if(problems)


def _check_tags(methods: dict[str, MethodFacts], blobs: dict[str, dict[str, int]]) -> None:
    """Fails if a tagged weight that a portable operator reads is missing from its tag's file.

    A buffer that a method writes to is not in a file.
    """
    missing = {
        (weight.shard, name)
        for facts in methods.values()
        for name, weight in facts.tagged.items()
        if not weight.written and name not in blobs.get(weight.shard, {})
    }
    problems = [
        Problem(
            f"`{name}` is missing from the file of its tag `{tag_of_shard(shard)}`", ("named_data", tag_of_shard(shard))
        )
        for shard, name in sorted(missing)
    ]
    BuildError.raise_if(problems)
