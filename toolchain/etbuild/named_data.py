"""Named data: which blob goes to which tag, so that a tag's file depends on its weights alone.

ExecuTorch decides blob by blob, in the order in which it meets them. Three things need help: backends lose the tag
where a pass makes a new constant; a blob that a tagged and an untagged parameter have in common lands where it was met
first; and the order of blobs in a file follows the graph. Written against ExecuTorch 1.5.

A tag that is split over several files has several shards, each of which is a tag to ExecuTorch. What is said here of
shards holds for a whole tag too, which is its own only shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.xnnpack._passes import decompose_batch_norm, fuse_batch_norm
from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.extension.flat_tensor.serialize.flat_tensor_schema import FlatTensor
from executorch.extension.flat_tensor.serialize.serialize import (
    FlatTensorConfig,
    FlatTensorHeader,
    FlatTensorSerializer,
)
from torch.export import ExportedProgram

from etbuild import versions
from etbuild.errors import BuildError, Problem
from etbuild.program_file import named_data_content
from etbuild.tensors import tag_of_shard

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer

_TAG = "delegate_constant_tag"  # ExecuTorch's own key, which XNNPACK reads

Claims = dict[str, set[str | None]]
"""By the key of each blob the shards whose weights it holds; None for weights without one."""


def tag_placeholders(program: ExportedProgram, shards: dict[str, str]) -> None:
    """Marks the placeholders of tagged parameters and buffers, by the names that they have in the module."""
    for node, name in weights(program):
        if name in shards:
            node.meta["custom"] = {**node.meta.get("custom", {}), _TAG: shards[name]}


def untag(node: torch.fx.Node) -> None:
    """Undoes `tag_placeholders` for one of them."""
    node.meta.get("custom", {}).pop(_TAG, None)


def shard_of(node: torch.fx.Node) -> str | None:
    """The shard of a placeholder that something reads; ExecuTorch calls it for each constant that no backend took."""
    return node.meta.get("custom", {}).get(_TAG) if node.users else None


def weights(program: ExportedProgram) -> Iterator[tuple[torch.fx.Node, str]]:
    """The placeholders of parameters and buffers, each with its name in the module."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            yield node, names[node.name]


def tensor(program: ExportedProgram, name: str) -> torch.Tensor:
    """The content of a parameter or buffer. Those that are not in the state dict are among the constants."""
    content = program.state_dict.get(name)
    return program.constants[name] if content is None else content


@contextmanager
def tag_folded_constants(shards: dict[str, str]) -> Iterator[None]:
    """Keeps the tag where XNNPACK folds a BatchNorm into a new constant, which it names after the old one.

    Raises:
        BuildError: At the end: what was folded together does not have one tag, so that a file would depend on other
            weights too.
    """
    modules = (fuse_batch_norm, decompose_batch_norm)
    originals = [module.create_constant_placeholder for module in modules]
    mixed: list[set[str]] = []

    def create(**kwargs: Any) -> torch.fx.Node:
        folded = _folded_weights(kwargs["exp_program"], kwargs["graph"], kwargs["name"])
        node = originals[0](**kwargs)
        owners = {shards.get(name) for name in folded}
        if len(_tags_of(owners)) > 1:
            mixed.append(folded)
        elif owners and owners != {None}:
            node.meta["custom"] = {**node.meta.get("custom", {}), _TAG: min(filter(None, owners))}
        return node

    for module in modules:
        module.create_constant_placeholder = create
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.create_constant_placeholder = original
    if mixed:
        names = {name: tag_of_shard(shards.get(name, "no tag")) for name in sorted(mixed[0])}
        shown = ", ".join(f"`{name}` ({tag})" for name, tag in names.items())
        raise BuildError(
            [
                Problem(
                    f"XNNPACK folds weights of different tags into one: {shown}",
                    ("named_data",),
                    "put all of them under one tag",
                )
            ]
        )


def _tags_of(shards: set[str | None]) -> set[str | None]:
    """The tags of some shards; None for what has no tag."""
    return {None if shard is None else tag_of_shard(shard) for shard in shards}


