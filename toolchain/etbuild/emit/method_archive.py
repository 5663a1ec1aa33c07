"""Saves and reads an emitted method as a directory, for the cache and for build rules.

method.json     facts about the method, or why it cannot be lowered by itself
plan.json       ExecuTorch's execution plan of the method
blobs/SHA256    constants that are no weights of the module, and what backends compiled; equal content is stored once
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir import schema
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.tensor_layout import TensorLayout

from etbuild import releases
from etbuild.emit import mutable_buffers
from etbuild.emit.emit_methods import Blob, Emitted, MethodFacts, TaggedWeight
from etbuild.emit.mutable_buffers import Buffers, Part, Planned
from etbuild.errors import InputError
from etbuild.files import artifacts, json_file
from etbuild.files.digests import canonical_json, file_digest
from etbuild.foreign_errors import wrap_library_errors
from etbuild.lower import named_data, weight_sharing
from etbuild.lower.named_data import Request

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer

_SCHEMA = "executorch-lowered-method/v4"
BLOBS = "blobs"
_METHOD, _PLAN = "method.json", "plan.json"
_KINDS = ("constants", "mutable", "delegates", "external")


@dataclass(frozen=True)
class SavedMethod:
    """What `read` returns: the facts of a saved method. `load` reads its plan and its blobs.

    Attributes:
        directory: The directory that holds the method.
        name: The method's name.
        why_not: Why it could not be lowered by itself; else None.
        facts: The facts as JSON data. They are empty if there is a reason in `why_not`.
    """

    directory: Path
    name: str
    why_not: str | None
    facts: dict[str, Any]

    @property
    def weights(self) -> set[str]:
        """The names of the parameters and buffers whose content `load` needs."""
        return {blob["weight"] for kind in _KINDS for blob in self.facts[kind] if "weight" in blob}


def write(directory: Path, name: str, emitted: Emitted, content: dict[str, torch.Tensor]) -> None:
    """Saves an emitted method.

    Args:
        directory: An existing directory that contains nothing except blobs.
        name: The method's name.
        emitted: Only this method.
        content: The module's parameters and buffers by name, if lowering left their content as it was. It is not saved.

    Raises:
        BuildError: A file cannot be written.
    """
    (directory / BLOBS).mkdir(exist_ok=True)
    plan = _dumped(emitted.plans)
    if _dumped(_from_json(json.loads(plan))) != plan:
        raise AssertionError(f"the plan of `{name}` is something else when it is read")
    weights = {digest: name for digest, (name, weight) in emitted.weights.items() if _same(weight, content.get(name))}
    facts = {
        "plan": artifacts.write(directory, _PLAN, "lowered", plan).sha256,
        **{kind: [_write_blob(directory, blob, weights) for blob in getattr(emitted, kind)] for kind in _KINDS},
        "external_names": emitted.external_names,
        "requests": [_request_facts(directory, key, request) for key, request in emitted.requests],
        "claims": {key: sorted(shards, key=str) for key, shards in emitted.claims.items()},
        "non_finite": emitted.non_finite,
        **_facts(emitted.facts[name]),
    }
    _write_facts(directory, {"name": name, "why_not": None, **facts})


def _dumped(plans: list[schema.ExecutionPlan]) -> bytes:
    return json.dumps(_to_json(plans), separators=(",", ":")).encode()


def _facts(facts: MethodFacts) -> dict[str, Any]:
    return {
        "operators": facts.operators,
        "graph": facts.graph,
        "places": [place.facts() for place in facts.places],
        "tagged": {name: dataclasses.asdict(weight) for name, weight in facts.tagged.items()},
        "trained": facts.trained,
        "buffers": None if facts.buffers is None else dataclasses.asdict(facts.buffers),
        "instructions": facts.instructions,
    }


def _same(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether two tensors view the same memory with the same dtype, shape and strides."""
    return other is not None and bool(
        tensor.data_ptr() == other.data_ptr()
        and tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )


