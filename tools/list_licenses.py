"""Writes docs/licenses.md: the licence of each package that the toolchain's locks install.

    python tools/list_licenses.py [--check]

Run it in the developers' environment (`make licenses`), which has the packages of these locks. The licence comes from
the metadata of the package.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licenses.md"
LOCKS = (
    "requirements",
    "requirements-delta",
    "requirements-ethos-u",
    "requirements-huggingface",
    "requirements-openvino",
    "requirements-sbom",
)
_HEAD = """\
# Licences

For people who check licences.
This page lists the packages that the toolchain installs from its locks. Each licence is that of the package's metadata.
`make licenses` writes the page, and a test compares it with the locks. The packages of the extras `cuda` and `vgf` are
missing, because the developers' environment does not have them.

| package | version | licence | lock |
|---|---|---|---|
"""


_PAGE_SCRIPTS = """
## Libraries in the page of a program

[The page of a program](reports.md) contains these JavaScript libraries. They are part of `etbuild`, and
`tools/update_page_scripts.sh` fetches them from npm.

| package | version | licence |
|---|---|---|
| cytoscape | 3.34.4 | MIT |
| cytoscape-dagre, with @dagrejs/dagre | 4.0.1 | MIT |
| d3-hierarchy | 3.1.3 | ISC |
"""


def locked(lock: str) -> Iterator[tuple[str, str]]:
    """Returns the packages of a lock with their versions."""
    for line in (ROOT / "toolchain" / f"{lock}.lock").read_text("utf-8").splitlines():
        if found := re.match(r"([a-zA-Z0-9][a-zA-Z0-9._-]*)==([^ ;\\]+)", line):
            yield found[1], found[2]


def page() -> str:
    """Returns the page that the file should contain."""
    rows: dict[str, str] = {}
    for lock in LOCKS:
        for name, version in locked(lock):
            row = f"| {name} | {version} | {_license(name, version)} | `{lock}.lock` |\n"
            rows.setdefault(name, row)
    return _HEAD + "".join(rows[name] for name in sorted(rows)) + _PAGE_SCRIPTS


def _license(name: str, version: str) -> str:
    metadata = importlib.metadata.metadata(name)
    if metadata["Version"].partition("+")[0] != version.partition("+")[0]:
        sys.exit(f"{name} {metadata['Version']} is installed, the lock has {version}: run `make venv` first")
    said: str
    (said,) = metadata.get_all("License-Expression") or metadata.get_all("License") or [""]
    said = said.strip().partition("\n")[0]
    if said and not re.match("copyright|unknown", said, re.IGNORECASE):
        return said
    named = [row.rpartition(" :: ")[2] for row in metadata.get_all("Classifier", []) if row.startswith("License ::")]
    files = [f"see its {file}" for file in metadata.get_all("License-File", [])]
    return ", ".join(named or files) or "not stated"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page is not current, and write nothing")
    if parser.parse_args().check:
        return 0 if PAGE.read_text("utf-8") == page() else 1
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
