"""Handles tensors that change at run time: buffers that methods write to, such as a KV cache, and trained weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from etbuild import backends
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.lower import named_data
from etbuild.model.method_tensors import original_name
from etbuild.model.weights_files import equal, form


def _written(program: ExportedProgram, methods: Collection[str]) -> set[str]:
    """The buffers that a method or delegate writes to, by the names that they have in all methods."""
    return {original_name(name, methods) for name in program.graph_signature.buffers_to_mutate.values()}


def _used(program: ExportedProgram, methods: Collection[str]) -> set[str]:
    """The parameters and buffers that a method or delegate uses, by the names that they have in all methods.

    A program lists those of the whole module. A buffer that it overwrites is used, but no node reads it.
    """
    read = {original_name(name, methods) for node, name in named_data.weights(program) if node.users}
    return read | _written(program, methods)


def initialized(edge: EdgeProgramManager) -> list[str]:
    """Names of the placeholders of buffers that methods write to and whose initial content is not all zeros.

    By default, ExecuTorch keeps only the shape of such a buffer and drops its content.
    """
    names = set()
    for method in edge.methods:
        program = edge.exported_program(method)
        written = set(program.graph_signature.buffers_to_mutate.values())
        for node, name in named_data.weights(program):
            if name in written and bool(named_data.tensor(program, name).count_nonzero()):
                names.add(node.name)
    return sorted(names)


def check_trained_weights(edge: EdgeProgramManager, shards: dict[str, str]) -> None:
    """Checks that all weights that methods train go to named data, as `external_mutable_weights` requires.

    ExecuTorch's own pass is not used: it would put the weights into a file with a fixed name and remove their tags.

    Args:
        edge: The lowered methods.
        shards: The shard of each parameter that has a tag, by name.

    Raises:
        BuildError: A trained weight has no tag, or no method trains a weight.
    """
    path: DocumentPath = ("executorch", "external_mutable_weights")
    trained = {
        spec.target
        for method in edge.methods
        for spec in edge.exported_program(method).graph_signature.output_specs
        if spec.kind == OutputKind.GRADIENT_TO_PARAMETER and spec.target is not None
    }
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
    if problems:
        raise BuildError(problems)


def share(edge: EdgeProgramManager, named: Collection[str]) -> None:
    """Prepares methods for `share_mutable_buffers`.

    ExecuTorch shares buffers by name when it plans memory. If one method writes to a buffer, the buffer must not be a
    constant in any other method, and must not be inside a delegate. This function removes the tags of such buffers.

    Args:
        edge: The lowered methods. The metadata of their placeholders is changed in place.
        named: The backends that the plan names.

    Raises:
        BuildError: A delegate keeps a shared buffer as its own state or treats it as a constant, or two methods have
            different buffers of the same name.
    """
    written = _writers(edge)
    problems = [*_unequal(edge, written), *_taken(edge, written, named)]
    for method in edge.methods:
        for node, name in named_data.weights(edge.exported_program(method)):
            if original_name(name, edge.methods) in written:
                named_data.untag(node)
    if problems:
        raise BuildError(problems)


class _Part(NamedTuple):
    """A method without its delegates, or one of its delegates."""

    method: str
    delegate: LoweredBackendModule | None
    program: ExportedProgram


def _parts(edge: EdgeProgramManager) -> Iterator[_Part]:
    for method in sorted(edge.methods):
        program = edge.exported_program(method)
        yield _Part(method, None, program)
        for delegate in named_data.delegates(program.graph_module):
            yield _Part(method, delegate, delegate.original_module)


def _writers(edge: EdgeProgramManager) -> dict[str, str]:
    """The buffers that methods or their delegates write to, each with the first method that writes to it."""
    writers: dict[str, str] = {}
    for part in _parts(edge):
        for name in sorted(_written(part.program, edge.methods)):
            writers.setdefault(name, part.method)
    return writers


def _taken(edge: EdgeProgramManager, written: dict[str, str], named: Collection[str]) -> Iterator[Problem]:
    """Reports written buffers inside delegates: methods cannot share them.

    Args:
        edge: The lowered methods.
        written: The buffers that methods write to, each with the first method that does.
        named: The backends that the plan names.
    """
    users: dict[str, set[str]] = {}
    for part in _parts(edge):
        for name in _used(part.program, edge.methods) & written.keys():
            users.setdefault(name, set()).add(part.method)
    for method, delegate, program in _parts(edge):
        if delegate is None:
            continue
        own = _written(program, edge.methods)
        for name in sorted(_used(program, edge.methods) & written.keys()):
            path, others = ("methods", method, "partitioners"), sorted(users[name] - {method})
            without = "remove the backend from this method, or remove `share_mutable_buffers`"
            if name not in own:
                message = f"{delegate.backend_id} treats `{name}` as a constant, but `{written[name]}` writes to it"
                yield Problem(message, path, without)
            elif others:
                message = (
                    f"{delegate.backend_id} keeps `{name}` inside its delegate, so {_listed(others)} cannot share it"
                )
                yield Problem(message, path, backends.mutable_buffers_hint(delegate.backend_id, named) or without)


def _listed(methods: list[str]) -> str:
    return " and ".join(f"`{method}`" for method in methods)


def _unequal(edge: EdgeProgramManager, shared: Collection[str]) -> list[Problem]:
    """Reports buffers of `shared` that have the same name in two methods but differ, so that they cannot be shared."""
    first: dict[str, tuple[str, torch.Tensor]] = {}
    problems = []
    for method in sorted(edge.methods):
        program = edge.exported_program(method)
        for own in sorted({name for _, name in named_data.weights(program)}):
            name, tensor = original_name(own, edge.methods), named_data.tensor(program, own)
            if name not in shared:
                continue
            other, known = first.setdefault(name, (method, tensor))
            if not equal(tensor, known):
                ours, theirs = form(tensor), form(known)
                if ours == theirs:
                    message = f"`{name}` has other initial values than in `{other}`"
                else:
                    message = f"`{name}` is {ours}, and {theirs} in `{other}`"
                hint = "methods share buffers by name: rename one, or remove `share_mutable_buffers`"
                problems.append(Problem(message, ("methods", method), hint))
    return problems


def check_shared(manager: ExecutorchProgramManager) -> None:
    """Checks that each buffer that methods share has the same place in the memory plans of all of them.

    Args:
        manager: The program, with planned memory.

    Raises:
        BuildError: A buffer has different places, or no place.
    """
    programs = {method: manager.exported_program(method) for method in sorted(manager.methods)}
    written = {name for program in programs.values() for name in program.graph_signature.buffers_to_mutate.values()}
    places: dict[str, dict[str, tuple[int | None, int | None]]] = {}
    for method, program in programs.items():
        for node, name in named_data.weights(program):
            if name in written:
                spec = node.meta["spec"]
                places.setdefault(name, {})[method] = spec.mem_id, spec.mem_offset
    problems = [
        Problem(
            f"`{name}` is not one buffer of {_listed(list(of_methods))}: their memory plans give it different places",
            ("share_mutable_buffers",),
            "use the same memory planning for all methods, or remove `share_mutable_buffers`",
        )
        for name, of_methods in sorted(places.items())
        if len(of_methods) > 1 and (len(set(of_methods.values())) > 1 or None in next(iter(of_methods.values())))
    ]
    if problems:
        raise BuildError(problems)
