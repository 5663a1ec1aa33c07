"""`etbuild lock`: compares builds with lockfiles that are checked in, or writes a lockfile."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_value
from etbuild.errors import CheckError, InputError, Problem, counted, printable


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "lock", "compare a build with its lockfile, or write the lockfile")
    parser.add_argument("build", type=Path, metavar="INDEX", help="an index, or a directory with an index")
    parser.add_argument("lock", type=Path, nargs="*", metavar="LOCK", help="the lockfile, such as NAME.lock.json")
    add_flag(parser, "--update", "write the lockfile instead of comparing")
    add_flag(
        parser,
        "--check",
        "the arguments are manifests or folders: build each one, and compare it with NAME.lock.json beside it or in "
        "`locks`; in a folder, manifests without a lockfile do not count",
    )
    add_value(
        parser, "--hint TEXT", "how to update the lockfile, for the error message (default: this command with --update)"
    )


def run(options: argparse.Namespace) -> int:
    """Compares builds with lockfiles, or writes a lockfile."""
    from etkit import find_index
    from etkit.building import lockfile

    if options.check:
        return _check(options)
    if len(options.lock) != 1:
        hint = "write `etbuild lock out/net.index.json net.lock.json`, or `etbuild lock --check models`"
        raise InputError.of("expected an index and one lockfile", hint)
    content, path = lockfile.lock(find_index.index_of(options.build)), options.lock[0]
    if options.update:
        lockfile.write(path, content)
        print(f"{printable(str(path))}: written")
    else:
        hint = options.hint or f"etbuild lock {options.build} {path} --update"
        lockfile.check(path, content, hint)
        print(f"{printable(path.name)}: as built")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Builds manifests, and compares each with its lockfile."""
    from etkit import find_index
    from etkit.building import lockfile

    if options.update:
        raise InputError.of("--check compares, and --update writes", "leave one of them out")
    locks = dict(_locks([options.build, *options.lock]))
    if not locks:
        raise InputError.of("no manifest here has a lockfile", "`etbuild lock INDEX LOCK --update` writes one")
    problems: list[Problem] = []
    with tempfile.TemporaryDirectory() as scratch:
        for manifest, path in locks.items():
            index = _built(options, manifest, Path(scratch))
            hint = options.hint or (f"etbuild build {manifest} -o out && etbuild lock out/{index.name} {path} --update")
            try:
                lockfile.check(path, lockfile.lock(find_index.index_of(index)), hint)
            except CheckError as error:
                problems += error.problems
    CheckError.raise_if(problems)
    print(f"{counted(len(locks), 'program')} as locked")
    return 0


def _locks(given: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Yields manifests with their lockfiles. One that was named must have a lockfile; of a folder, only those with one
    count."""
    from etbuild.manifest import validate
    from etkit.manifests import each_manifest

    for place in given:
        for manifest in each_manifest([place]):
            name = f"{validate.load(manifest).data['name']}.lock.json"
            places = (manifest.with_name(name), manifest.parent / "locks" / name)
            lock = next((each for each in places if each.exists()), None)
            if lock is not None:
                yield manifest, lock
            elif not place.is_dir():
                hint = f"`etbuild lock INDEX {places[0]} --update` writes one"
                raise InputError.of(f"{manifest}: there is no lockfile {name} beside it or in `locks`", hint)


def _built(options: argparse.Namespace, manifest: Path, directory: Path) -> Path:
    """Builds a manifest, or takes it from the cache. Returns its index."""
    from etbuild.cli.main import command_parser
    from etkit.building.verbs import build

    parsed = command_parser(["build"]).parse_args(["build", str(manifest), "-o", str(directory)])
    parsed.restart = options.restart
    outcome = build.build_each(parsed)
    for error in outcome.errors.values():
        raise error
    return next(each.path for each in outcome.built[0][1].artifacts if each.kind == "index")
