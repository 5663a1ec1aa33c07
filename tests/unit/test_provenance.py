"""Provenance and policies: a statement follows from the index, and a policy says which programs are allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etbuild.errors import BuildError
from etkit.registry.oci import layout, package, provenance
from etkit.registry.oci import policy as policies
from etkit.registry.oci.descriptors import Descriptor, document
from tests.helpers.builds import write_build
from tests.unit.indexes import sha256

BUILDER = "https://ci.example.com/models/42"
METADATA = {"license": "MIT", "weights_licenses": {"net.safetensors": "Apache-2.0"}}
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_verb(*arguments: object, expect: int = 0) -> str:
        code = main.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.out + captured.err
        return captured.out if expect == 0 else captured.err

    return run_verb


@pytest.fixture
def packed(tmp_path: Path, run: Run) -> Path:
    index = write_build(tmp_path / "build", "net", manifest={"metadata": METADATA})
    run("package", index, "-o", tmp_path / "layout", "--builder", BUILDER)
    return tmp_path / "layout"


def test_a_statement_names_the_files_and_what_they_were_made_from(packed: Path) -> None:
    content = layout.read(packed)
    [stated] = content.statements
    statement = json.loads(content.documents[stated.blobs[1].sha256])
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    files = {name: blob.sha256 for name, blob in content.programs[0].files.items()}
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == files
    definition = statement["predicate"]["buildDefinition"]
    materials = {each["name"]: each for each in definition["resolvedDependencies"]}
    assert materials["source/model.py"]["digest"] == {"sha256": sha256("model")}
    assert materials["data/net.safetensors"]["digest"] == {"sha256": sha256("net.safetensors")}
    assert materials["package/executorch"]["uri"] == "pkg:pypi/executorch@1.5.1"
    assert {"driver", "package/torch"} <= materials.keys()
    assert definition["externalParameters"]["plan"]["name"] == "net"
    assert statement["predicate"]["runDetails"]["builder"]["id"] == BUILDER


def test_the_builder_changes_no_digest_of_a_program(packed: Path, tmp_path: Path, run: Run) -> None:
    run("package", tmp_path / "build", "-o", tmp_path / "other", "--builder", "https://example.com/other")
    ours, other = layout.read(packed), layout.read(tmp_path / "other")
    assert ours.programs[0].manifest.sha256 == other.programs[0].manifest.sha256
    assert ours.root.sha256 != other.root.sha256


def rewritten(content: package.Package, change: Callable[[Any], object]) -> package.Package:
    """The package as a stranger would offer it who has changed its statement, with digests that fit."""
    documents = dict(content.documents)

    def add(blob: Descriptor, data: Any) -> Descriptor:
        made = Descriptor.of(blob.media_type, document(data), blob.annotations)
        documents[made.sha256] = document(data)
        return made

    [stated] = content.statements
    statement = json.loads(documents[stated.blobs[1].sha256])
    change(statement)
    manifest = json.loads(documents[stated.manifest.sha256])
    manifest["layers"] = [add(stated.blobs[1], statement).json()]
    index = json.loads(documents[content.root.sha256])
    index["manifests"][1] = add(stated.manifest, manifest).json()
    root = add(content.root, index)
    return package.read(root, lambda blob, limit: documents[blob.sha256], "registry/net:v1")


@pytest.mark.parametrize(
    "change",
    [
        lambda statement: statement["subject"].pop(),
        lambda statement: statement["subject"][0]["digest"].update(sha256="0" * 64),
        lambda statement: statement["predicate"]["buildDefinition"]["resolvedDependencies"].pop(),
        lambda statement: statement["predicate"]["buildDefinition"]["externalParameters"].clear(),
        lambda statement: statement["predicate"]["runDetails"].clear(),
        lambda statement: statement.update(predicateType="https://example.com"),
        lambda statement: statement.clear(),
    ],
)
def test_a_statement_that_does_not_follow_from_the_index_is_refused(
    packed: Path, change: Callable[[Any], object]
) -> None:
    content = layout.read(packed)
    assert rewritten(content, lambda statement: None).root == content.root
    with pytest.raises(BuildError, match="does not follow from its index"):
        rewritten(content, change)


def write_policy(directory: Path, **keys: object) -> Path:
    path = directory / "policy.yaml"
    path.write_text(json.dumps({"schema": "executorch-policy/v1", **keys}))
    return path


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"builders": ["https://ci.example.com/models/*"]},
        {"builders": ["https://*.example.com/**"]},
        {"builders": ["nobody", BUILDER]},
        {"provenance": True},
        {"toolchain": {"executorch": ["1.5.1"], "torch": ["2.13.0+cpu"], "etbuild": ["0.2.0"]}},
        {"drivers": [sha256("driver")]},
        {"licenses": ["MIT", "Apache-2.0"]},
    ],
)
def test_what_a_policy_allows(packed: Path, tmp_path: Path, run: Run, keys: dict[str, Any]) -> None:
    told = run("verify", packed, "--policy", write_policy(tmp_path, **keys))
    assert "allowed by" in told


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"builders": ["https://ci.example.com/apps/*"]}, f"the builder {BUILDER} is not one of"),
        ({"builders": ["https://ci.example.com"]}, f"the builder {BUILDER} is not one of"),
        ({"builders": ["https://ci.example.com/*"]}, "is not one of"),
        ({"builders": ["https://ci.example.com/models/4?"]}, "is not one of"),
        ({"builders": ["https://ci.example.com/models/[0-9]2"]}, "is not one of"),
        ({"builders": ["*"]}, "is not one of"),
        ({"toolchain": {"executorch": ["1.5.0"]}}, "executorch 1.5.1 is not one of 1.5.0"),
        ({"toolchain": {"numpy": ["2"]}}, "no package `numpy` has made it"),
        ({"drivers": ["0" * 64]}, "the driver"),
        ({"licenses": ["MIT"]}, "the license Apache-2.0 of the weights net.safetensors is not one of MIT"),
        ({"licenses": ["Apache-2.0"]}, "the license MIT of the program is not one of Apache-2.0"),
        ({"lockfiles": "."}, "there is no lockfile yet"),
    ],
)
def test_what_a_policy_refuses(packed: Path, tmp_path: Path, run: Run, keys: dict[str, Any], words: str) -> None:
    assert words in run("verify", packed, "--policy", write_policy(tmp_path, **keys), expect=3)


def test_a_program_and_weights_without_licenses_are_refused(tmp_path: Path, run: Run) -> None:
    write_build(tmp_path / "build", "net")
    told = run("verify", tmp_path / "build", "--policy", write_policy(tmp_path, licenses=["MIT"]), expect=3)
    assert "no license of the program" in told
    assert "no license of the weights net.safetensors" in told


def test_a_build_without_a_statement_has_no_builder(tmp_path: Path, run: Run) -> None:
    write_build(tmp_path / "build", "net")
    told = run("verify", tmp_path / "build", "--policy", write_policy(tmp_path, builders=["*"]), expect=3)
    assert "no statement says who has built it" in told


@pytest.mark.parametrize(
    ("builder", "pattern"),
    [
        ("https://evil.example/#.example.com/x", "https://*.example.com/x"),
        ("https://me@evil.example/x", "https://*/x@y"),
        ("https://ci.example.com/models/../apps", "https://ci.example.com/models/**"),
        ("https://ci.example.com/models/42\n", "https://ci.example.com/models/42"),
    ],
)
def test_a_builder_does_not_fit_by_a_trick(builder: str, pattern: str) -> None:
    assert not policies._fits(builder, pattern)


def test_a_policy_lists_the_reasons_of_all_programs(tmp_path: Path, run: Run) -> None:
    for name in ("first", "second"):
        write_build(tmp_path / "build", name)
    told = run("verify", tmp_path / "build", "--policy", write_policy(tmp_path, provenance=True), expect=3)
    assert told.count("no statement says who has built it") == 2


def test_verify_says_that_nobody_has_stated_the_builder(packed: Path, tmp_path: Path, run: Run) -> None:
    assert "a directory of programs has no statements about who has built them" in run("verify", tmp_path / "build")
    assert "no statement" not in run("verify", packed)


def test_a_policy_asks_for_the_license_of_an_adapter() -> None:
    model = {"weights": ["net.safetensors"], "adapters": {"math": {"weights": "math/adapter_model.safetensors"}}}
    index: Any = {"inputs": {"plan": {"metadata": METADATA, "model": model}}}
    found = list(policies._licenses({"licenses": ["MIT", "Apache-2.0"]}, index))
    assert found == ["the manifest's `metadata` has no license of the weights math/adapter_model.safetensors"]


def test_a_policy_compares_lockfiles(packed: Path, tmp_path: Path, run: Run) -> None:
    policy = write_policy(tmp_path, lockfiles="locks")
    (tmp_path / "locks").mkdir()
    run("lock", tmp_path / "build", tmp_path / "locks/net.lock.json", "--update")
    run("verify", packed, "--policy", policy)
    lock = tmp_path / "locks/net.lock.json"
    content = json.loads(lock.read_text())
    content["artifacts"]["net.pte"]["size"] += 1
    lock.write_text(json.dumps(content))
    assert "the program differs from the lockfile" in run("verify", packed, "--policy", policy, expect=3)


def test_mistakes_in_a_policy_have_a_place(packed: Path, tmp_path: Path, run: Run) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("schema: executorch-policy/v1\nbuilder: [x]\nlicenses: MIT\n")
    told = run("verify", packed, "--policy", policy, expect=2)
    assert re.search(r"policy.yaml:2:1: builder: unknown key `builder`\n.*did you mean `builders`", told)
    assert "policy.yaml:3:11: licenses: expected a list" in told


def test_the_unnamed_builder_is_named_so(tmp_path: Path) -> None:
    made = package.make([write_build(tmp_path, "net")], {}).package
    assert made.statements[0].builder == provenance.UNNAMED_BUILDER
