"""Finished builds without PyTorch: an index and its files with any content, for code that looks only at digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.files import digests
from tests.unit.indexes import MANIFEST, make_index


def write_build(
    directory: Path,
    name: str,
    pte: bytes = b"program",
    ptd: bytes | None = b"weights",
    more: Mapping[str, bytes] | None = None,
    manifest: Mapping[str, Any] | None = None,
    report: bytes | None = None,
    tensors: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes a build.

    Args:
        directory: Where its files go.
        name: The name of the program.
        pte: The content of the program.
        ptd: The content of its named data, with the tag `weights`; None for a program without.
        more: The content of further files by name: shards and files of a tokenizer.
        manifest: Keys of its manifest that differ.
        report: The content of its report. Default: no report that could be read.
        tensors: The weights by name. The program's template is then that of all programs. Default: it is the program.

    Returns:
        The path of the index.
    """
    index = make_index({**MANIFEST, **(manifest or {}), "name": name}, tensors=1)
    index["template"] = hashlib.sha256(pte if tensors is None else b"").hexdigest()
    if tensors is not None:
        digested = {tensor: hashlib.sha256(content).hexdigest() for tensor, content in tensors.items()}
        index["tensors"] = dict.fromkeys(index["tensors"], digested)
    files = {
        f"{name}.pte": ("program", pte),
        f"{name}.report.json": ("report", b"{}\n" + pte if report is None else report),
    }
    if ptd is not None:
        files[f"{name}.weights.ptd"] = ("named_data", ptd)
    for file, content in (more or {}).items():
        files[file] = ("tokenizer" if ".tokenizer/" in file else "named_data", content)
    artifacts: list[Any] = []
    for file, (kind, content) in files.items():
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        facts = {"file": file, "kind": kind, "size": len(content), "sha256": sha256}
        artifacts.append({**facts, "tag": "weights"} if kind == "named_data" else facts)
    written = directory / f"{name}.index.json"
    written.write_bytes(digests.canonical_json({**index, "artifacts": artifacts}))
    return written


def make_report(memory: int, delegated: int, fallback: int, checks: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """A report of two methods.

    Args:
        memory: The planned memory of the larger one, without two bytes.
        delegated: The operators in a delegate, of each method.
        fallback: The other operators, of each method.
        checks: The results of checks.
    """
    method: dict[str, Any] = {
        "inputs": [],
        "outputs": [],
        "delegates": {"XnnpackBackend": 1},
        "operators": {
            "delegated": {"XnnpackBackend": {"aten::linear": delegated}},
            "fallback": {"aten::mul": fallback},
        },
    }
    content = {
        "schema": "executorch-report/v2",
        "name": "net",
        "methods": {"a": {**method, "memory": [1]}, "b": {**method, "memory": [memory, 2]}},
        "constant_methods": {},
        "bytes": {"constants": [], "mutable": [], "delegates": [], "named_data": {}, "external": {}},
        "sharing": {"expected_bytes": 0, "shared_bytes": 0, "duplicate_bytes": 0, "duplicates": []},
        "checks": list(checks),
    }
    assert json_schema.problems("report", content) == []
    return json.dumps(content).encode()
