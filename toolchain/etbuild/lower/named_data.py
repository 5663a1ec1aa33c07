"""Decides which blob of named data goes to which tag, so that a tag's file depends only on the tag's weights.

ExecuTorch 1.5 decides for each blob when it meets it. This module corrects three results of that. Backends lose the tag
when a pass makes a new constant. A blob that a tagged and an untagged parameter share goes to the place of its first
use. The order of blobs in a file follows the graph.

A tag that is split over several files has several shards. For ExecuTorch, each shard is a tag. A tag that is not split
has one shard with the tag's name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from executorch.backends.xnnpack._passes import decompose_batch_norm, fuse_batch_norm
from executorch.exir import EdgeProgramManager
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.program import _program
from torch.export import ExportedProgram

from etbuild import backends
from etbuild.errors import BuildError
from etbuild.lower import blob_weights
from etbuild.lower.blobs import Blob, BlobRequest, Claims, blob_bytes
from etbuild.lower.shards import tag_of_shard
from etbuild.lower.weight_sharing import Origin
from etbuild.model.tensor_bytes import Promised, flat_bytes
from etbuild.patching import replaced, replacing

_TAG = "delegate_constant_tag"  # ExecuTorch's own key, which XNNPACK reads


def tag_placeholders(program: ExportedProgram, shards: dict[str, str]) -> None:
    """Marks the placeholders of tagged parameters and buffers.

    Args:
        program: The method. The metadata of its placeholders is changed in place.
        shards: The shard of each tagged parameter or buffer, by its name in the module.
    """
    for node, name in weights(program):
        if name in shards:
            node.meta["custom"] = {**node.meta.get("custom", {}), _TAG: shards[name]}


def untag(node: torch.fx.Node) -> None:
    """Undoes `tag_placeholders` for one placeholder."""
    node.meta.get("custom", {}).pop(_TAG, None)


def shard_of(node: torch.fx.Node) -> str | None:
    """The shard of a placeholder; None if it has none or if no node reads it.

    ExecuTorch calls this for each constant that no backend took.
    """
    return node.meta.get("custom", {}).get(_TAG) if node.users else None


def weights(program: ExportedProgram) -> Iterator[tuple[torch.fx.Node, str]]:
    """The placeholders of parameters and buffers, each with its name in the module."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            yield node, names[node.name]


def tensor(program: ExportedProgram, name: str) -> torch.Tensor:
    """The content of a parameter or buffer, from the state dict or else from the constants.

    Args:
        program: The method.
        name: The name of the parameter or buffer in the module.
    """
    content = program.state_dict.get(name)
    return program.constants[name] if content is None else content


@contextmanager
def tag_folded_constants(shards: dict[str, str]) -> Iterator[None]:
    """Within this context, a constant keeps its tag when XNNPACK folds a BatchNorm into it.

    XNNPACK makes a new constant for this, and names it after the old one. It also keeps their names.

    Args:
        shards: The shard of each tagged parameter or buffer, by name.

    Raises:
        BuildError: On exit, if XNNPACK folded weights of different tags: a tag's file would depend on others.
    """
    function = "create_constant_placeholder"
    original = getattr(fuse_batch_norm, function)
    mixed: list[Origin] = []

    def create(**kwargs: Any) -> torch.fx.Node:
        folded = _folded_weights(kwargs["exp_program"], kwargs["graph"], kwargs["name"])
        node = original(**kwargs)
        blob_weights.note_origin(node, folded)
        owners = {shards.get(name) for name in folded}
        if len(_tags_of(owners)) > 1:
            mixed.append(folded)
        elif owners and owners != {None}:
            node.meta["custom"] = {**node.meta.get("custom", {}), _TAG: min(filter(None, owners))}
        return node

    with replaced(fuse_batch_norm, function, create), replaced(decompose_batch_norm, function, create):
        yield
    if mixed:
        names = {name: tag_of_shard(shards.get(name, "no tag")) for name in sorted(mixed[0])}
        shown = ", ".join(f"`{name}` ({tag})" for name, tag in names.items())
        message = f"XNNPACK merges weights of different tags into one: {shown}"
        raise BuildError.at(("named_data",), message, "put all of them under one tag")


