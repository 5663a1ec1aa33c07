"""Builds a program a second time, in other surroundings, and compares the results."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from etbuild.errors import BuildError, InputError
from etbuild.files import artifacts
from etbuild.files.digests import canonical_json
from etbuild.files.scratch import temporary
from etbuild.inputs.declared import Inputs
from etbuild.inputs.import_graph import UsedSources
from etbuild.inputs.key import with_declared
from etbuild.plan.plan import ExportPlan, LowerPlan
from etbuild.processes import environment

# What must not reach the bytes. Without vector instructions PyTorch computes as on another processor.
_SURROUNDINGS = {
    "ATEN_CPU_CAPABILITY": "default",
    "LC_ALL": "C",
    "LOGNAME": "someone-else",
    "OMP_NUM_THREADS": "1",
    "TZ": "TOMORROW-24",  # there it is always another day
    "USER": "someone-else",
}
_WORDS = "another directory, user, locale, time zone and umask, with one thread and without vector instructions"
_HINT = (
    f"it ran in {_WORDS}. These also differ each time, whatever the seed: `numpy.random.default_rng()` and "
    "`random.Random()` without a seed, `random.SystemRandom`, `torch.seed()`, `os.urandom`, `secrets`, `uuid.uuid4`, "
    "the time, process numbers, `id()`, and what the network answers"
)


def verify(
    export_plan: ExportPlan, lower_plan: LowerPlan, inputs: Inputs, used: UsedSources, made: Iterable[Path]
) -> None:
    """Exports and lowers again, without the cache, and compares the result with that of the first build.

    Args:
        export_plan: The plan of the export.
        lower_plan: The plan of the lowering.
        inputs: The declared sources and data.
        used: The sources that the export uses, with their contents.
        made: The artifacts of the first build: files, and directories of shards.

    Raises:
        BuildError: The second build failed, or its result differs. Names the first artifact, section and field.
        InputError: The second build cannot name a file.
    """
    from etbuild.analysis.program_diff import first_difference

    with temporary("again") as scratch:
        again = _build(scratch.path, export_plan, lower_plan, inputs, used)
        for path in made:
            difference = first_difference(path, again / path.name)
            if difference is not None:
                raise BuildError.at((), f"a second build differs in {difference}", _HINT)


def _build(root: Path, export_plan: ExportPlan, lower_plan: LowerPlan, inputs: Inputs, used: UsedSources) -> Path:
    """Runs both steps with copies of the sources, each in its own process. Returns the directory with the outputs."""
    sources = {name: root / "sources" / name for name in used.sources}
    for name, copy in sources.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(used.contents[name])
    for name, plan in (("export.json", export_plan.to_json()), ("lower.json", lower_plan.to_json())):
        artifacts.replace(root / name, canonical_json(plan))
    names = {**lower_plan.weights_names, **export_plan.data_names}
    data = with_declared(inputs, names)
    for name, path in data.items():
        if "=" in name:
            raise InputError.at(path, f"`{name}` has a `=`, so that no second build can name it", "rename the file")
    declared = [f"--data={name}={inputs.find_data(name, path).absolute()}" for name, path in data.items()]
    copies = [f"--source={name}={path}" for name, path in sources.items()]
    _run(root, "export", "export.json", "--inputs=inputs.json", "-o", "export", *copies, *declared)
    _run(root, "lower", "lower.json", "--export=export", "--no-accelerate", "-o", "out", *declared)
    return root / "out"


def _run(root: Path, verb: str, *arguments: str) -> None:
    command = environment.command([verb, *arguments])
    variables = {**environment.environment(), **_SURROUNDINGS}
    done = subprocess.run(command, cwd=root, env=variables, umask=0o077, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"a second build failed, in {_WORDS}:\n{done.stderr.strip()}"
        raise BuildError.of(message)
