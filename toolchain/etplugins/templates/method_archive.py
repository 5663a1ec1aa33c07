"""Saves and reads an emitted method as a directory, for the cache and for build rules.

method.json     why the method must be lowered with the content of weights, or else the weights it needs
emitted.json    the method: its plan, its facts, the digests of its blobs, and recipes for those made from weights
blobs/SHA256    constants that are no weights of the module, and what backends compiled; equal content is stored once

A method that was lowered without the content of weights is a template: all checkpoints of its architecture share it.
`load` binds it to the content of weights.

Whoever may write these files may run code anyway, so only damage is checked, by digests.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executorch.exir import schema
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.tensor_layout import TensorLayout

from etbuild.emit.emitted import Emitted, MethodFacts, TaggedWeight
from etbuild.emit.shared_buffers import Buffers, BufferUser, Planned
from etbuild.errors import InputError
from etbuild.files import json_file, writing
from etbuild.files.digests import canonical_json, file_digest
from etbuild.foreign_errors import wrap_library_errors
from etbuild.lower.blobs import Blob, BlobRequest, blob_bytes
from etbuild.lower.weight_sharing import WeightReader
from etplugins.accelerate.blob_files import FileBackedData
from etplugins.templates.binding import Binding, CannotBind
from etplugins.templates.recipes import MARK, Recipe, weights_of
from etplugins.templates.recipes import text as recipe_text

if TYPE_CHECKING:
    from etplugins.templates.unbound import UnboundBytes

_SCHEMA = "executorch-lowered-method/v8"
BLOBS = "blobs"
_METHOD, EMITTED = "method.json", "emitted.json"


@dataclass(frozen=True)
class SavedMethod:
    """What `read` returns. `load` reads the method itself.

    Attributes:
        directory: The directory that holds the method.
        name: The method's name.
        why_weights: Why it must be lowered with the content of its weights, for users; empty if it need not.
        emitted: The digest of the file with the method; empty if it must be lowered in another way.
        weights: The parameters and buffers whose content `load` needs.
        kinds: Those weights that the method uses: `parameter` or `buffer`, by name.
    """

    directory: Path
    name: str
    why_weights: list[str]
    emitted: str
    weights: list[str]
    kinds: dict[str, str]


@dataclass(frozen=True)
class Template:
    """What a method needs of weights if it was lowered without their content.

    Attributes:
        kinds: The weights that it uses, as `finite_weights.kinds` returns them.
        recipes: The recipes that stand for content, by digest.
        checks: Recipes whose functions check content.
    """

    kinds: dict[str, str]
    recipes: Mapping[str, UnboundBytes]
    checks: Sequence[Recipe] = ()


def write(directory: Path, name: str, emitted: Emitted, template: Template | None = None) -> None:
    """Saves an emitted method.

    Args:
        directory: An existing directory that contains nothing except blobs.
        name: The method's name.
        emitted: Only this method.
        template: Its needs of weights, if it was lowered without their content; else None.

    Raises:
        BuildError: A file cannot be written.
        ValueError: A recipe is in content, where `binding` would not find it.
    """
    (directory / BLOBS).mkdir(exist_ok=True)
    template = template or Template({}, {})
    recipes = {digest: [each.recipe, each.form] for digest, each in sorted(template.recipes.items())}

    def blob_facts(blob: Blob) -> str:
        """Saves a blob unless there is a recipe for it. Returns its digest."""
        if blob.sha256 not in recipes and not (directory / BLOBS / blob.sha256).exists():
            content = blob_bytes(blob.content)
            if template.recipes and MARK in content:
                raise ValueError("the content of a weight was changed or cut as bytes")
            writing.write(directory, f"{BLOBS}/{blob.sha256}", "lowered", content)
        return blob.sha256

    # The order of the notes depends on the number of processes.
    checks = sorted(template.checks, key=recipe_text)
    content = {"recipes": recipes, "checks": checks, "emitted": _to_json(emitted, blob_facts)}
    digest = writing.write(directory, EMITTED, "lowered", json.dumps(content, separators=(",", ":")).encode()).sha256
    needed = set(weights_of([*(recipe for recipe, _ in recipes.values()), *checks]))
    weights = sorted(needed | template.kinds.keys())
    _write_facts(directory, name, emitted=digest, weights=weights, kinds=template.kinds)


def write_why_weights(directory: Path, name: str, reasons: list[str]) -> None:
    """Saves why a method must be lowered with the content of its weights.

    Args:
        directory: An existing directory. `read` ignores other files in it.
        name: The method's name.
        reasons: The reasons, for users.

    Raises:
        BuildError: The file cannot be written.
    """
    _write_facts(directory, name, why_weights=reasons)


def _write_facts(directory: Path, name: str, **facts: object) -> None:
    others: dict[str, object] = {"why_weights": [], "emitted": "", "weights": [], "kinds": {}}
    content = canonical_json({"schema": _SCHEMA, "name": name, **others, **facts})
    writing.write(directory, _METHOD, "lowered", content)


def read(directory: Path, name: str) -> SavedMethod:
    """Reads the facts about a saved method, without its content.

    Args:
        directory: The directory that `write` or `write_why_weights` filled.
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
    del facts["schema"]
    return SavedMethod(directory, **facts)


def operators(method: SavedMethod) -> list[str]:
    """The operators that a saved method calls in the runtime, such as `aten::sort.values`; none if it was not lowered.

    Args:
        method: The method.
    """
    if not method.emitted:
        return []
    found: list[str] = []
    waiting: list[Any] = [json.loads((method.directory / EMITTED).read_bytes())]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict) and [*each] == [schema.Operator.__name__]:
            found.append(".".join(part for part in each[schema.Operator.__name__] if part))
        elif isinstance(each, dict | list):
            waiting += each.values() if isinstance(each, dict) else each
    return sorted(found)


