"""The date of a package: an annotation, since the digest of a package must not depend on the day of its build."""

from __future__ import annotations

from datetime import datetime, timezone

from etbuild.files import json_file
from etkit.registry.oci.descriptors import INDEX, Descriptor

CREATED = "org.opencontainers.image.created"
"""The annotation of a package that holds its date, in the format of RFC 3339."""


def created(root: Descriptor, data: bytes) -> str | None:
    """The date of a package as it is written.

    Args:
        root: The image index or the manifest that a tag names.
        data: Its content.

    Returns:
        The date; None if it has none, or has one in another format.
    """
    try:
        content = json_file.parse(data) if root.media_type == INDEX else {}
        text = content.get("annotations", {}).get(CREATED)
    except (ValueError, AttributeError):
        return None
    return text if moment(text) else None


def moment(text: object) -> datetime | None:
    """A date with its time zone; None if the text is not a date."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
