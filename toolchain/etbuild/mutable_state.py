"""What changes at run time: buffers that methods write to, such as a KV cache, and weights that methods train."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from executorch.exir import EdgeProgramManager
from torch.export.graph_signature import OutputKind

from etbuild import named_data
from etbuild.carried import original_name
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.tensors import equal, form


def written_by(edge: EdgeProgramManager) -> dict[str, str]:
    """The buffers that methods write to, each with the first method that does."""
    found: dict[str, str] = {}
    for method in sorted(edge.methods):
        for name in edge.exported_program(method).graph_signature.buffers_to_mutate.values():
            found.setdefault(name, method)
    return found


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

    ExecuTorch shares by name, once it plans memory: in a method that only reads such a buffer it must be no constant.

    Raises:
        BuildError: A delegate took such a buffer, and would keep what the buffer starts with; or two methods have
            buffers of one name that differ.
    """
    written = written_by(edge)
    problems = _unequal(edge, written)
    for method in sorted(edge.methods):
        program = edge.exported_program(method)
        for delegate in named_data.delegates(program.graph_module):
            for name in sorted({name for _, name in named_data.weights(delegate.original_module)} & written.keys()):
                problems.append(
                    Problem(
                        f"{delegate.backend_id} took `{name}` for a constant, which `{written[name]}` writes to",
                        ("methods", method, "partitioners"),
                        "leave the backend out for this method, or `share_mutable_buffers`",
                    )
                )
        for node, name in named_data.weights(program):
            if name in written:
                named_data.untag(node)
    if problems:
        raise BuildError(problems)


def _unequal(edge: EdgeProgramManager, written: Iterable[str]) -> list[Problem]:
    """Buffers of one name that are not the same in all methods: they cannot be shared, and some are meant to be."""
    shared = {original_name(name, edge.methods) for name in written}
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