def _folded_weights(program: ExportedProgram, graph: torch.fx.Graph, name: str) -> set[str]:
    """Names of the weights that a new constant is made of: of the layer that it is named after, and its BatchNorm."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    sources = [
        node
        for node in graph.find_nodes(op="placeholder")
        if node.name in names and name.startswith(names[node.name].replace(".", "_"))
    ]
    if not sources:
        return set()
    layers = list(max(sources, key=lambda node: len(names[node.name])).users)
    norms = [user for layer in layers for user in layer.users if "batch_norm" in str(user.target)]
    operands = {node for layer in [*layers, *norms] for node in layer.all_input_nodes}
    return {names[node.name] for node in operands if node.name in names}


def delegates(graph_module: torch.fx.GraphModule) -> Iterator[LoweredBackendModule]:
    """Every delegate of a lowered graph, those inside control flow too, in the graph's order."""
    for node in graph_module.graph.nodes:
        if node.target is executorch_call_delegate:
            yield getattr(graph_module, node.args[0].target)
    for _, submodule, _ in get_control_flow_submodules(graph_module):
        yield from delegates(submodule)


def claims(edge: EdgeProgramManager, shards: dict[str, str]) -> Claims:
    """Finds out which shards want each blob of the delegates.

    XNNPACK stores weights alone: a blob of one of its delegates whose weights all have one tag has that tag. Of other
    backends' blobs those go to a tag that the backend puts there, or that are a tagged weight byte for byte; the rest
    may depend on the graph.

    Raises:
        BuildError: Nothing says whose a blob is.
    """
    found: Claims = {}
    for method in sorted(edge.methods):
        for delegate in delegates(edge.exported_program(method).graph_module):
            output = delegate.named_data_store_output
            if output is None:
                continue
            owners = _owners(delegate, shards)
            one_owner = len(_tags_of(owners)) == 1
            for shard, entries in output.external_data.items():
                for key in entries:
                    found.setdefault(key, set()).add(shard)
            weights_alone = delegate.backend_id == "XnnpackBackend"
            for key in output.pte_data:
                found.setdefault(key, set()).update(owners if weights_alone and one_owner else ())
            if not (weights_alone and one_owner):
                for key, shard in _claims_by_content(delegate, output, shards):
                    found[key].add(shard)
            if weights_alone and not one_owner:
                _check_untagged(method, delegate, output.pte_data, _tags_of(owners), shards)
    return found


def arrange(edge: EdgeProgramManager, claims: Claims) -> None:
    """Gives each blob of the delegates its final place, whatever order they came in.

    A blob that a tagged and an untagged weight have in common goes to the tag, one that shards of a tag have in common
    to the first of them.

    Args:
        edge: The lowered methods.
        claims: Of all of them.

    Raises:
        BuildError: Two tags claim a blob.
    """
    stores = [
        delegate.named_data_store_output
        for method in sorted(edge.methods)
        for delegate in delegates(edge.exported_program(method).graph_module)
        if delegate.named_data_store_output is not None
    ]
    blobs = {
        key: (store.buffers[entry.buffer_index], entry)
        for store in stores
        for entries in (store.pte_data, *store.external_data.values())
        for key, entry in entries.items()
    }
    arranged = NamedDataStore()
    for key in sorted(blobs):
        data, entry = blobs[key]
        arranged.add_named_data(key, data, entry.alignment, _only_shard(claims[key], len(data)), entry.tensor_layout)
    edge._named_data_store = arranged


def _only_shard(claims: set[str | None], size: int) -> str | None:
    shards = sorted(shard for shard in claims if shard is not None)
    found = sorted({tag_of_shard(shard) for shard in shards})
    if len(found) > 1:
        raise BuildError(
            [
                Problem(
                    f"the tags {' and '.join(f'`{tag}`' for tag in found)} have a weight of the same content ({size} "
                    "bytes; a bias of zeros?), and the runtime refuses a blob that is in two files",
                    ("named_data", found[-1]),
                    "leave that weight out of the patterns of one of them",
                )
            ]
        )
    return shards[0] if shards else None


