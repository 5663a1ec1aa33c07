"""Checks the results of a method, and replaces named tuples in them by plain ones."""

from __future__ import annotations

from dataclasses import replace

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree

from etbuild.errors import BuildError, DocumentPath
from etbuild.exception_text import shortened

HINT = "return tensors, numbers, or tuples, lists and dicts of them"


def check(program: ExportedProgram, path: DocumentPath) -> None:
    """Checks that a program can return the results of a method. torch.export cannot read others back.

    Raises:
        BuildError: A result is something other than a tensor, a number or None.
    """
    for spec in program.graph_signature.output_specs:
        value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else None
        if not isinstance(value, (bool, int, float, type(None))):
            kind = type(value).__name__
            message = f"the method returns {shortened(repr(value), 80)}: a program cannot return a {kind}"
            raise BuildError.at(path, message, HINT)


def make_plain(program: ExportedProgram) -> None:
    """Replaces named tuples, such as the result of `torch.topk`, and data classes that torch.export cannot save.

    Plain tuples take their place: such classes can be neither saved nor emitted, and a program returns a flat list.
    """
    for index, entry in enumerate(program._module_call_graph):
        if entry.signature is not None:
            signature = replace(entry.signature, out_spec=_plain(entry.signature.out_spec))
            program._module_call_graph[index] = replace(entry, signature=signature)


def _plain(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    if spec.is_leaf():
        return spec
    parts = [_plain(part) for part in spec.children()]
    named = spec.type is not tuple and isinstance(spec.type, type) and issubclass(spec.type, tuple)
    if named or pytree.is_namedtuple_class(spec.context) or not _can_save(spec):
        return pytree.treespec_tuple(parts)
    return pytree.TreeSpec(spec.type, spec.context, parts)


def _can_save(spec: pytree.TreeSpec) -> bool:
    """Whether torch.export can save a container of results: its class is registered with a name."""
    registration = pytree.SUPPORTED_SERIALIZED_TYPES.get(spec.type)
    return registration is not None and registration.serialized_type_name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND
