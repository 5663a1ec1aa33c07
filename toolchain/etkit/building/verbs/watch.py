"""`etbuild watch`: builds again after every change, in a process that has already imported torch and ExecuTorch."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import plugins
from etbuild.cli.options import add_parser, add_path, add_value, declared, settings
from etbuild.cli.options import inputs as declared_inputs
from etbuild.errors import EtbuildError, InputError, check_current_directory, printable
from etbuild.extras import install_hint
from etbuild.manifest.positions import locating
from etkit.building import checkpoints
from etkit.building.history import Entry, History, Score
from etkit.building.verbs import build

if TYPE_CHECKING:
    from etkit.local.build import BuildResult

_WRITTEN_BY_HAND = (".py", ".yaml", ".yml")  # a new one matters: the last build may have missed it
_MADE = (".pte", ".ptd", ".index.json", ".report.json", ".results.json")  # which may be in the directories of inputs


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "watch",
        "build programs now, and again after every change",
        "Watches manifests, sources and data. Needs the extra `watch`.",
    )
    parser.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST", help="a manifest, such as model.yaml")
    build.add_options(parser)
    checkpoints.add_weights(parser)
    add_path(parser, "--html PAGE", "draw seconds, size and agreement of each program over time, in PAGE", dest="page")
    add_value(
        parser,
        "--keep-best VALUE",
        "copy the best program into DIR/best: by `metric` or `agreement` of the manifest's `checks`, or by `size`",
        choices=_VALUES,
    )


_VALUES = ("metric", "agreement", "size")


def run(options: argparse.Namespace) -> int:
    """Builds until it is interrupted."""
    from etbuild.cli.terminal import print_error
    from etbuild.processes import forked
    from etplugins.worker.warm_up import warm

    check_current_directory()
    if find_spec("watchfiles") is None:
        raise InputError.of("`etbuild watch` needs the package `watchfiles`", install_hint("watch"))
    watched, history = _watched(options), History(options.directory, _score(options), options.page)
    warm("build")
    try:
        for changed in _changes(options, watched):
            for path in sorted(changed):
                print(f"changed: {printable(str(path))}", file=sys.stderr)
            for manifest in options.manifests:
                name = f"building {manifest}"
                try:
                    for entry in forked.run({name: _task(options, manifest, history)}, 1)[name]:
                        print(history.add(entry), file=sys.stderr)
                except EtbuildError as error:  # the forked process was killed
                    print_error(error)
                except forked.ChildFailed as bug:
                    print(bug, file=sys.stderr)
            print("watching; Ctrl-C ends it", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return 0


def _score(options: argparse.Namespace) -> Score | None:
    """What makes a program the best one. Raises InputError if a manifest lacks the check."""
    from etbuild.manifest import validate

    check = options.keep_best
    if check is None:
        return None
    if check == "size":
        return Score(check, falls=True)
    falls = plugins.load("score", "check").falls
    every = [
        each
        for manifest in options.manifests
        for each in validate.load_each(manifest, None, build.wanted(options), settings(options))
    ]
    directions = {falls(each, check) for each in every}  # of all manifests, so that each has the check
    return Score(check, falls=directions == {True})


def _task(options: argparse.Namespace, manifest: Path, history: History) -> Callable[[], list[Entry]]:
    """Returns one build as a function for a forked process, so that this process keeps no memory of the build. It
    returns the programs that are new in this watch."""
    own = argparse.Namespace(**{**vars(options), "manifests": [manifest], "restart": lambda: None})

    def task() -> list[Entry]:
        from etbuild.cli.terminal import print_error

        started, entries = time.monotonic(), list[Entry]()
        try:
            outcome = build.build_each(own)
            built, errors = outcome.built, outcome.errors
            if errors:
                several = options.weights or len(errors) > 1
                print_error(checkpoints.in_programs(errors) if several else next(iter(errors.values())))
            entries = [_entry(own, *each) for each in built if history.is_new(each[0], each[1].key)]
            if not options.weights and (text := build.table(outcome)):
                print(text)
                sys.stdout.flush()
            if not errors:
                took = time.monotonic() - started
                print(f"built {printable(str(manifest))} in {took:.1f} s", file=sys.stderr)
        except EtbuildError as error:
            print_error(error)
        return entries

    return task


def _entry(options: argparse.Namespace, name: str, built: BuildResult) -> Entry:
    """A built program, with its score."""
    from etbuild.cli.terminal import print_error
    from etkit.local.agreement import decibels

    files = [artifact for artifact in built.artifacts if artifact.kind in ("program", "named_data")]
    total, score = sum(artifact.size for artifact in files), None
    if options.keep_best == "size":
        score = float(total)
    elif options.keep_best is not None:
        try:
            score = _measured(options, name, files[0].path)
        except EtbuildError as error:
            print_error(error)
    paths = [artifact.path for artifact in built.artifacts]
    return Entry(name, built.key, built.seconds, total, decibels(built.agreement), paths, score)


def _measured(options: argparse.Namespace, name: str, program: Path) -> float:
    """What the check measures with a program."""
    found = next(each for each in build.programs(options) if each.name == name)
    with locating(found.manifest.positions):
        score = plugins.load("score", "check").score
        value: float = score(found.manifest, found.inputs, program, options.keep_best)
    return value


def _watched(options: argparse.Namespace) -> set[Path]:
    """The directories to watch: those of the manifests and of the declared files, and each `--root`."""
    files = {path.resolve() for path in declared("--source", options.source).values()}
    files |= {path.resolve() for path in declared("--data", options.data).values()}
    of_options = [*options.root, *checkpoints.directories(options.weights)]
    directories = {path.resolve() for path in [*(manifest.parent for manifest in options.manifests), *of_options]}
    missing = [path for path in (*sorted(directories), *options.manifests, *sorted(files)) if not path.exists()]
    if missing:
        raise InputError.of(f"{missing[0]}: no such file or directory")
    return directories | {file.parent for file in files}


@dataclass(frozen=True)
class _Read:
    """The files that builds read besides sources and manifests.

    Attributes:
        named: The paths of data that the manifests name, existing or not. None: unknown, because a manifest is wrong.
        linked: The targets of links among this data, with their inodes: watching a link shows no change of its target.
    """

    named: frozenset[Path] | None
    linked: frozenset[tuple[Path, int]]

    @classmethod
    def by(cls, options: argparse.Namespace) -> _Read:
        """What the builds of a command read."""
        from etbuild.inputs.checkpoints import each_with_shards
        from etbuild.manifest import validate
        from etbuild.plan.plan import from_manifest

        named = {path.resolve() for path in checkpoints.directories(options.weights)}
        named |= {path.resolve() for path in (*options.manifests, *declared("--source", options.source).values())}
        linked, is_known = set[tuple[Path, int]](), True
        for manifest in options.manifests:
            try:
                inputs = declared_inputs(options, [manifest.parent, *options.root])
                named |= {path.resolve() for path in inputs.data.values()}
                for loaded in validate.load_each(manifest, None, build.wanted(options), settings(options)):
                    names = from_manifest(loaded.data).data_names
                    named |= {root.resolve() / name for root in inputs.roots for name in names}
                    for name, files in each_with_shards(names, inputs).items():
                        paths = [path for path in map(inputs.find, (name, *files)) if path is not None]
                        named |= {path.absolute() for path in paths} | {path.resolve() for path in paths}
                        targets = {path.resolve() for path in paths if path.resolve() != path.absolute()}
                        linked |= {(target, target.stat().st_ino) for target in targets}
            except (EtbuildError, OSError):
                is_known = False
        return cls(frozenset(named) if is_known else None, frozenset(linked))

    def holds(self, path: Path) -> bool:
        """Whether a build may read a file: a source, a manifest, named data, or a file in a named folder."""
        return self.named is None or path.suffix in _WRITTEN_BY_HAND or not self.named.isdisjoint((path, *path.parents))


def _changes(options: argparse.Namespace, watched: set[Path]) -> Iterator[set[str]]:
    """Yields sets of changed files. The first set is empty: it says that the watch has begun."""
    from watchfiles import watch

    made = (options.cache_dir, options.directory, options.page)
    written = {path.resolve() for path in made if path is not None} - watched
    read, waiting = _Read.by(options), set[str]()

    def matters(change: object, name: str) -> bool:
        path = Path(name)
        return _matters(name) and read.holds(path) and not any(path.is_relative_to(each) for each in written)

    while True:
        started = False
        for changed in watch(
            *watched, *{path for path, _ in read.linked}, watch_filter=matters, rust_timeout=200, yield_on_timeout=True
        ):
            names = {name for _, name in changed}
            if started and not names:
                continue
            before, read = read, _Read.by(options) if started else read
            if read.linked != before.linked:  # the watch of a file ends when another file replaces it
                waiting = names
                break
            started = True
            yield names | waiting
            waiting = set()


def _matters(name: str) -> bool:
    """Returns whether a build may read the file. If no build does, the next build finds everything in the cache."""
    path = Path(name)
    is_output = any(
        part == "__pycache__" or part.startswith(".etbuild-") or part.endswith(".tokenizer") for part in path.parts
    )
    is_directory = path.is_dir() and not path.is_symlink()  # the target of a link may change
    return not is_output and not is_directory and not path.name.startswith(".") and not name.endswith(_MADE)
