"""Derives the identifiers of Core ML models from their content.

Core ML's tools and ExecuTorch's backend give each model random UUIDs: in its package's manifest, in its metadata, and
as the key of its named data. They also write the current date, and maps in an order that differs in each process.
Devices cache compiled models by identifier, so the identifier must not be constant: here, two models have the same
identifier only if they are equal.

Written against ExecuTorch 1.5 and coremltools 9.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import coremltools
from coremltools.models.model import _METADATA_CONVERSION_DATE
from executorch.backends.apple.coreml.compiler import coreml_preprocess
from executorch.backends.apple.coreml.compiler.coreml_preprocess import CoreMLBackend
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir.backend.backend_details import PreprocessResult

from etbuild.patching import replaced
from etplugins.coreml import model_files

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:rules-executorch:core-ml-model")

Results = dict[str, list[PreprocessResult]]


@contextlib.contextmanager
def derived_from_content() -> Iterator[None]:
    """Returns a context manager in which Core ML's backend always makes the same bytes from the same methods."""
    flatten = coreml_preprocess.executorchcoreml.flatten_directory_contents
    preprocess = CoreMLBackend.preprocess_multimethod
    random: list[str] = []

    def recorded_uuid4() -> uuid.UUID:
        identifier = uuid.uuid4()  # ExecuTorch also names temporary directories after it
        random.append(str(identifier))
        return identifier

    def flatten_settled(directory: str) -> Any:
        for package in sorted(Path(directory).glob("*.mlpackage")):
            _settle_package(package)
        return _in_order(flatten(directory))

    def preprocess_multimethod(cls: Any, programs: Any, specs: Any) -> Results:
        del cls
        random.clear()
        results: Results = preprocess(programs, specs)
        return _rename(results, random)

    library = SimpleNamespace(flatten_directory_contents=flatten_settled)
    with (
        replaced(coreml_preprocess, "executorchcoreml", library),
        replaced(coreml_preprocess, "uuid", SimpleNamespace(uuid4=recorded_uuid4)),
        replaced(CoreMLBackend, "preprocess_multimethod", classmethod(preprocess_multimethod)),
    ):
        yield


def _in_order(flat: bytes) -> bytes:
    """Sorts the files of a flattened directory by name: the order of a file system varies."""
    every = model_files.nodes(flat)
    contents, ordered = bytearray(), []

    def add(number: int) -> int:
        node = every[number]
        children = {name: add(child) for name, child in sorted(node["children"].items())}
        start, size = node["dataRegion"]["offset"], node["dataRegion"]["size"]
        region = {"offset": len(contents) if size else 0, "size": size}
        contents.extend(memoryview(flat)[start : start + size])
        ordered.append({**node, "children": children, "dataRegion": region})
        return len(ordered) - 1

    add(len(every) - 1)
    text = json.dumps({"nodes": ordered}, sort_keys=True, separators=(",", ":"))
    return bytes(contents) + text.encode("latin-1")[::-1]


def _settle_package(package: Path) -> None:
    """Rewrites a package's protocol buffer and its manifest in a fixed order and without the date, and names its items
    after their content."""
    for path in sorted(package.rglob("*.mlmodel")):
        model = coremltools.proto.Model_pb2.Model()
        model.ParseFromString(path.read_bytes())
        metadata = model.description.metadata.userDefined
        if _METADATA_CONVERSION_DATE in metadata:
            del metadata[_METADATA_CONVERSION_DATE]
        path.write_bytes(model.SerializeToString(deterministic=True))
    manifest = package / "Manifest.json"
    content = json.loads(manifest.read_bytes())
    names = {
        name: str(_from_digest(_digest_of_item(item, package / "Data" / item["path"])))
        for name, item in content["itemInfoEntries"].items()
    }
    content["itemInfoEntries"] = {names[name]: item for name, item in content["itemInfoEntries"].items()}
    content["rootModelIdentifier"] = names[content["rootModelIdentifier"]]
    manifest.write_text(json.dumps(content, sort_keys=True, indent=4), "utf-8")


def _digest_of_item(item: dict[str, str], place: Path) -> bytes:
    """Returns the digest of an item's entry in the manifest and of the content of its file or directory."""
    state = hashlib.sha256(json.dumps(item, sort_keys=True).encode())
    for path in [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file()):
        state.update(path.relative_to(place.parent).as_posix().encode() + b"\0")
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.digest()


def _from_digest(digest: bytes) -> uuid.UUID:
    return uuid.uuid5(_NAMESPACE, digest.hex())


def _rename(results: Results, random: list[str]) -> Results:
    """Replaces each random identifier by one that is derived from the model that contains it.

    Both have the same length, so no offset changes.
    """
    every = [result for of_method in results.values() for result in of_method]
    stores = {id(result.data_store_output): result.data_store_output for result in every}
    stores.pop(id(None), None)
    models = [bytes(result.processed_bytes) for result in every]
    models += [bytes(blob) for store in stores.values() for blob in store.buffers]
    names = {}
    for name in random:
        model = next((model for model in models if f'"executorch_{name}"'.encode() in model), None)
        if model is not None:
            blank = model.replace(name.encode(), b"\0" * len(name))
            names[name] = str(_from_digest(hashlib.sha256(blank).digest()))
    renamed = {place: _rename_store(store, names) for place, store in stores.items()}
    for result in every:
        result.processed_bytes = _replace(bytes(result.processed_bytes), names)
        result.data_store_output = renamed.get(id(result.data_store_output))
    return results


def _rename_store(output: NamedDataStoreOutput, names: dict[str, str]) -> NamedDataStoreOutput:
    store = NamedDataStore()
    for key, entry in output.pte_data.items():
        blob = _replace(bytes(output.buffers[entry.buffer_index]), names)
        store.add_named_data(_replace(key.encode(), names).decode(), blob, entry.alignment)
    return store.get_named_data_store_output()


def _replace(content: bytes, names: dict[str, str]) -> bytes:
    for random, derived in names.items():
        content = content.replace(random.encode(), derived.encode())
    return content
