"""Makes the files with facts for the build rules and the driver: Python defines them, and the rules load the files.

The facts about packages have a file of their own: an edit to any file that the repository rule of the packages loads
fetches them again, which takes minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import update_lock
from etbuild import backends, plugins
from etbuild.cli.options import RESOURCE_SETS
from etbuild.files.weights_suffixes import GGUF_SUFFIX, INDEX_SUFFIXES, WEIGHTS_SUFFIXES
from etbuild.key import code
from etbuild.manifest.file_names import OTHER_OUTPUTS
from etbuild.plan.expectations import INPUTS
from etbuild.plugins import Plugin
from etbuild.releases import SUPPORTED
from etkit.building.checkpoints import CHARACTERS

_OF_PROGRAMS = '''\
"""What the rules and the driver both know about programs. `make reference` writes this file; do not edit."""

# The attributes of a program that hold files besides sources. `reads` has the actions that read them: `export`,
# `template` (lowers methods without weights), `program` (writes or runs the program) and `report`. If `renamed`, there
# is an attribute `NAME_as`.
# buildifier: disable=unsorted-dict-items
INPUTS = {inputs}

# The backends that compile a method without its weights.
TEMPLATES = {templates}

# The plug-ins that only some programs use, each with the backends that it provides. A target names those that it
# needs in `plugins`; `backends` name their plug-ins too.
# buildifier: disable=unsorted-dict-items
PLUGINS = {plugins}

# `plugins` of a target that may use any of them.
ANY_PLUGIN = {any_plugin}

# The other plug-ins, which programs have without naming them, each with the steps whose actions have it.
# buildifier: disable=unsorted-dict-items
PLUGINS_OF_STEPS = {plugins_of_steps}

# `NAME.TAG` is another output for each of these, so they cannot be tags.
NOT_TAGS = {not_tags}

# The suffixes of files with weights.
WEIGHTS_SUFFIXES = {weights_suffixes}
GGUF_SUFFIX = {gguf_suffix}

# What the name of a checkpoint in the name of a program consists of.
CHARACTERS = {characters}

# The memory that a target can reserve, in MB, by the values of its attribute `resource_set`.
# buildifier: disable=unsorted-dict-items
RESOURCE_SETS = {resource_sets}
'''
_OF_PACKAGES = '''\
"""What the rules and the driver both know about packages. `make reference` writes this file; do not edit."""

# The packages that the driver needs, without those that these need: `dependencies` of pyproject.toml.
REQUIRED = {required}

# The extras in pyproject.toml. requirements-EXTRA.lock holds the packages that an extra adds to the lock.
EXTRAS = {extras}

# The supported versions of Python, the preferred one first.
VERSIONS = {versions}

# The versions of Python with a CPU build of torch in the lock, by platform. The others have what the package index has.
CPU_BUILDS = {cpu_builds}

# The releases of ExecuTorch: the one in the lock, and those that can take its place.
NEWEST_RELEASE = {newest_release}
OLDER_RELEASES = {older_releases}

# The constraints of each kind of machine that packages can be for, by the name that rules_python gives it.
PLATFORMS = {platforms}
'''
_REQUIREMENTS = """\
# What the driver needs, for the lock of a workspace. `make reference` writes this file; do not edit.
"""
_RULES_PYTHON = {"arm64": "aarch64", "darwin": "osx"}
_CONSTRAINTS = {"osx": "macos"}


def files(root: Path) -> dict[str, str]:
    """Returns the content of each file by its path in the repository."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "rules/private/facts.bzl": _of_programs(),
        "rules/private/package_facts.bzl": _of_packages(project),
        "toolchain/requirements.in": _REQUIREMENTS + "".join(f"{text}\n" for text in project["dependencies"]),
    }


def _of_programs() -> str:
    rows = {name: f"struct(reads = {json.dumps(row.actions)}, renamed = {row.renamed})" for name, row in INPUTS.items()}
    of_builds = [each for package, each in plugins.plugins().items() if package.startswith("etplugins.")]
    return _OF_PROGRAMS.format(
        inputs=_dict(rows),
        templates=_list(sorted(name for name, each in backends.BACKENDS.items() if each.compiles_templates)),
        plugins=_dict(
            {each.name: json.dumps(sorted(each.provides.get("backend", ()))) for each in of_builds if each.is_named}
        ),
        any_plugin=json.dumps(plugins.ANY),
        plugins_of_steps=_dict({each.name: json.dumps(_steps(each)) for each in of_builds if not each.is_named}),
        not_tags=_list(OTHER_OUTPUTS),
        weights_suffixes=_list((*INDEX_SUFFIXES, *WEIGHTS_SUFFIXES)),
        gguf_suffix=json.dumps(GGUF_SUFFIX),
        characters=json.dumps(CHARACTERS),
        resource_sets=_dict({name: str(size) for name, size in RESOURCE_SETS.items()}),
    )


def _steps(plugin: Plugin) -> list[str]:
    """The steps whose actions have a plug-in that no target names: those that need it, or another one that uses it."""
    users = (plugins.plugins()[package] for package in plugins.of_all_programs())
    return sorted({step for user in users if plugin in plugins.with_used([user.package]) for step in _own_steps(user)})


def _own_steps(plugin: Plugin) -> set[str]:
    if plugin.provides.keys() & plugins.AROUND_STEPS:
        return {step for each in code.packages().values() for step in each}
    own = {*plugin.always, *plugin.provides.get("step", ())}
    if own & {"export", "lower"}:
        own.add("report")  # it names the digests of what made the program
    return own | {plugins.STEPS_OF_GROUPS[group] for group in plugin.provides if group in plugins.STEPS_OF_GROUPS}


def _of_packages(project: Mapping[str, Iterable[str]]) -> str:
    platforms = {_platform(values) for values in update_lock.PLATFORMS.values()}
    cpu: dict[str, list[str]] = {}
    for pin in update_lock.pins(
        (update_lock.HERE / "requirements-cpu.lock").read_text("utf-8").split("\n", 2)[2]
    ).values():
        for python, platform in sorted(pin.needed, key=lambda each: Version(each[0]), reverse=True):
            cpu.setdefault(_platform(update_lock.PLATFORMS[platform]), []).append(python)
    return _OF_PACKAGES.format(
        required=_list(sorted(canonicalize_name(Requirement(text).name) for text in project["dependencies"])),
        extras=_list(sorted(project["optional-dependencies"])),
        versions=_list(sorted(update_lock.PYTHONS, key=Version, reverse=True)),
        cpu_builds=_dict({name: json.dumps(versions) for name, versions in sorted(cpu.items())}),
        newest_release=json.dumps(SUPPORTED[-1]),
        older_releases=_list(SUPPORTED[:-1]),
        platforms=_dict({name: _constraints(name) for name in sorted(platforms)}),
    )


def _platform(values: Mapping[str, str]) -> str:
    return "_".join(_RULES_PYTHON.get(values[each], values[each]) for each in ("sys_platform", "platform_machine"))


def _constraints(platform: str) -> str:
    system, _, processor = platform.partition("_")
    kinds = (f"os:{_CONSTRAINTS.get(system, system)}", f"cpu:{processor}")
    return json.dumps([f"@platforms//{each}" for each in kinds])


def _list(items: Iterable[str]) -> str:
    return "[\n" + "".join(f"    {json.dumps(item)},\n" for item in items) + "]"


def _dict(items: Mapping[str, str]) -> str:
    return "{\n" + "".join(f"    {json.dumps(name)}: {value},\n" for name, value in items.items()) + "}"
