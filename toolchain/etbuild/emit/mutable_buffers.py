"""What changes at run time: buffers that methods write to, such as a KV cache, and weights that methods train."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.lower import named_data
from etbuild.model.method_tensors import original_name
from etbuild.model.weights_files import equal, form

_LEAVE_ALONE = {
    "CoreMLBackend": "write `take_over_mutable_buffer: false` into the options of `coreml`",
    "QnnBackend": "write `skip_mutable_buffer: true` into the options of `qualcomm`",
}
"""By ExecuTorch's name of a backend: how it leaves buffers that methods write to out of its delegates."""


def _written(program: ExportedProgram, methods: Collection[str]) -> set[str]:
    """The buffers that a method, or a delegate's part of one, writes to, by the names that all methods share."""
    return {original_name(name, methods) for name in program.graph_signature.buffers_to_mutate.values()}


def _used(program: ExportedProgram, methods: Collection[str]) -> set[str]:
    """The parameters and buffers that a method, or a delegate's part of one, reads or writes to, by the same names.

    It has those of the whole module; a buffer that it overwrites is used without being read.
    """
    read = {original_name(name, methods) for node, name in named_data.weights(program) if node.users}
    return read | _written(program, methods)


def initialized(edge: EdgeProgramManager) -> list[str]:
    """Placeholders of buffers that methods write to and that start with more than zeros.

    Without being told, ExecuTorch keeps the shape of such a buffer and forgets what was in it.
    """
    found = set()
    for method in edge.methods:
        program = edge.exported_program(method)
        written = set(program.graph_signature.buffers_to_mutate.values())
        for node, name in named_data.weights(program):
            if name in written and bool(named_data.tensor(program, name).count_nonzero()):
                found.add(node.name)
    return sorted(found)


def check_trained_weights(edge: EdgeProgramManager, shards: dict[str, str]) -> None:
    """Whether all weights that methods train go to named data, as `external_mutable_weights` asks.

    ExecuTorch's own pass would send them to a file of a fixed name, and take the tag from those that have one.

    Raises:
        BuildError: One has no tag; or no method trains any.
    """
    path: DocumentPath = ("executorch", "external_mutable_weights")
    trained = {
        spec.target
        for method in edge.methods
        for spec in edge.exported_program(method).graph_signature.output_specs
        if spec.kind == OutputKind.GRADIENT_TO_PARAMETER and spec.target is not None
    }
    if not trained:
        hint = "a pass at `passes.aten` that calls `_export_forward_backward` makes a method that does"
        raise BuildError([Problem("no method trains a weight", path, hint)])
    problems = [
        Problem(
            f"`{name}` is trained and would stay in the program",
            path,
            f"give it a tag, as in `named_data: {{weights: {{parameters: [{name}]}}}}`",
        )
        for name in sorted(trained - shards.keys())
    ]
    if problems:
        raise BuildError(problems)


def share(edge: EdgeProgramManager) -> None:
    """Prepares methods for `share_mutable_buffers`: a buffer that one of them writes to is a constant of none.

    ExecuTorch shares by name, once it plans memory: in a method that only reads such a buffer it must be no constant,
    and in none of them it may lie inside a delegate.

    Raises:
        BuildError: A delegate took such a buffer: for state of its own, or for a constant, so that it would keep what
            the buffer starts with. Or two methods have buffers of one name that differ.
    """
    written = _writers(edge)
    problems = [*_unequal(edge, written), *_taken(edge, written)]
    for method in edge.methods:
        for node, name in named_data.weights(edge.exported_program(method)):
            if original_name(name, edge.methods) in written:
                named_data.untag(node)
    if problems:
        raise BuildError(problems)


class _Part(NamedTuple):
    """A method's own part of its graph, or one of its delegates."""

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
    """The buffers that methods or their delegates write to, each with the first method that does."""
    found: dict[str, str] = {}
    for part in _parts(edge):
        for name in sorted(_written(part.program, edge.methods)):
            found.setdefault(name, part.method)
    return found


def _taken(edge: EdgeProgramManager, written: dict[str, str]) -> Iterator[Problem]:
    """Buffers that lie inside a delegate, where the methods that have them cannot share them."""
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
            without = "leave the backend out for this method, or `share_mutable_buffers`"
            if name not in own:
                message = f"{delegate.backend_id} took `{name}` for a constant, which `{written[name]}` writes to"
                yield Problem(message, path, without)
            elif others:
                message = (
                    f"{delegate.backend_id} keeps `{name}` inside its delegate, and {_listed(others)} cannot share it"
                )
                yield Problem(message, path, _LEAVE_ALONE.get(delegate.backend_id, without))


def _listed(methods: list[str]) -> str:
    return " and ".join(f"`{method}`" for method in methods)


def _unequal(edge: EdgeProgramManager, shared: Collection[str]) -> list[Problem]:
    """Buffers of one name that are not the same in all methods: they cannot be shared, and some are meant to be."""
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
                here, there = form(tensor), form(known)
                if here == there:
                    message = f"`{name}` starts with other values than in `{other}`"
                else:
                    message = f"`{name}` is {here}, and {there} in `{other}`"
                hint = "methods share buffers by name: rename one, or leave out `share_mutable_buffers`"
                problems.append(Problem(message, ("methods", method), hint))
    return problems


def check_shared(manager: ExecutorchProgramManager) -> None:
    """Whether each buffer that methods share has one place in the memory plans of all of them.

    Args:
        manager: The program, with planned memory.

    Raises:
        BuildError: One has several places, or none.
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
            "plan the memory of all methods in one way, or leave `share_mutable_buffers` out",
        )
        for name, of_methods in sorted(places.items())
        if len(of_methods) > 1 and (len(set(of_methods.values())) > 1 or None in next(iter(of_methods.values())))
    ]
    if problems:
        raise BuildError(problems)
