"""Policies: what `etbuild verify` asks of a program besides digests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.analysis import lockfile
from etbuild.errors import CheckError, InputError, Problem
from etbuild.manifest import yaml_document
from etbuild.results import Index


@dataclass(frozen=True)
class Policy:
    """A policy: the data of its file, and the file."""

    data: dict[str, Any]
    path: Path


def read(path: Path) -> Policy:
    """Reads a policy.

    Raises:
        InputError: The file is not a policy.
    """
    document = yaml_document.load(path)
    problems = json_schema.problems("policy", document.data)
    if problems:
        raise InputError(problems).located({**document.positions, **_keys(problems, document)})
    return Policy(document.data, path)


def _keys(problems: list[Problem], document: yaml_document.Document) -> dict[Any, Any]:
    """The positions of keys that are wrong themselves."""
    wrong = [problem.path for problem in problems if problem.at_key and problem.path in document.keys]
    return {path: document.keys[path] for path in wrong if path is not None}


def check(policy: Policy, index: Index, builders: list[str]) -> None:
    """Checks a program.

    Args:
        policy: The policy.
        index: The index of its build.
        builders: The builders that the statements about it name.

    Raises:
        CheckError: The policy does not allow it. The error lists all reasons.
        InputError: A lockfile of the policy is damaged.
    """
    name, data = index["name"], policy.data
    messages = [
        *_builders(data, builders),
        *_toolchain(data, index),
        *_licenses(data, index),
    ]
    problems = [Problem(f"{name}: {message}", hint=f"the policy {policy.path}") for message in messages]
    if "lockfiles" in data:
        try:
            file = policy.path.parent / data["lockfiles"] / f"{name}.lock.json"
            lockfile.check(file, lockfile.lock(index), f"the policy {policy.path} wants the program of {file}")
        except CheckError as error:
            problems += error.problems
    if problems:
        raise CheckError(problems)


def _builders(policy: dict[str, Any], builders: list[str]) -> Iterator[str]:
    if "builders" not in policy:
        return
    if not builders:
        yield "no statement says who has built it"
    for builder in builders:
        if not any(fnmatchcase(builder, pattern) for pattern in policy["builders"]):
            yield f"the builder {builder[:200]} is not one of {', '.join(policy['builders'])}"


def _toolchain(policy: dict[str, Any], index: Index) -> Iterator[str]:
    toolchain = index["inputs"]["toolchain"]
    versions = {name: each["version"] for name, each in toolchain["distributions"].items()}
    versions["etbuild"] = toolchain["driver"]["version"]
    for name, allowed in policy.get("toolchain", {}).items():
        if name not in versions:
            yield f"no package `{name}` has made it"
        elif versions[name] not in allowed:
            yield f"{name} {versions[name]} is not one of {', '.join(allowed)}"
    if toolchain["driver"]["sha256"] not in policy.get("drivers", [toolchain["driver"]["sha256"]]):
        yield f"the driver {toolchain['driver']['sha256'][:16]} is not one of `drivers`"


def _licenses(policy: dict[str, Any], index: Index) -> Iterator[str]:
    if "licenses" not in policy:
        return
    plan = index["inputs"]["plan"]
    metadata = plan.get("metadata", {})
    licenses = {"the program": metadata.get("license")}
    files = [entry if isinstance(entry, str) else entry["file"] for entry in plan["model"]["weights"]]
    files += [each["weights"] for each in plan["model"].get("adapters", {}).values()]
    for file in files:
        licenses[f"the weights {file}"] = metadata.get("weights_licenses", {}).get(file)
    for what, found in licenses.items():
        if found is None:
            yield f"the manifest's `metadata` has no license of {what}"
        elif found not in policy["licenses"]:
            yield f"the license {found} of {what} is not one of {', '.join(policy['licenses'])}"
