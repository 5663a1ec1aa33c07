"""Builds every example in each way that there is, and compares the bytes.

    python -m benchmarks.bytes.run [WAY...] [--write docs/reproducibility.md]

The ways are `command line`, `sandbox`, `worker`, `bazel 7` (with the variable BAZEL7) and `remote` (with the variable
REMOTE_EXECUTOR, such as grpc://127.0.0.1:8980). Each way builds in a new copy of the repository, without any cache. The
results of a way are kept in benchmarks/results/bytes.json, until a file that a build reads changes. So a command that
was stopped continues where it was. It fails if two ways made different bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.conftest import EXAMPLES, MANIFESTS, variant_options  # noqa: E402
from tests.helpers.workspaces import (  # noqa: E402
    BAZEL,
    BUILD_DIRECTORIES,
    BUILD_FILES,
    NOT_COPIED,
    WORKERS,
    packages_repository,
)

RESULTS = ROOT / "benchmarks/results/bytes.json"
KINDS = ("pte", "ptd", "index.json", "report.json")
BEGIN, END = "<!-- bytes: python -m benchmarks.bytes.run -->\n", "<!-- end of bytes -->\n"
SANDBOX = "--spawn_strategy=linux-sandbox"

Digests = dict[str, dict[str, str]]
"""The sha256 of each file of each program."""


def sources() -> str:
    """Returns a digest of the files that a build reads."""
    found = hashlib.sha256()
    listed = subprocess.run(
        ["git", "ls-files", "-z", *BUILD_FILES, "examples", "rules", "schemas", "toolchain"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        file = ROOT / name
        content = str(file.readlink()).encode() if file.is_symlink() else file.read_bytes()
        found.update(f"{name}\0".encode() + hashlib.sha256(content).digest())
    return found.hexdigest()


def copied(directory: Path) -> Path:
    """Copies the files that a build reads."""
    directory.mkdir(parents=True)
    for name in BUILD_FILES:
        shutil.copy2(ROOT / name, directory / name)
    for name in BUILD_DIRECTORIES:
        shutil.copytree(ROOT / name, directory / name, symlinks=True, ignore=NOT_COPIED)
    return directory


def digests(program: str, directory: Path) -> dict[str, str]:
    """Returns the digests of a program's files in a directory."""
    files = sorted(path for kind in KINDS for path in directory.glob(f"{program}.*{kind}"))
    # `vision.coreml.pte` is a file of another program than `vision.pte`.
    others = [name for name in MANIFESTS if name.startswith(f"{program}.")]
    ours = [path for path in files if not any(path.name.startswith(f"{other}.") for other in others)]
    assert any(path.suffix == ".pte" for path in ours), f"{directory} has no {program}.pte"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in ours}


def command_line(scratch: Path) -> Digests:
    """Builds with `etbuild build`."""
    checkout = copied(scratch / "command line")
    for name, manifest in MANIFESTS.items():
        place = checkout / "examples" / manifest.relative_to(EXAMPLES)
        words: list[str | Path] = [
            sys.executable,
            "-m",
            "etbuild",
            "build",
            place,
            *variant_options(name),
            "--no-cache",
            "-o",
            scratch / "out",
        ]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return {name: digests(name, scratch / "out") for name in MANIFESTS}


def with_bazel(*options: str, modern: str = "") -> Callable[[Path], Digests]:
    """Returns a function that builds with Bazel."""

    def build(scratch: Path) -> Digests:
        checkout = copied(scratch / "checkout")
        output_root = scratch / "bazel"
        output_root.mkdir()
        made = packages()
        binds = {"BAZEL7_BIND": f"{made} {checkout}", "BAZEL7_OUTPUT_ROOT": str(output_root)}
        start = [*shlex.split(modern), str(checkout)] if modern else [*BAZEL, f"--output_user_root={output_root}"]

        def bazel(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*start, *arguments],
                cwd=checkout,
                env={**os.environ, **binds},
                capture_output=True,
                text=True,
                check=False,
            )

        try:
            override = f"--override_repository={packages_repository(bazel)}={made}"
            done = bazel("build", override, "--symlink_prefix=made-", *options, "//examples/...")
            if done.returncode:
                raise SystemExit(done.stderr)
            places = {
                name: checkout / "made-bin/examples" / path.parent.relative_to(EXAMPLES)
                for name, path in MANIFESTS.items()
            }
            return {name: digests(name, place) for name, place in places.items()}
        finally:
            bazel("shutdown")

    return build


def packages() -> Path:
    """Returns the packages of the developer's own output base."""

    def bazel(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*BAZEL, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    assert bazel("build", "//toolchain:etbuild").returncode == 0
    return Path(bazel("info", "output_base").stdout.strip()) / "external" / packages_repository(bazel)


def ways() -> dict[str, Callable[[Path], Digests]]:
    """Returns the ways that this machine has."""
    found = {"command line": command_line, "sandbox": with_bazel(SANDBOX), "worker": with_bazel(SANDBOX, *WORKERS)}
    if os.environ.get("BAZEL7"):
        found["bazel 7"] = with_bazel(SANDBOX, modern=os.environ["BAZEL7"])
    if os.environ.get("REMOTE_EXECUTOR"):
        found["remote"] = with_bazel(f"--remote_executor={os.environ['REMOTE_EXECUTOR']}", "--spawn_strategy=remote")
    return found


def table(built: dict[str, Digests]) -> str:
    """Returns the table: the beginning of the digest over a program's files, in each way."""
    rows = [
        "| program | files | " + " | ".join(built) + " |",
        "|---|---|" + "---|" * len(built),
    ]
    for name in MANIFESTS:
        cells = [
            hashlib.sha256(json.dumps(made[name], sort_keys=True).encode()).hexdigest()[:8] for made in built.values()
        ]
        rows.append(f"| `{name}` | {max(len(made[name]) for made in built.values())} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def differences(built: dict[str, Digests]) -> list[str]:
    """Returns what two ways made differently."""
    return [
        f"{file}: {', '.join(f'{way} {made[name].get(file, str())[:12]}' for way, made in built.items())}"
        for name in MANIFESTS
        for file in sorted({file for made in built.values() for file in made[name]})
        if len({made[name].get(file) for made in built.values()}) > 1
    ]


def main() -> None:
    """Builds in the ways that are missing, compares, and writes the table."""
    parser = argparse.ArgumentParser(description="Build every example in each way, and compare the bytes.")
    parser.add_argument("ways", nargs="*", metavar="WAY", help="the ways that are missing and shall run (default: all)")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="write the table into this page, between its two marks"
    )
    options = parser.parse_args()
    saved = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    key = sources()
    built: dict[str, Digests] = saved["ways"] if saved.get("sources") == key else {}
    there = ways()
    for way in options.ways or there:
        if way not in there:
            raise SystemExit(f"there is no way `{way}` here. There are: {', '.join(there)}")
        if way not in built:
            with tempfile.TemporaryDirectory() as scratch:
                built[way] = there[way](Path(scratch))
            RESULTS.write_text(json.dumps({"sources": key, "ways": built}, indent=1) + "\n", "utf-8")
            print(f"{way}: built", flush=True)
    print(table(built))
    if wrong := differences(built):
        raise SystemExit("\n".join(wrong))
    if options.write:
        text = options.write.read_text("utf-8")
        pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
        options.write.write_text(
            re.sub(pattern, lambda _: BEGIN + "\n" + table(built) + "\n" + END, text, flags=re.DOTALL), "utf-8"
        )


if __name__ == "__main__":
    main()