def _tags_of(shards: set[str | None]) -> set[str | None]:
    """The tags of shards. None stays None: no tag."""
    return {None if shard is None else tag_of_shard(shard) for shard in shards}


def _folded_weights(program: ExportedProgram, graph: torch.fx.Graph, name: str) -> Origin:
    """Names of the weights that XNNPACK folds into a new constant: those of the layer in its name, and of the
    BatchNorm.

    The weight in the constant's name is first, or the BatchNorm's bias if the layer has no bias.
    """
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    sources = [
        node
        for node in graph.find_nodes(op="placeholder")
        if node.name in names and name.startswith(names[node.name].replace(".", "_"))
    ]
    if not sources:
        return ()
    source = max(sources, key=lambda node: len(names[node.name]))
    layers = list(source.users)
    norms = [each for layer in layers for each in (layer, *layer.users) if "batch_norm" in str(each.target)]
    operands = {node for layer in [*layers, *norms] for node in layer.all_input_nodes}
    folded = {names[node.name] for node in operands if node.name in names}
    first = names[source.name]
    if "_bias" in name[len(first) :]:
        biases = (norm.args[2] for norm in norms)  # of (input, weight, bias, ...)
        first = next((names[bias.name] for bias in biases if bias is not None and bias.name in names), first)
    return (first, *sorted(folded - {first}))


def delegates(graph_module: torch.fx.GraphModule) -> Iterator[LoweredBackendModule]:
    """Every delegate of a lowered graph, also those inside control flow, in the graph's order."""
    for node in graph_module.graph.nodes:
        if node.target is executorch_call_delegate:
            yield getattr(graph_module, node.args[0].target)
    for _, submodule, _ in get_control_flow_submodules(graph_module):
        yield from delegates(submodule)


def claims(edge: EdgeProgramManager, shards: dict[str, str], named: Iterable[str]) -> Claims:
    """Finds the shards that claim each blob of the delegates.

    If a backend's blobs depend only on weights (`named_data_is_weights`), and all weights of a delegate have one tag,
    its blobs have that tag. A blob of another backend has a tag if the backend gave it the tag, or if its bytes are
    those of a tagged weight. Any other blob may depend on the graph, and has no tag.

    Args:
        edge: The lowered methods.
        shards: The shard of each parameter that has a tag, by name.
        named: The backends that the plan names.

    Raises:
        BuildError: The owner of a blob cannot be determined, or a backend puts a blob under a tag that the manifest
            does not have.
    """
    by_key: Claims = {}
    for method in sorted(edge.methods):
        for delegate in delegates(edge.exported_program(method).graph_module):
            output = delegate.named_data_store_output
            if output is None:
                continue
            owners = {shards.get(name) for _, name in weights(delegate.original_module)}  # None: without a shard
            one_owner = len(_tags_of(owners)) == 1
            for shard, entries in output.external_data.items():
                _check_tag(shard, set(shards.values()), delegate.backend_id, method)
                for key in entries:
                    by_key.setdefault(key, set()).add(shard)
            only_weights = backends.named_data_is_weights(delegate.backend_id, named)
            made_of = blob_weights.of_delegate(delegate)  # without the numbers of the graph: they have no tag
            of_weights = [key for key in output.pte_data if made_of is None or key in made_of]
            for key in output.pte_data:
                by_key.setdefault(key, set()).update(owners if key in of_weights and only_weights and one_owner else ())
            if not (only_weights and one_owner):
                for key, shard in _claims_by_content(delegate, output, shards):
                    by_key[key].add(shard)
            if only_weights and not one_owner:
                _check_untagged(method, delegate, of_weights, _tags_of(owners), shards)
    return by_key


