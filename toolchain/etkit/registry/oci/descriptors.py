"""Descriptors: a blob of a package by media type, digest and size, as the OCI image specification defines them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def document(data: Mapping[str, Any]) -> bytes:
    """JSON in the form of registry tools, which are Go programs.

    When skopeo copies an image index, it parses it and writes it again. The digest stays only if the bytes are those of
    Go: no white space, keys in the order of the specification (from the caller), and some escapes.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.translate({ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}).encode()


@dataclass(frozen=True)
class Descriptor:
    """A blob.

    Attributes:
        media_type: The kind of the blob.
        sha256: The digest in hex.
        size: The size in bytes.
        annotations: Texts by key.
    """

    media_type: str
    sha256: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, media_type: str, data: bytes, annotations: Mapping[str, str] | None = None) -> Descriptor:
        """The descriptor of these bytes."""
        return cls(media_type, hashlib.sha256(data).hexdigest(), len(data), annotations or {})

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Descriptor:
        """A descriptor from JSON data that fits `package#descriptor`."""
        digest = data["digest"].removeprefix("sha256:")
        return cls(data["mediaType"], digest, data["size"], dict(data.get("annotations", {})))

    @property
    def digest(self) -> str:
        """The digest with its algorithm, as registries write it."""
        return f"sha256:{self.sha256}"

    def json(self) -> dict[str, Any]:
        """The descriptor as JSON data."""
        data: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.annotations:
            data["annotations"] = dict(sorted(self.annotations.items()))
        return data

    def describes(self, data: bytes) -> bool:
        """Whether these are the bytes of the blob."""
        return len(data) == self.size and hashlib.sha256(data).hexdigest() == self.sha256
