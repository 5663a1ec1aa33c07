"""Names blobs of named data after the weights that they are made of. The report beside a file lists these."""

from __future__ import annotations

import re
from collections.abc import Mapping

from etbuild.results import BlobWeights, Report

NOT_KNOWN: BlobWeights = {"constants": [], "named_data": {}}
_KEY = re.compile(r"(?:(.+) )?([a-z_]*[0-9a-f]{64})")


def of_report(report: Report | None) -> BlobWeights:
    """The weights of each blob in a report; empty if the report lists no blobs."""
    return NOT_KNOWN if report is None else report.get("blob_weights", NOT_KNOWN)


def shown(key: str, known: Mapping[str, list[str]]) -> str:
    """The name of a blob for people: its first weight, the number of others, and its key. Without a weight, the key.

    Args:
        key: The key.
        known: The names of the weights by key.
    """
    names = known.get(key, [])
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{others} {key}" if names else key


def split(text: str) -> tuple[str, str] | None:
    """Splits a result of `shown` into the name, which may be empty, and the key. None if the key has no digest."""
    match = _KEY.fullmatch(text)
    return None if match is None else (match[1] or "", match[2])