def load(method: SavedMethod, binding: Binding) -> Emitted:
    """Reads a method and its blobs, with the content of weights.

    Args:
        method: What `read` returned. Its `emitted` is not empty.
        binding: Has the weights of the method. Methods of a program share it.

    Raises:
        InputError: A file is damaged.
        CannotBind: The content of weights does not fit.
    """

    def read_blob(digest: str) -> Blob:
        known.add(digest)
        if digest in binding:
            return binding.blob(digest)
        if file_digest(blobs / digest) != digest:
            raise ValueError(f"{digest} is damaged")
        return Blob(FileBackedData(str(blobs / digest), sha256=bytes.fromhex(digest)), digest)

    blobs, known = method.directory / BLOBS, set[str]()
    with wrap_library_errors(InputError, ("methods", method.name), "cannot load the lowered method"):
        data = (method.directory / EMITTED).read_bytes()
        if hashlib.sha256(data).hexdigest() != method.emitted:
            raise ValueError(f"{EMITTED} is damaged")
        content = json.loads(data)
        written = {*_blobs(content["emitted"])}
    binding.learn(content["recipes"], content["checks"], written)
    with wrap_library_errors(InputError, ("methods", method.name), "cannot load the lowered method"):
        emitted: Emitted = _from_json(content["emitted"], read_blob, binding.text)
        if content["recipes"]:
            emitted = _with_bound_delegates(emitted, binding)
    if emitted.compares_content and binding.has_equal(known | content["recipes"].keys()):
        raise CannotBind("weights with equal content may have several tags")
    return emitted


def _with_bound_delegates(emitted: Emitted, binding: Binding) -> Emitted:
    """A method whose delegates name the blobs of named data by the digests of their content."""
    digests = {}
    for index, blob in enumerate(emitted.delegates):  # read into memory, as they may go into the program's flatbuffer
        bound = Blob(binding.compiled(blob_bytes(blob.content)))
        digests[blob.sha256], emitted.delegates[index] = bound.sha256, bound
    facts = {name: _renamed(facts, digests) for name, facts in emitted.facts.items()}
    return replace(emitted, facts=facts, bound=True)


def _renamed(facts: MethodFacts, digests: Mapping[str, str]) -> MethodFacts:
    readers = [replace(each, program=digests.get(each.program, each.program)) for each in facts.readers]
    return replace(facts, readers=readers)


def _blobs(data: Any) -> Iterator[str]:
    """The digests of the blobs in what `_to_json` returned."""
    if isinstance(data, dict) and isinstance(data.get("Blob"), str):
        yield data["Blob"]
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from _blobs(each)


# The types of the parts of a method: ExecuTorch's, and ours.
_TYPES: dict[str, type] = {
    name: kind
    for name, kind in vars(schema).items()
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum))
}
_OURS = (Emitted, MethodFacts, TaggedWeight, WeightReader, Buffers, BufferUser, Planned, BlobRequest)
_TYPES.update({kind.__name__: kind for kind in (TensorLayout, DataEntry, tuple, set, *_OURS)})


def _to_json(value: Any, blob_facts: Callable[[Blob], str]) -> Any:
    """Converts a part of a method to JSON data: an object names its type, and has an element for each field."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_to_json(each, blob_facts) for each in value]
    if isinstance(value, dict):
        return {"": {key: _to_json(each, blob_facts) for key, each in value.items()}}
    if isinstance(value, (tuple, set)):
        ordered = sorted(value, key=str) if isinstance(value, set) else value
        return {"set" if isinstance(value, set) else "tuple": [_to_json(each, blob_facts) for each in ordered]}
    if isinstance(value, (bytes, bytearray)):
        if MARK in value:
            raise ValueError("the content of a weight is a part of the program's own data")
        return {"bytes": bytes(value).hex()}
    if isinstance(value, Blob):
        return {"Blob": blob_facts(value)}
    name = type(value).__name__
    if _TYPES.get(name) is not type(value):
        raise TypeError(f"a lowered method with {type(value)}")
    if isinstance(value, enum.Enum):
        return {name: value.value}
    return {name: [_to_json(getattr(value, field.name), blob_facts) for field in dataclasses.fields(_TYPES[name])]}


def _from_json(data: Any, read_blob: Callable[[str], Blob], bound: Callable[[str], str]) -> Any:
    """Reverses `_to_json`. `bound` replaces digests of recipes by those of content in each text."""
    if isinstance(data, str):
        return bound(data)
    if isinstance(data, list):
        return [_from_json(each, read_blob, bound) for each in data]
    if not isinstance(data, dict):
        return data
    ((name, value),) = data.items()
    if name == "":
        return _joined({key: _from_json(each, read_blob, bound) for key, each in value.items()}, bound)
    if name == "bytes":
        return bytes.fromhex(value)
    if name == "Blob":
        return read_blob(value)
    kind = _TYPES[name]
    if issubclass(kind, enum.Enum):
        return kind(value)
    fields = [_from_json(each, read_blob, bound) for each in value]
    return kind(fields) if kind in (tuple, set) else kind(*fields)


def _joined(data: dict[str, Any], bound: Callable[[str], str]) -> dict[str, Any]:
    """A mapping with bound keys. If two recipes have the same content, the first value counts; sets are joined."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        known = found.setdefault(bound(key), value)
        if isinstance(known, set):
            known |= value
    return found
