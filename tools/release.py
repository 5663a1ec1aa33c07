"""Writes the files of a release: `make release VERSION=0.1.0`.

    python -m tools.release VERSION [--repository OWNER/NAME] [--site DIR] [--out DIR]        # default: dist

| file | what it is |
|---|---|
| `pypi/` | the driver, for a package index: the wheel, and the sdist, which has the name of the sources for Bazel |
| `rules_executorch-VERSION-py3-none-any.whl` | the wheel again, for the page of the release |
| `rules_executorch-VERSION.tar.gz` | the sources, for Bazel |
| `bcr/VERSION/` | with --repository: the entry for the Bazel Central Registry |
| `rules_executorch-VERSION-packages.tar.gz` | what makes a `packages.pex`: the locks, and what installs them |
| `rules_executorch-VERSION-docs.tar.gz` | the website of the version, from --site |
| `rules_executorch-VERSION.cdx.json` | the bill of materials in the format CycloneDX: what the locks pin |
| `release-notes.md` | the part of the changelog |
| `SHA256SUMS` | the digests of the files on the page of the release: those here, and none in a directory |

The same commit gives the same bytes. The files hold what is committed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path

from etbuild.extras import DISTRIBUTION
from etbuild.version import VERSION
from tools import build_wheel
from tools.build_wheel import ROOT

_LOCK = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<marker> ;.*)?", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class ReleaseError(Exception):
    """The release cannot be made from this checkout."""


def write(version: str, repository: str | None, out: Path, site: Path | None = None) -> None:
    """Writes the files of a release into a directory.

    Args:
        version: The version, which the sources must have.
        repository: The repository of the release on GitHub, as OWNER/NAME. None: without the entry for the registry.
        out: The directory, which is replaced if it holds a release.
        site: The directory of the website of this version. None: without it.

    Raises:
        ReleaseError: The sources have another version, the changelog has no part about it, or the directory holds
            something other than a release.
    """
    check(version)
    if out.exists() and any(out.iterdir()) and not (out / "SHA256SUMS").exists():
        raise ReleaseError(f"{out} holds something else than a release")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copy(build_wheel.build(out / "pypi"), out)
    build_wheel.build_sdist(out / "pypi")
    name = f"rules_executorch-{version}"
    sources = out / f"{name}.tar.gz"
    _archive(sources, name)
    if repository is not None:
        _registry_entry(out / "bcr" / version, version, repository, sources)
    _archive(out / f"{name}-packages.tar.gz", f"{name}-packages", *PACKAGES)
    if site is not None:
        _pack(out / f"{name}-docs.tar.gz", site, f"{name}-docs")
    (out / f"{name}.cdx.json").write_text(bill_of_materials(version), "utf-8")
    files = sorted(path for path in out.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(sums), "utf-8")
    (out / "release-notes.md").write_text(release_notes(version), "utf-8")


PACKAGES = (*(f"toolchain/{name}.py" for name in ("build_packages", "locks", "packages_file")), "toolchain/*.lock")
"""What makes a packages.pex."""


def check(version: str) -> None:
    """Compares the version with that of the driver, of the module and of the changelog.

    Raises:
        ReleaseError: One of them has another version.
    """
    module = re.search(r'version = "(.*)"', (ROOT / "MODULE.bazel").read_text("utf-8"))
    for place, found in (("toolchain/etbuild/version/__init__.py", VERSION), ("MODULE.bazel", module and module[1])):
        if found != version:
            raise ReleaseError(f"{place} has version {found}, not {version}")
    release_notes(version)


def release_notes(version: str) -> str:
    """Returns the part of the changelog about a version, without its heading."""
    parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    for part in parts[1:]:
        heading, _, text = part.partition("\n")
        if heading.split()[0] == version:
            return text.strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md has no part about {version}: run `make changelog VERSION={version}`")


def bill_of_materials(version: str) -> str:
    """Returns the packages that the locks pin, in the format CycloneDX 1.6."""
    components = {}
    for lock in sorted((ROOT / "toolchain").glob("requirements*.lock")):
        if lock.stem == "requirements-cpu":  # other builds of what the first lock pins
            continue
        text = lock.read_text("utf-8")
        found = list(_LOCK.finditer(text))
        ends = [match.start() for match in found[1:]] + [len(text)]
        for match, end in zip(found, ends, strict=True):
            hashes = _HASH.findall(text[match.end() : end])
            components[match["name"], match["version"]] = {
                "type": "library",
                "name": match["name"],
                "version": match["version"],
                "purl": f"pkg:pypi/{match['name'].lower()}@{match['version']}",
                "bom-ref": f"{match['name']}@{match['version']}",
                "properties": [{"name": "rules-executorch:sha256OfFile", "value": value} for value in hashes],
            }
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": DISTRIBUTION, "version": version, "bom-ref": DISTRIBUTION}
        },
        "components": [components[key] for key in sorted(components)],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True)).urn
    return json.dumps({**content, "serialNumber": serial}, indent=2) + "\n"


def _archive(target: Path, prefix: str, *paths: str) -> None:
    """Writes the committed files, or some of them, as tar.gz."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "archive",
        "--format=tar.gz",
        f"--prefix={prefix}/",
        f"--output={target}",
        "HEAD",
    ]
    subprocess.run([*command, *paths], check=True)
    build_wheel.normalize(target, build_wheel.commit_time())


def _pack(target: Path, directory: Path, prefix: str) -> None:
    with tarfile.open(target, "w:gz") as archive:
        archive.add(directory, prefix)
    build_wheel.normalize(target, build_wheel.commit_time())


def _registry_entry(directory: Path, version: str, repository: str, sources: Path) -> None:
    directory.mkdir(parents=True)
    for path in (ROOT / "MODULE.bazel", ROOT / ".bcr/presubmit.yml"):
        shutil.copyfile(path, directory / path.name)
    digest = base64.b64encode(hashlib.sha256(sources.read_bytes()).digest()).decode()
    source = {
        "integrity": f"sha256-{digest}",
        "strip_prefix": f"rules_executorch-{version}",
        "url": f"https://github.com/{repository}/releases/download/v{version}/{sources.name}",
    }
    (directory / "source.json").write_text(json.dumps(source, indent=2) + "\n", "utf-8")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--repository", metavar="OWNER/NAME", default=os.environ.get("GITHUB_REPOSITORY"))
    parser.add_argument("--site", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "dist")
    options = parser.parse_args()
    try:
        if subprocess.check_output(["git", "-C", str(ROOT), "status", "--porcelain"]):
            raise ReleaseError("there are changes that are not committed")
        write(options.version, options.repository, options.out, options.site)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.repository is None:
        print("note: without --repository, there is no entry for the Bazel Central Registry", file=sys.stderr)
    print((options.out / "SHA256SUMS").read_text("utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