def _owners(delegate: LoweredBackendModule, shards: dict[str, str]) -> set[str | None]:
    """The shards of the weights that a delegate took; None for weights without one."""
    return {shards.get(name) for _, name in weights(delegate.original_module)}


def _claims_by_content(
    delegate: LoweredBackendModule, output: NamedDataStoreOutput, shards: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Keys of blobs that are a tagged weight as it is, with its shard: of equal blobs a backend keeps one."""
    program = delegate.original_module
    by_size: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for _, name in weights(program):
        if name in shards:
            weight = tensor(program, name)
            by_size.setdefault(weight.nbytes, []).append((name, weight))
    for entries in (output.pte_data, *output.external_data.values()):
        for key, entry in entries.items():
            blob = output.buffers[entry.buffer_index]
            for name, weight in by_size.get(len(blob), ()):
                if blob_bytes(blob) == _tensor_content(weight):
                    yield key, shards[name]


def blob_bytes(blob: CordBuffer) -> bytes:
    """The bytes of a blob, which may lie in a file."""
    return blob.to_bytes() if versions.is_file_backed(blob) else bytes(blob)


def _tensor_content(weight: torch.Tensor) -> bytes:
    return bytes(weight.detach().contiguous().view(-1).view(torch.uint8).numpy())


def _check_untagged(
    method: str,
    delegate: LoweredBackendModule,
    keys: dict[str, Any],
    owners: set[str | None],
    shards: dict[str, str],
) -> None:
    """In a delegate of several owners, what has no tag must come from weights without one."""
    program = delegate.original_module
    untagged = [
        name
        for names in (program.state_dict, program.constants)
        for name, content in names.items()
        if name not in shards and isinstance(content, torch.Tensor)
    ]
    if len(keys) > len(untagged):
        shown = ", ".join(sorted(f"`{tag}`" for tag in owners if tag))
        raise BuildError(
            [
                Problem(
                    f"{delegate.backend_id} made constants of weights of {shown} that it does not say the tag of",
                    ("methods", method),
                    "put all weights that it folds into one another under one tag: `*` is all of them",
                )
            ]
        )


def keys(delegate: LoweredBackendModule) -> set[str]:
    """The keys of all blobs that a delegate reads at run time."""
    output = delegate.named_data_store_output
    return set() if output is None else set(output.pte_data).union(*output.external_data.values())


def portable_weights(edge: EdgeProgramManager, shard: str) -> set[str]:
    """Names of a shard's constants that no delegate took. What a method writes to, such as a cache, is no constant."""
    programs = [edge.exported_program(method) for method in edge.methods]
    return {
        name
        for program in programs
        for node, name in weights(program)
        if shard_of(node) == shard and name not in program.graph_signature.buffers_to_mutate.values()
    }


def files_by_shard(edge: EdgeProgramManager, manager: ExecutorchProgramManager, alignment: int) -> dict[str, Cord]:
    """The content of each named-data file, with the blobs in the order of their keys, not of the graph."""
    alignments = {
        key: entry.alignment
        for entries in edge._named_data_store.external_data.values()
        for key, entry in entries.items()
    }
    serializer = FlatTensorSerializer(FlatTensorConfig(segment_alignment=alignment))
    files = {}
    for shard, file in sorted((manager._tensor_data or {}).items()):
        content, blobs = _pieces(file)
        entries = {
            named.key: DataEntry(named.segment_index, alignments.get(named.key, 1), named.tensor_layout)
            for named in sorted(content.named_data, key=lambda named: named.key)
        }
        files[shard] = serializer.serialize(DataPayload(blobs, entries))
    return files


def _pieces(file: Cord) -> tuple[FlatTensor, list[CordBuffer]]:
    """What a named-data file says of its blobs, and the blobs as they are, on disk or in memory."""
    pieces, end = {}, 0
    for piece in file._buffers:
        if len(piece):
            pieces[end] = piece
        end += len(piece)
    head = blob_bytes(pieces[0])
    content, start = named_data_content(head), FlatTensorHeader.from_bytes(head[8:]).segment_base_offset
    return content, [pieces[start + segment.offset] if segment.size else b"" for segment in content.segments]