def _write_blob(directory: Path, blob: Blob, weights: dict[str, str]) -> dict[str, str]:
    """Saves a blob unless the module has it, and returns its digest, and the weight's name if the module has it."""
    if blob.sha256 in weights:
        return {"sha256": blob.sha256, "weight": weights[blob.sha256]}
    _write(directory, blob.sha256, blob.content)
    return {"sha256": blob.sha256}


def _request_facts(directory: Path, key: str, request: Request) -> dict[str, Any]:
    digest = releases.sha256_of(request.data).hex()
    _write(directory, digest, request.data)
    layout = request.entry.tensor_layout
    return {
        "key": key,
        "method": request.method,
        "backend": request.backend,
        "sha256": digest,
        "alignment": request.entry.alignment,
        "layout": None if layout is None else _to_json(layout),
    }


def _write(directory: Path, digest: str, content: CordBuffer) -> None:
    if not (directory / BLOBS / digest).exists():
        artifacts.write(directory, f"{BLOBS}/{digest}", "lowered", named_data.blob_bytes(content))


def write_reason(directory: Path, name: str, reason: str) -> None:
    """Saves why a method must be lowered together with the others.

    Args:
        directory: An existing empty directory.
        name: The method's name.
        reason: The reason, for users.

    Raises:
        BuildError: The file cannot be written.
    """
    _write_facts(directory, {"name": name, "why_not": reason})


def _write_facts(directory: Path, facts: dict[str, Any]) -> None:
    artifacts.write(directory, _METHOD, "lowered", canonical_json({"schema": _SCHEMA, **facts}))


def read(directory: Path, name: str) -> SavedMethod:
    """Reads the facts of a saved method. `load` reads the rest.

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
    return SavedMethod(directory, name, facts["why_not"], facts)


class Content:
    """The content that several methods need. It keeps the bytes of each tensor once, and checks each file once.

    Args:
        tensors: The parameters and buffers by name.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._bytes: dict[str, bytes] = {}
        self._files: dict[Path, CordBuffer] = {}

    def of(self, name: str, digest: str) -> bytes:
        """The bytes of a tensor.

        Raises:
            ValueError: The tensor has another digest.
        """
        if digest not in self._bytes:
            content = named_data.tensor_content(self._tensors[name])
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError(f"the weight `{name}` is not the one that the method was lowered with")
            self._bytes[digest] = content
        return self._bytes[digest]

    def in_file(self, file: Path) -> CordBuffer:
        """A blob in a file that is named after its digest.

        Raises:
            ValueError: The file is damaged.
        """
        if file not in self._files:
            if file_digest(file) != file.name:
                raise ValueError(f"{file.name} is damaged")
            self._files[file] = releases.file_backed(file, bytes.fromhex(file.name))
        return self._files[file]


def load(method: SavedMethod, content: Content) -> Emitted:
    """Reads the plan and the blobs of a method.

    Args:
        method: What `read` returned. `why_not` is None.
        content: The content of the parameters and buffers in the method's `weights`.

    Raises:
        InputError: A file is damaged, or does not fit the others.
    """
    facts, where = method.facts, method.directory
    with wrap_library_errors(InputError, ("methods", method.name), "cannot load the lowered method"):
        plan = (where / _PLAN).read_bytes()
        if hashlib.sha256(plan).hexdigest() != facts["plan"]:
            raise ValueError(f"{_PLAN} is damaged")
        plans = _from_json(json.loads(plan))
        kinds = {kind: [_blob(where, blob, content) for blob in facts[kind]] for kind in _KINDS}
        for blob in kinds["delegates"]:  # they may become a part of the program's flatbuffer
            blob.content = named_data.blob_bytes(blob.content)
        _check_plans(method.name, plans, facts)
        return Emitted(
            plans=plans,
            **kinds,
            external_names=facts["external_names"],
            weights={},
            requests=[_request(where, request, content) for request in facts["requests"]],
            claims={key: set(shards) for key, shards in facts["claims"].items()},
            non_finite=facts["non_finite"],
            facts={method.name: read_facts(facts)},
        )