def _check_tag(tag: str, shards: set[str], backend: str, method: str) -> None:
    """Fails if a tag that a backend chose itself is not in the manifest, or is split into shards."""
    if tag in shards:
        return
    message = f"{backend} puts named data under the tag `{tag}`, which the manifest does not have"
    hint = f'add this tag with its weights, for example `named_data: {{{tag}: {{parameters: ["*"]}}}}`'
    if tag in map(tag_of_shard, shards):
        message = f"{backend} puts named data under the tag `{tag}`, which is split into shards by weight names"
        hint = "remove `shard_size` from this tag"
    raise BuildError.at(("methods", method, "partitioners"), message, hint)


def claims_compare_content(edge: EdgeProgramManager, shards: dict[str, str], named: Iterable[str]) -> bool:
    """Whether `claims` compares the content of blobs with that of tagged weights. It has the arguments of `claims`."""
    return any(
        delegate.named_data_store_output is not None
        and not (backends.named_data_is_weights(delegate.backend_id, named) and len(_tags_of(owners)) == 1)
        for method in edge.methods
        for delegate in delegates(edge.exported_program(method).graph_module)
        for owners in [{shards.get(name) for _, name in weights(delegate.original_module)}]
        if owners - {None}
    )


_add, _collect = NamedDataStore.add_named_data, _program.collect_named_data_store_from_exported_program


@replacing(NamedDataStore, "add_named_data")
def alignments_kept(
    store: NamedDataStore, key: str, data: Any, alignment: int | None = 1, *rest: Any, **named: Any
) -> None:
    """Adds a blob to a store, and keeps every alignment that a key is added with.

    ExecuTorch promises this, but keeps only the first alignment.
    """
    known = [entries[key] for entries in (store.pte_data, *store.external_data.values()) if key in entries]
    _add(store, key, data, alignment, *rest, **named)
    for entry in known:
        entry.alignment = math.lcm(entry.alignment, alignment or 1)


@replacing(_program, "collect_named_data_store_from_exported_program")
def clashes_told_later(program: ExportedProgram, store: NamedDataStore) -> None:
    """Collects named data and ignores conflicts in it: `arrange` reports them later, with their origin."""
    with suppress(ValueError):
        _collect(program, store)


def requests(edge: EdgeProgramManager) -> Iterator[tuple[str, BlobRequest]]:
    """Each blob that a delegate stores, with its key, in the order of the methods' names."""
    for method in sorted(edge.methods):
        for delegate in delegates(edge.exported_program(method).graph_module):
            output = delegate.named_data_store_output
            stores = (output.pte_data, *output.external_data.values()) if output is not None else ()
            for entries in stores:
                for key, entry in entries.items():
                    data = Blob(output.buffers[entry.buffer_index])
                    yield key, BlobRequest(method, delegate.backend_id, data, entry)


def _claims_by_content(
    delegate: LoweredBackendModule, output: NamedDataStoreOutput, shards: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Keys of blobs with the bytes of a tagged weight, and its shard. A backend stores equal weights as one blob."""
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
                if blob_bytes(blob) == tensor_content(weight):
                    yield key, shards[name]


def tensor_content(weight: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements in their logical order, or the recipe of a weight without content."""
    return weight.promise() if isinstance(weight, Promised) else bytes(flat_bytes(weight).numpy())


def _check_untagged(
    method: str, delegate: LoweredBackendModule, keys: Collection[str], owners: set[str | None], shards: dict[str, str]
) -> None:
    """Fails if a delegate with weights of several tags may have untagged blobs made of tagged weights.

    It may have as many untagged blobs as weights without a tag.
    """
    program = delegate.original_module
    untagged = [
        name
        for names in (program.state_dict, program.constants)
        for name, content in names.items()
        if name not in shards and isinstance(content, torch.Tensor)
    ]
    if len(keys) > len(untagged):
        shown = ", ".join(sorted(f"`{tag}`" for tag in owners if tag))
        raise BuildError.at(
            ("methods", method),
            f"{delegate.backend_id} made constants from weights of {shown} without a tag",
            "put all weights that it merges under one tag, for example with the pattern `*`",
        )
