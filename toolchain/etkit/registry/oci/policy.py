"""Policies: what `etbuild verify` requires of a program besides digests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.errors import CheckError, InputError, Problem
from etbuild.manifest import yaml_document
from etbuild.results import Index
from etkit.building import lockfile


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
    document = yaml_document.load(path, begins="a policy starts with `schema: executorch-policy/v1`")
    problems = json_schema.problems("policy", document.data)
    if problems:
        raise InputError(document.located(problems))
    return Policy(document.data, path)


def check(policy: Policy, programs: list[tuple[Index, list[str]]]) -> None:
    """Checks programs.

    Args:
        policy: The policy.
        programs: For each program the index of its build, and the builders that statements about it name.

    Raises:
        CheckError: The policy does not allow one. The error lists all reasons.
        InputError: A lockfile of the policy is damaged.
    """
    problems = [problem for index, builders in programs for problem in _problems(policy, index, builders)]
    CheckError.raise_if(problems)


def _problems(policy: Policy, index: Index, builders: list[str]) -> list[Problem]:
    """The reasons why a policy does not allow a program."""
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
    return problems


def _builders(policy: dict[str, Any], builders: list[str]) -> Iterator[str]:
    if not builders and (policy.get("provenance") or "builders" in policy):
        yield "no statement says who has built it"
    if "builders" not in policy:
        return
    for builder in builders:
        if not any(_fits(builder, pattern) for pattern in policy["builders"]):
            yield f"the builder {builder[:200]} is not one of {', '.join(policy['builders'])}"


def _fits(builder: str, pattern: str) -> bool:
    """Whether a URI fits a pattern. `*` stands for any text without `/`, `?`, `#` and `@`, and `**` for any text.

    Schemes and hosts are compared as they are written. A URI with `.` or `..` in its path fits only an equal pattern.
    """
    if {".", ".."} & set(re.split("[/\\\\]", builder)):
        return builder == pattern
    parts = (re.escape(part) for part in re.split(r"(\*+)", pattern))
    wild = {r"\*": "[^/?#@]*", r"\*\*": ".*"}
    return re.fullmatch("".join(wild.get(part, part) for part in parts), builder, re.DOTALL) is not None


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
