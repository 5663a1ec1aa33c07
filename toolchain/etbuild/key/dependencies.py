"""Lists the files that a key depends on, for tools that look at times: CMake, Make and Ninja."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import etbuild
from etbuild import backends
from etbuild.errors import InputError
from etbuild.inputs.sources import UsedSources
from etbuild.key import distributions
from etbuild.key.declared import Inputs
from etbuild.key.key import data_in_key
from etbuild.key.toolchain import toolchain
from etbuild.plan.plan import Plan


def of_plan(plan: Plan, inputs: Inputs, used: UsedSources) -> list[Path]:
    """The sources, the data, the directories that they were searched in, and a file of each package of the toolchain
    that a new installation writes. A new file in a directory can take the place of another one.

    Raises:
        InputError: A data file is not declared.
    """
    data = [inputs.find_data(name, place) for name, place in data_in_key(inputs, plan.data_names).items()]
    described = toolchain(used.packages, backends.distributions(plan.used_backends))
    records = [distributions.record(name) for name in described["distributions"]]
    searched = {*inputs.roots, *(file.parent for file in (*used.sources.values(), *data))}
    return [
        *sorted(each for each in searched if each.is_dir()),
        *used.sources.values(),
        *sorted(data),
        Path(etbuild.__file__),
        *(file for file in records if file is not None),
    ]


def depfile(target: Path, files: Iterable[Path]) -> str:
    """A rule in the form that Make and Ninja read.

    Args:
        target: The file that depends on the others.
        files: The others. Relative paths are made absolute.

    Raises:
        InputError: A name has a line end, which the form cannot express.
    """
    names = [os.path.abspath(file) for file in (target, *dict.fromkeys(files))]  # noqa: PTH100 - links stay links
    for name in names:
        if "\n" in name or "\r" in name:
            raise InputError.of(f"{name}: a depfile cannot name a file with a line end")
    first, *rest = map(_escaped, names)
    return f"{first}:" + "".join(f" \\\n  {name}" for name in rest) + "\n"


def _escaped(name: str) -> str:
    return name.replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ")
