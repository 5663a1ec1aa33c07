"""Builds a program a second time, in other surroundings, and compares the results."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from etbuild.errors import BuildError, InputError
from etbuild.files import json_file
from etbuild.files.digests import canonical_json
from etbuild.files.scratch import temporary
from etbuild.inputs.sources import UsedSources
from etbuild.key.declared import Inputs
from etbuild.key.key import data_in_key
from etbuild.plan.step_plans import ExportPlan, LowerPlan
from etbuild.publishing import artifacts
from etbuild.surroundings import environment
from etkit.inspection.program_diff import first_difference
from etkit.local.build import FirstBuild

# Surroundings that must not change the bytes. Threads and instructions are equal in all builds: see
# `surroundings.arithmetic`.
_SURROUNDINGS = {
    "LC_ALL": "C",
    "LOGNAME": "someone-else",
    "TZ": "TOMORROW-24",  # in this time zone, it is always another day
    "USER": "someone-else",
}
_WORDS = "another directory, user, locale, time zone and umask"
_HINT = (
    f"it ran in {_WORDS}. These also differ each time, whatever the seed: `numpy.random.default_rng()` and "
    "`random.Random()` without a seed, `random.SystemRandom`, `torch.seed()`, `os.urandom`, `secrets`, `uuid.uuid4`, "
    "the time, process numbers, `id()`, and what the network answers"
)


_CACHES = "the artifacts are equal, but a cache of another machine would not have what this one looks for"

_LINES, _EXAMPLES = "lines.json", "examples.safetensors"


def verify(
    export_plan: ExportPlan, lower_plan: LowerPlan, inputs: Inputs, used: UsedSources, first: FirstBuild
) -> None:
    """Exports and lowers again, without the cache, and compares every file with that of the first build.

    Args:
        export_plan: The plan of the export.
        lower_plan: The plan of the lowering.
        inputs: The declared sources and data.
        used: The sources that the export uses, with their contents.
        first: The first build.

    Raises:
        BuildError: The second build failed, or its result differs. Names the first file, section and field.
        InputError: The second build cannot name a file.
    """
    with temporary("again") as scratch:
        _build(scratch.path, export_plan, lower_plan, inputs, used, first)
        for path in first.artifacts:
            if path.name.endswith(".lowering.json"):
                _take_reasons(path, scratch.path / "out" / path.name)
            difference = first_difference(path, scratch.path / "out" / path.name)
            if difference is not None:
                raise BuildError.at((), f"a second build differs in {difference}", _HINT)
        for path, again in _steps(first, scratch.path):
            difference = first_difference(path, again)
            if difference is not None:
                raise BuildError.at((), f"a second build differs in {difference}", f"{_CACHES}; {_HINT}")


def _take_reasons(facts: Path, again: Path) -> None:
    """Copies the reasons for lowering methods with weights: the second build always does this, and has no reasons."""
    first, second = (json_file.parse(path.read_bytes()) for path in (facts, again))
    artifacts.replace(again, canonical_json({**second, "with_weights": first["with_weights"]}))


def _build(
    root: Path,
    export_plan: ExportPlan,
    lower_plan: LowerPlan,
    inputs: Inputs,
    used: UsedSources,
    first: FirstBuild,
) -> None:
    """Runs the steps with copies of the sources, each in its own process.

    Besides the steps of the first build, one lowers all methods together, without the switches of `accelerate`.
    """
    sources = {name: root / "sources" / name for name in used.sources}
    for name, copy in sources.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(used.contents[name])
    names = {_method(path) for path in first.lowered}
    plans = {f"lower.{name}": lower_plan.of_method(name).to_json() for name in sorted(names)}
    for step, plan in {"export": export_plan.to_json(), "lower": lower_plan.to_json(), **plans}.items():
        artifacts.replace(root / f"{step}.json", canonical_json(plan))
    data = data_in_key(inputs, {**lower_plan.weights_names, **export_plan.data_names})
    for name, path in data.items():
        if "=" in name:
            raise InputError.at(path, f"`{name}` has a `=`, which `--data=NAME=FILE` cannot take", "rename the file")
    declared = {name: f"--data={name}={inputs.find_data(name, path).absolute()}" for name, path in data.items()}
    form = json_file.Format("what an export read", "step#inputs")
    read = declared if first.inputs is None else json_file.read(first.inputs, form)["data"]
    of_export = [declared[name] for name in read]
    copies = [f"--source={name}={path}" for name, path in sources.items()]
    apart = [f"--method={name}={name}.pt2" for name in first.exported]
    apart += [f"--lines={_LINES}"] if first.lines is not None else []
    apart += [f"--examples={_EXAMPLES}"] if first.examples is not None else []
    _run(root, "export", "export.json", "--inputs=inputs.json", *apart, "-o", "export", *copies, *of_export)
    exported = ["--export=export", *(f"--exported={name}={name}.pt2" for name in first.exported)]
    _run(root, "lower", "lower.json", *exported, "--no-accelerate", "-o", "out", *declared.values())
    for one in plans:
        by_itself = ["--templates", "--with-weights", "-o", one]
        _run(root, "lower", f"{one}.json", *exported, *by_itself, *declared.values())


def _steps(first: FirstBuild, again: Path) -> Iterator[tuple[Path, Path]]:
    """Pairs of files or directories: what a step of the first build has written, and what the second has written."""
    yield first.export, again / "export"
    for name, path in first.exported.items():
        yield path, again / f"{name}.pt2"
    if first.lines is not None:
        yield first.lines, again / _LINES
    if first.examples is not None:
        yield first.examples, again / _EXAMPLES
    if first.inputs is not None:
        yield first.inputs, again / "inputs.json"
    for path in first.lowered:
        yield path, again / f"lower.{_method(path)}" / path.name


def _method(directory: Path) -> str:
    """The method that is lowered in a directory. No name of a method has a point."""
    return directory.name.partition(".")[0]


def _run(root: Path, verb: str, *arguments: str) -> None:
    command = environment.command([verb, *arguments])
    variables = {**environment.environment(), **_SURROUNDINGS}
    done = subprocess.run(command, cwd=root, env=variables, umask=0o077, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"a second build failed, in {_WORDS}:\n{done.stderr.strip()}"
        raise BuildError.of(message)
