"""References: `REGISTRY/REPOSITORY`, with `:TAG` or `@sha256:DIGEST`. Tags may hold values of a build's stamp."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from etbuild.errors import InputError, did_you_mean
from etbuild.files import regular_files

# The forms of https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
_REGISTRY = r"(?P<registry>(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?)"
_REPOSITORY = r"(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_FORM = re.compile(rf"{_REGISTRY}/{_REPOSITORY}(?::(?P<tag>{_TAG}))?(?:@sha256:(?P<sha256>[0-9a-f]{{64}}))?")
_STAMP = re.compile(r"\{([^{}]*)\}")
_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Access:
    """How to reach a registry.

    Attributes:
        plain_http: Whether to do without TLS for a registry that is not on this machine.
        ca_file: The certificates of the authorities to trust. With it, a registry on this machine has TLS too.
        stall_seconds: How long to wait for a registry that sends nothing, or less than 1 kB in a second.
    """

    plain_http: bool = False
    ca_file: Path | None = None
    stall_seconds: float = 60.0


@dataclass(frozen=True)
class Reference:
    """A repository of a registry, and a package in it.

    Attributes:
        registry: The host, with its port if that is not the usual one.
        repository: The path of the repository.
        tag: The tag, if one is given.
        sha256: The digest in hex, if one is given. It takes precedence over the tag.
    """

    registry: str
    repository: str
    tag: str | None = None
    sha256: str | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine."""
        host = self.registry[1:].partition("]")[0] if self.registry.startswith("[") else self.registry.partition(":")[0]
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest if there is one, otherwise the tag."""
        return f"sha256:{self.sha256}" if self.sha256 else self.tag or "latest"

    def at(self, wanted: str) -> str:
        """The text of the reference to another tag or digest of the same repository."""
        return f"{self.registry}/{self.repository}{'@' if wanted.startswith('sha256:') else ':'}{wanted}"

    def __str__(self) -> str:
        return self.at(self.wanted) if self.tag or self.sha256 else f"{self.registry}/{self.repository}"


def parse(text: str) -> Reference:
    """Parses a reference.

    Raises:
        InputError: The text has another form.
    """
    matched = _FORM.fullmatch(text)
    if matched is None or len(matched["repository"]) > 255:
        message = f"{text[:300]}: not the name of a package in a registry"
        raise InputError.of(message, "write REGISTRY/REPOSITORY:TAG, such as registry.example.com/models/net:v1")
    return Reference(**matched.groupdict())


def parse_missing(text: str) -> Reference:
    """Parses a text that could be a path, but names no file. Errors: as `parse`."""
    try:
        return parse(text)
    except InputError as error:
        message = f"{text[:300]}: no such file or directory, and not the name of a package in a registry"
        raise InputError.of(message, error.problems[0].hint) from None


def moved(reference: Reference, registry: str) -> Reference:
    """The same repository in another registry.

    Raises:
        InputError: The text is not the name of a registry.
    """
    if re.fullmatch(_REGISTRY, registry) is None:
        raise InputError.of(f"--registry {registry}: not the name of a registry", "write HOST or HOST:PORT")
    return replace(reference, registry=registry)


def read_lines(path: Path, what: str) -> list[str]:
    """Reads the lines of a small text file, without empty ones and spaces around them.

    Args:
        path: The file.
        what: What it holds, for messages.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        text = regular_files.read(path, _FILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.of(f"{path}: cannot read the {what}: {error}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_tags(path: Path) -> list[str]:
    """Reads a file of tags: one on each line.

    Raises:
        InputError: The file cannot be read, or has no tag.
    """
    tags = read_lines(path, "tags")
    if not tags:
        raise InputError.of(f"{path}: the file has no tag", "write one on each line, or do not name the file")
    return tags


def read_stamps(paths: list[Path]) -> dict[str, str]:
    """Reads files of stamp values as Bazel writes them: a key and its value on each line.

    Raises:
        InputError: A file cannot be read.
    """
    values: dict[str, str] = {}
    for path in paths:
        for line in read_lines(path, "stamp values"):
            key, _, value = line.partition(" ")
            values[key] = value
    return values


def is_tag(text: str) -> bool:
    """Whether a text can be a tag."""
    return re.fullmatch(_TAG, text) is not None


def tag(text: str, stamps: Mapping[str, str]) -> str:
    """A tag with its stamp values filled in: `v-{STABLE_GIT_COMMIT}`.

    Raises:
        InputError: A value is not known, or the result cannot be a tag.
    """

    def value(matched: re.Match[str]) -> str:
        key = matched[1]
        if key not in stamps:
            near = did_you_mean(key, stamps)
            source = f"Bazel has it from a program that prints `{key} VALUE`: `--workspace_status_command=PROGRAM`"
            hint = "\n".join([*([near] if near else []), f"{source}; the command line, from `--stamp-file`"])
            raise InputError.of(f"the tag `{text}`: there is no stamp value `{key}`", hint)
        return stamps[key]

    filled = _STAMP.sub(value, text)
    if not is_tag(filled):
        message = f"`{filled[:200]}` cannot be a tag"
        raise InputError.of(
            message, "a tag has up to 128 letters, digits, `_`, `.` and `-`, and begins with none of `.-`"
        )
    return filled