def read_facts(facts: dict[str, Any]) -> MethodFacts:
    """Reads the facts that do not need the plan.

    Args:
        facts: The facts of a `SavedMethod` that could be lowered by itself.
    """
    buffers = facts["buffers"]
    return MethodFacts(
        facts["operators"],
        facts["graph"],
        [weight_sharing.read(place) for place in facts["places"]],
        {name: TaggedWeight(**weight) for name, weight in facts["tagged"].items()},
        facts["trained"],
        None
        if buffers is None
        else Buffers(
            [Part(**part) for part in buffers["parts"]],
            {name: (form, digest) for name, (form, digest) in buffers["contents"].items()},
            [Planned(**each) for each in buffers["planned"]],
            buffers["unplanned"],
        ),
        facts["instructions"],
    )


def _check_plans(name: str, plans: Any, facts: dict[str, Any]) -> None:
    """Raises ValueError if plans do not fit the facts beside them."""
    if not (isinstance(plans, list) and plans and all(type(plan) is schema.ExecutionPlan for plan in plans)):
        raise ValueError("it has no plan")
    (plan, *added) = plans
    tensors = [value.val for each in plans for value in each.values if isinstance(value.val, schema.Tensor)]
    delegates = [delegate.processed.index for each in plans for delegate in each.delegates]
    external = [number for names in facts["external_names"].values() for number in names.values()]
    fits = [
        plan.name == name and all(each.name != name for each in added),
        all(_number_fits(tensor, facts) for tensor in tensors),
        all(0 <= number < len(facts["delegates"]) for number in delegates),
        all(number < len(facts["external"]) for number in external),
        {request["key"] for request in facts["requests"]} <= facts["claims"].keys(),
    ]
    if facts["buffers"] is not None:
        planned = [Planned(**each) for each in facts["buffers"]["planned"]]
        fits += [len(plan.non_const_buffer_sizes) > mutable_buffers.ARENA]
        fits += [mutable_buffers.has_place(tensor, planned) for tensor in tensors]
    if not all(fits):
        raise ValueError("its plan does not fit its other facts")


def _number_fits(tensor: schema.Tensor, facts: dict[str, Any]) -> bool:
    info = tensor.extra_tensor_info
    if info is not None and info.location == schema.TensorDataLocation.EXTERNAL:
        return bool(0 <= tensor.data_buffer_idx < len(facts["external"]))
    kind = "constants" if tensor.allocation_info is None else "mutable"
    return bool(0 <= tensor.data_buffer_idx < len(facts[kind]))


def _blob(where: Path, blob: dict[str, str], content: Content) -> Blob:
    digest = blob["sha256"]
    if "weight" in blob:
        return Blob(content.of(blob["weight"], digest), digest)
    return Blob(content.in_file(where / BLOBS / digest), digest)


def _request(where: Path, facts: dict[str, Any], content: Content) -> tuple[str, Request]:
    layout = None if facts["layout"] is None else _from_json(facts["layout"])
    entry = DataEntry(0, facts["alignment"], layout)
    data = content.in_file(where / BLOBS / facts["sha256"])
    return facts["key"], Request(facts["method"], facts["backend"], data, entry)


# The types of ExecuTorch's plans. Nothing else is made from the names in a file.
_TYPES = {
    name: kind
    for name, kind in [*vars(schema).items(), (TensorLayout.__name__, TensorLayout)]
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum))
}


def _to_json(value: Any) -> Any:
    """Converts a part of a plan to JSON data: an object names its type, and has an element for each field."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):  # ExecuTorch writes both in the same way
        return [_to_json(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    name = type(value).__name__
    if _TYPES.get(name) is not type(value):
        raise TypeError(f"a plan with {type(value)}")
    if isinstance(value, enum.Enum):
        return {name: value.value}
    return {name: [_to_json(getattr(value, field.name)) for field in dataclasses.fields(value)]}


def _from_json(data: Any) -> Any:
    """Reverses `_to_json`."""
    if isinstance(data, list):
        return [_from_json(each) for each in data]
    if not isinstance(data, dict):
        return data
    ((name, content),) = data.items()
    if name == "bytes":
        return bytes.fromhex(content)
    kind = _TYPES[name]
    return kind(content) if issubclass(kind, enum.Enum) else kind(*map(_from_json, content))
