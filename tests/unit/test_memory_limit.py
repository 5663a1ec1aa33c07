"""The memory that a build may use, and what takes less."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from etbuild.manifest import validate
from etbuild.plan.plan import from_manifest
from etkit.estimating import limit
from etkit.estimating.estimate import advised
from etkit.estimating.option import size_in_bytes
from etkit.estimating.program import Method, Program


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1000000\n"}, 1_000_000),
        ("0::/ci/job\n", {"ci/memory.max": "2000000\n", "ci/job/memory.max": "max\n"}, 2_000_000),
        ("0::/ci/job\n", {"ci/memory.max": "max\n", "ci/job/memory.max": "3000000\n"}, 3_000_000),
        ("5:cpu:/a\n4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "4000000\n"}, 4_000_000),
        ("5:cpu:/a\n4:memory:/job\n", {"cpu/a/memory.max": "5\n"}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
    ],
)
def test_the_smallest_limit_counts(groups: str, files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (path := tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "groups").write_text(groups)
    found = limit.of_this_machine(tmp_path / "fs", tmp_path / "groups")
    assert found.of == ("this machine" if expected is None else "the cgroup here")
    assert expected is None or found.bytes == expected


def test_a_system_without_groups_has_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert limit.of_this_machine(tmp_path, tmp_path / "groups").bytes > 1 << 28


@pytest.mark.parametrize(("text", "expected"), [("7GB", 7e9), ("1.5 GB", 1.5e9), ("800MB", 8e8), ("64B", 64)])
def test_sizes_have_units(text: str, expected: float) -> None:
    assert size_in_bytes(text) == expected


@pytest.mark.parametrize("text", ["7", "7 gigabytes", "-1GB", "0GB", "GB", "1e3GB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size such as 7GB"):
        size_in_bytes(text)


SEQ2SEQ = {"task": "seq2seq", "max_source_length": 4096, "cache": {"max_length": 2048}}
DECODER: dict[str, Any] = {"task": "text-generation", "cache": {"max_length": 2048}}


@pytest.mark.parametrize(
    ("huggingface", "method", "expected"),
    [
        (SEQ2SEQ, Method(900, 100, 0, call=1), []),
        (DECODER, Method(900, 100, 0, call=1), ["kind: custom"]),
        (DECODER, Method(900, 100, 0, call=2048), ["max_seq_length: 512", "kind: custom"]),
        (DECODER, Method(900, 800, 0, call=2048), ["kind: quantized"]),
    ],
)
def test_advice_is_about_calls_of_the_decoder(
    huggingface: dict[str, Any], method: Method, expected: list[str], tmp_path: Path
) -> None:
    document = {"schema": "executorch-model/v1", "name": "net", "model": {"huggingface": huggingface}}
    (tmp_path / "net.yaml").write_text(json.dumps(document))  # JSON is YAML
    plan = from_manifest(validate.load(tmp_path / "net.yaml").data)
    said = [*advised(plan, Program({}, {"encoder": Method(5000, 0, 0, call=4096), "decoder": method}, 0))]
    assert len(said) == len(expected)
    assert all(f"`{each}`" in line for each, line in zip(expected, said, strict=True))
