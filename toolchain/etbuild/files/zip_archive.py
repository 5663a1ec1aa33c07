"""Zip archives whose bytes depend only on their content."""

from __future__ import annotations

import io
import zipfile


def canonical_archive(saved: bytes) -> bytes:
    """Rewrites a zip archive of torch without times and without torch's random identifier."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as archive, zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as canonical:
        for name in sorted(archive.namelist()):
            if not name.endswith("/.data/serialization_id"):
                canonical.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), archive.read(name))
    return written.getvalue()
