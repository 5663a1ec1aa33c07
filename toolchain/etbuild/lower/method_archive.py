"""Saves and reads a lowered method as a directory, and merges lowered methods into a program.

    method.json        what the directory holds, or why the method cannot be lowered by itself
    program.json       ExecuTorch's own form of a lowered program, without weights and blobs
    state.pt, constants.pt
                       its tensors: with content if lowering made them, only shapes if the module has them
    blobs/SHA256       what backends compiled from weights and operators; equal content is stored once

Merging methods gives the same bytes as lowering them together, provided that none of their backends looks at several
methods at once and that all sharing goes through ExecuTorch's store of named data. `Backend.separable` says whether
this is so.

The format works around the serializer of ExecuTorch 1.5. It refuses control flow. It drops the metadata of delegates:
method.json holds their debug handles. It changes the order of nodes and of arguments, which affects the memory plan:
`load` restores both orders.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.serde import export_serialize, serialize
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from etbuild import releases
from etbuild.errors import InputError
from etbuild.exception_text import summary
from etbuild.files import artifacts, json_file
from etbuild.files.digests import canonical_json, file_digest
from etbuild.files.zip_archive import canonical_archive
from etbuild.foreign_errors import wrap_library_errors
from etbuild.lower import named_data, weight_sharing
from etbuild.lower.finite_weights import NonFinite
from etbuild.lower.named_data import Claims
from etbuild.lower.weight_sharing import Place
from etbuild.patching import replaced

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer

_SCHEMA = "executorch-lowered-method/v1"
BLOBS = "blobs"
_METHOD, _PROGRAM, _STATE, _CONSTANTS = "method.json", "program.json", "state.pt", "constants.pt"
_NOT_OF_PROGRAMS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


class CannotSave(Exception):
    """A method cannot be lowered by itself. The message gives users the reason."""


@dataclass(frozen=True)
class LoweredMethod:
    """What `read` returns: the facts of a lowered method. `load` reads the method itself.

    Attributes:
        directory: The directory that holds the method.
        name: The method's name.
        why_not: Why it could not be lowered by itself, in which case all following attributes are empty; else None.
        bound: Names of the tensors that come from the module.
        nodes: The name of each node of the graph, in order, with the number of its positional arguments.
        delegates: For each delegate by name: its debug handles, and the digests of its program and its named data.
        claims: For each key of the named data, the shards that claim it.
        places: Where it keeps the weights that it reads.
        non_finite: The weights with elements that are NaN or infinite.
        digests: The digests of its program and tensor files, by file name. (A blob's file name is its digest.)
    """

    directory: Path
    name: str
    why_not: str | None
    bound: list[str]
    nodes: list[tuple[str, int]]
    delegates: dict[str, dict[str, Any]]
    claims: Claims
    places: list[Place]
    non_finite: NonFinite
    digests: dict[str, str]


@dataclass(frozen=True)
class Facts:
    """Facts about a method that was just lowered.

    Attributes:
        claims: For each key of its named data, the shards that claim it.
        places: Where it keeps the weights that it reads.
        non_finite: The weights that had elements that are NaN or infinite before the method was lowered.
    """

    claims: Claims
    places: list[Place]
    non_finite: NonFinite


def check(program: ExportedProgram) -> None:
    """Checks whether a lowered method can be saved.

    Raises:
        CannotSave: It has control flow.
    """
    if any(True for _ in get_control_flow_submodules(program.graph_module)):
        raise CannotSave("it has control flow")


def write(
    directory: Path,
    name: str,
    program: ExportedProgram,
    facts: Facts,
    content: dict[str, torch.Tensor],
) -> None:
    """Saves a lowered method, and reads it back.

    Args:
        directory: An existing directory that contains nothing except blobs.
        name: The method's name.
        program: The method. Its blobs and the module's weights are removed from it.
        facts: Facts about the method.
        content: The module's parameters and buffers by name. They are not saved.

    Raises:
        CannotSave: ExecuTorch cannot serialize the method, or reads back something else.
        BuildError: A file cannot be written.
    """
    (directory / BLOBS).mkdir(exist_ok=True)
    delegates = {
        delegate: _take_blobs(directory, child)
        for delegate, child in program.graph_module.named_children()
        if isinstance(child, LoweredBackendModule)
    }
    bound = _take_weights(program, content)
    nodes = [(node.name, len(node.args)) for node in program.graph.nodes]
    for graph in (program.graph, *(d.original_module.graph for d in named_data.delegates(program.graph_module))):
        for node in graph.nodes:
            for key in _NOT_OF_PROGRAMS:
                node.meta.pop(key, None)
    listed = {
        "bound": bound,
        "nodes": nodes,
        "delegates": delegates,
        "claims": {key: sorted(shards, key=str) for key, shards in facts.claims.items()},
        "non_finite": facts.non_finite,
        "places": [place.facts() for place in facts.places],
    }
    digests = _write_program(directory, program)
    _write_facts(directory, {"name": name, "why_not": None, **listed, "digests": digests})
    _check_read_back(directory, name, program, content)


def _write_program(directory: Path, program: ExportedProgram) -> dict[str, str]:
    """Serializes a program with ExecuTorch, writes the files, and returns the digest of each by its name."""
    try:
        with replaced(export_serialize, "serialize_torch_artifact", _serialize_tensors):
            artifact = serialize.serialize(program)
    except Exception as error:  # the errors of ExecuTorch's serializer have no common base class
        raise CannotSave(f"ExecuTorch cannot save it: {summary(error)}") from error
    parts = {_PROGRAM: artifact.exported_program, _STATE: artifact.state_dict, _CONSTANTS: artifact.constants}
    return {
        file: artifacts.write(directory, file, "lowered", lambda opened, content=content: opened.write(content)).sha256  # type: ignore[misc]
        for file, content in parts.items()
    }


_serialize_torch_artifact = export_serialize.serialize_torch_artifact


def _serialize_tensors(*arguments: Any) -> bytes:
    """Serializes tensors as ExecuTorch does, but without the random identifier that torch adds."""
    return canonical_archive(_serialize_torch_artifact(*arguments))


def _check_read_back(directory: Path, name: str, program: ExportedProgram, content: dict[str, torch.Tensor]) -> None:
    """Reads the saved method back and compares it, so that a method that changes is lowered with the others instead."""
    try:
        again = load(read(directory, name), content)
    except InputError as error:
        raise CannotSave("ExecuTorch cannot read what it saved") from error
    if _described(again) != _described(program):
        raise CannotSave("ExecuTorch reads something else than it saved")


def _described(program: ExportedProgram) -> list[str]:
    nodes = [
        f"{node.op} {node.name} {node.target} {node.args} {sorted(map(str, node.kwargs.items()))}"
        for node in program.graph.nodes
    ]
    return [*nodes, str(program.graph_signature)]


def write_reason(directory: Path, name: str, reason: str) -> None:
    """Removes everything in a directory, and saves why the method must be lowered together with the others.

    Args:
        directory: An existing directory.
        name: The method's name.
        reason: The message of `CannotSave`.

    Raises:
        BuildError: The file cannot be written.
    """
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lists: dict[str, Any] = {"bound": [], "nodes": [], "places": []}
    mappings: dict[str, Any] = {"delegates": {}, "claims": {}, "non_finite": {}, "digests": {}}
    _write_facts(directory, {"name": name, "why_not": reason, **lists, **mappings})


def _write_facts(directory: Path, facts: dict[str, Any]) -> None:
    _write(directory, _METHOD, canonical_json({"schema": _SCHEMA, **facts}))


def _write(directory: Path, file: str, content: bytes) -> None:
    artifacts.write(directory, file, "lowered", lambda opened: opened.write(content))


def _take_blobs(directory: Path, delegate: LoweredBackendModule) -> dict[str, Any]:
    """Moves the blobs of a delegate into files and drops the content of its weights. Its graph stays.

    Returns:
        The digest of its `program`, those of its `named_data`, and its `debug_handles`.
    """
    handles = _debug_handles(delegate)
    program = delegate.original_module
    program._state_dict = {name: _shape_alone(tensor) for name, tensor in program.state_dict.items()}
    program._constants = {name: _shape_alone(value) for name, value in program.constants.items()}
    blobs = [_write_blob(directory, delegate.processed_bytes)]
    delegate._processed_bytes = b""
    output = delegate.named_data_store_output
    if output is not None:
        blobs += [_write_blob(directory, blob) for blob in output.buffers]
        output.buffers[:] = [b""] * len(output.buffers)
    return {"program": blobs[0], "named_data": blobs[1:], "debug_handles": handles}


def _debug_handles(delegate: LoweredBackendModule) -> list[list[Any]] | None:
    """The debug handle map of a delegate as pairs: its keys may be numbers, which JSON objects cannot have as keys."""
    meta = dict(delegate.meta or {})
    handles = meta.pop("debug_handle_map", None)
    try:
        pairs = None if handles is None else [[key, list(values)] for key, values in handles.items()]
        kept = not meta and _handle_map(json.loads(json.dumps(pairs))) == handles
    except TypeError:  # it does not map numbers or names to numbers
        kept = False
    if not kept:
        raise CannotSave(f"{delegate.backend_id} keeps facts of its own with a delegate")
    return pairs


def _handle_map(pairs: list[list[Any]] | None) -> dict[Any, tuple[int, ...]] | None:
    return None if pairs is None else {key: tuple(values) for key, values in pairs}


def _write_blob(directory: Path, blob: CordBuffer) -> str:
    digest = releases.sha256_of(blob).hex()
    if not (directory / BLOBS / digest).exists():
        _write(directory, f"{BLOBS}/{digest}", named_data.blob_bytes(blob))
    return digest


def _take_weights(program: ExportedProgram, content: dict[str, torch.Tensor]) -> list[str]:
    """Removes the content of weights that come from the module, keeps their shapes, and returns their names."""
    read = {name for _, name in named_data.weights(program)}
    bound = []
    for tensors in (program._state_dict, program._constants):
        for name in list(tensors):
            if name in content and _same(tensors[name], content[name]):
                tensors[name] = _shape_alone(tensors[name])
                bound.append(name)
            elif name not in read and tensors is program._state_dict:
                del tensors[name]
    return sorted(bound)


def _same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors view the same memory with the same dtype, shape and strides."""
    return bool(
        tensor.data_ptr() == other.data_ptr()
        and tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )


def _shape_alone(value: Any) -> Any:
    """A tensor with the same shape and dtype that takes the memory of one element."""
    if not isinstance(value, torch.Tensor):
        return value
    return _like(value, torch.zeros((), dtype=value.dtype).expand(value.shape))


def _of_own_memory(value: Any) -> Any:
    """An uninitialized tensor of the same shape with contiguous strides. Its memory is never read or written."""
    return _like(value, torch.empty(value.shape, dtype=value.dtype)) if isinstance(value, torch.Tensor) else value


def _like(tensor: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(content, requires_grad=False)
    return content


def read(directory: Path, name: str) -> LoweredMethod:
    """Reads the facts of a lowered method. `load` reads the method itself.

    Args:
        directory: The directory that `write` or `write_reason` filled.
        name: The name that the method must have.

    Raises:
        InputError: The directory holds no lowered method or that of another name, or method.json is damaged.
    """
    try:
        facts = json_file.read(directory / _METHOD, json_file.Format("the lowered method", "step#loweredMethod"))
    except InputError as error:
        raise InputError([replace(problem, path=("methods", name)) for problem in error.problems]) from None
    if facts["name"] != name:
        raise InputError.at(("methods", name), f"the lowered method is `{facts['name']}`, not this one")
    claims = {key: set(shards) for key, shards in facts["claims"].items()}
    places = [weight_sharing.read(place) for place in facts["places"]]
    nodes = [(node, count) for node, count in facts["nodes"]]
    rest = {key: facts[key] for key in ("why_not", "bound", "delegates", "non_finite", "digests")}
    return LoweredMethod(directory, name, claims=claims, places=places, nodes=nodes, **rest)


def merge(
    methods: dict[str, LoweredMethod],
    content: dict[str, torch.Tensor],
    shards: dict[str, str],
    constant_methods: dict[str, object],
) -> EdgeProgramManager:
    """Merges methods that were lowered one by one. The result is the same as if they had been lowered together.

    Args:
        methods: The lowered methods by name. Each has `why_not` None.
        content: The module's parameters and buffers by name.
        shards: The shard of each parameter that has a tag, by name.
        constant_methods: The values of the program's constant methods, by name.

    Returns:
        All methods. Their named data is arranged.

    Raises:
        InputError: A method is damaged.
        BuildError: Named data of the methods conflicts: see `named_data.arrange`.
    """
    programs = {name: load(method, content) for name, method in sorted(methods.items())}
    for program in programs.values():
        named_data.tag_placeholders(program, shards)
    with named_data.clashes_told_later():
        edge = EdgeProgramManager(
            programs, dict(sorted(constant_methods.items())) or None, EdgeCompileConfig(_check_ir_validity=False)
        )
    claims: Claims = {}
    for method in methods.values():
        for key, wanted in method.claims.items():
            claims.setdefault(key, set()).update(wanted)
    named_data.arrange(edge, claims)
    return edge


def load(method: LoweredMethod, content: dict[str, torch.Tensor]) -> ExportedProgram:
    """Reads a lowered method, and puts in the content of its parameters and buffers.

    The model's modules that define operators and types of results must have been imported.

    Args:
        method: The facts that `read` returned. `why_not` is None.
        content: The module's parameters and buffers by name.

    Raises:
        InputError: A file is damaged.
    """
    where = method.directory
    with wrap_library_errors(InputError, ("methods", method.name), "cannot load the lowered method"):
        _check_digests(method)
        parts = [(where / part).read_bytes() for part in (_PROGRAM, _STATE, _CONSTANTS)]
        program: ExportedProgram = serialize.deserialize(export_serialize.SerializedArtifact(*parts, b""))
        _put_in_order(program.graph, method.nodes)
        for name, blobs in method.delegates.items():
            _put_back(where / BLOBS, getattr(program.graph_module, name), blobs)
    for tensors in (program._state_dict, program._constants):
        tensors.update({name: content[name] for name in tensors.keys() & set(method.bound)})
    return program


def _check_digests(method: LoweredMethod) -> None:
    blobs = {digest for blobs in method.delegates.values() for digest in (blobs["program"], *blobs["named_data"])}
    for file, digest in {**method.digests, **{f"{BLOBS}/{digest}": digest for digest in blobs}}.items():
        if file_digest(method.directory / file) != digest:
            raise ValueError(f"{file} is damaged")


def _put_in_order(graph: Graph, nodes: list[tuple[str, int]]) -> None:
    """Undoes the changes that the serializer makes to a graph.

    The serializer moves each `getitem` next to the node that makes the tuple, and adds one for each element that
    nothing reads. It passes arguments that have a default by keyword.

    Args:
        graph: The graph. It is changed in place.
        nodes: The names of the original nodes, in order, each with the number of its positional arguments.
    """
    positional = dict(nodes)
    for node in [node for node in graph.nodes if node.name not in positional]:
        graph.erase_node(node)
    by_name = {node.name: node for node in graph.nodes}
    last = graph._root
    for name, count in nodes:
        node = by_name[name]
        last.append(node)
        last = node
        if len(node.args) < count:
            _pass_by_position(node, count)


def _pass_by_position(node: Node, count: int) -> None:
    arguments = node.target._schema.arguments[len(node.args) : count]
    keywords = dict(node.kwargs)
    node.args = (*node.args, *(keywords.pop(entry.name, entry.default_value) for entry in arguments))
    node.kwargs = keywords


def _put_back(directory: Path, delegate: LoweredBackendModule, blobs: dict[str, Any]) -> None:
    program = delegate.original_module
    program._state_dict = {name: _of_own_memory(tensor) for name, tensor in program.state_dict.items()}
    program._constants = {name: _of_own_memory(value) for name, value in program.constants.items()}
    delegate._processed_bytes = (directory / blobs["program"]).read_bytes()
    delegate.meta = {"debug_handle_map": _handle_map(blobs["debug_handles"])}
    if delegate.named_data_store_output is not None:
        delegate.named_data_store_output.buffers[:] = [
            releases.file_backed(directory / digest, bytes.fromhex(digest)) for digest in blobs["named_data"]
        ]
