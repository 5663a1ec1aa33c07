"""Writes what a website with several versions needs beside their folders: `python -m tools.site_versions site`.

| file | what it is |
|---|---|
| `VERSION/` | the pages of a version, as `make docs` writes them, or the archive of a release has them |
| `versions.js` | the list of the versions, newest first, for the selector on each page |
| `index.html` | leads to the newest version |

A page finds `versions.js` by a relative path and loads it as a script: that works without a server.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_VERSION = re.compile(r"\d+(\.\d+)*")
_INDEX = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>rules_executorch</title>
<meta http-equiv="refresh" content="0; url={version}/index.html">
<a href="{version}/index.html">rules_executorch {version}</a>
</html>
"""


def versions(site: Path) -> list[str]:
    """Returns the versions whose pages are in a folder, newest first."""
    found = [path.parent.name for path in site.glob("*/index.html") if _VERSION.match(path.parent.name)]
    return sorted(found, key=_order, reverse=True)


def _order(version: str) -> tuple[list[int], bool]:
    """Orders versions by their numbers. `0.2.0-dev` comes before `0.2.0`."""
    numbers = _VERSION.match(version)
    text = numbers[0] if numbers else "0"
    return [int(number) for number in text.split(".")], text == version


def write(site: Path) -> None:
    """Writes the two files.

    Raises:
        LookupError: The folder has no version.
    """
    found = versions(site)
    if not found:
        raise LookupError(f"{site} has no folder with the pages of a version: run `make docs`")
    (site / "versions.js").write_text(f"window.etbuildVersions = {json.dumps(found)};\n", "utf-8")
    (site / "index.html").write_text(_INDEX.format(version=found[0]), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
