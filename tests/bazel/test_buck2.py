"""Both build systems run the driver with the same arguments, for every example."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.buck2.evaluation import REPOSITORY, Buck2
from tests.helpers.workspaces import Workspace

Actions = dict[tuple[str, str], list[list[str]]]
OPTIONS = ("--output=jsonproto",)
QUERY = 'mnemonic("Executorch(Plan|Export|Lower|Compare|Verify|Report|Page|Bundle|Etrecord)", {})'
MESSAGES = ("--positions=", "--lines=", "--unused-inputs=", "--rule-target=", "--rule-command=", "--rule-attribute=")
"""What only messages use. Only Bazel's actions that read lines name them, and each build system has other commands."""


def alike(words: list[str]) -> list[str]:
    """The arguments with the names of plug-ins at their end. Each build system has them elsewhere."""
    option = "--plugin="
    plugins = sorted(option + word.rpartition("/")[2] for word in words if word.startswith(option))
    return [word for word in words if not word.startswith(option)] + plugins


def by_bazel(workspace: Workspace, targets: str) -> Actions:
    """The arguments of the actions, by target and verb. An output is `OUT/PACKAGE/NAME`."""
    queried = json.loads(workspace.run("aquery", QUERY.format(targets), *OPTIONS).out)
    labels = {each["id"]: each["label"] for each in queried["targets"]}
    found: Actions = {}
    for action in queried["actions"]:
        words = [re.sub(r"bazel-out/[^/]+/bin/", "OUT/", word) for word in action["arguments"][1:]]
        words = [
            re.sub(r"/[^/=]+\.unchecked(?=/|$)", "", word) for word in words
        ]  # Bazel 4 copies what passed its checks
        words = [word for word in words if not word.startswith(MESSAGES)]
        found.setdefault((labels[action["targetId"]].removeprefix("@"), words[0]), []).append(alike(words))
    return {key: sorted(words) for key, words in found.items()}


def by_buck2(directory: Path) -> Actions:
    """The same of the rules for Buck2, which read the same BUILD files."""
    buck = Buck2()
    buck.build_file(REPOSITORY / "toolchain/BUCK", "toolchain", "rules_executorch")
    buck.build_file(REPOSITORY / "examples/buck2/toolchains/BUCK", "", "toolchains")
    roots = [*directory.rglob("WORKSPACE"), *directory.rglob("MODULE.bazel")]
    other = [each.parent for each in roots if each.parent != directory]
    for file in sorted(directory.rglob("BUILD")):
        package = str(file.parent.relative_to(directory))
        if (
            not any(file.is_relative_to(each) for each in other)
            and package not in (".", "examples/cpp", "toolchain")  # C++ is for Bazel only
            and not package.startswith(("rules", "tests"))
        ):
            buck.build_file(file, package)
    found: Actions = {}
    for action in buck.analyze()["actions"]:
        words = [re.sub(r"buck-out/v2/art/(.*)/[^/]+/__[^/]+__", r"OUT/\1", word) for word in action["argv"]]
        words = [word for word in words if not word.startswith(("--validation=", *MESSAGES))]
        found.setdefault((action["target"], words[0]), []).append(alike(words))
    return {key: sorted(words) for key, words in found.items()}


def test_both_build_systems_give_the_driver_the_same_arguments(checkout: Workspace) -> None:
    bazel = by_bazel(checkout, "//examples/... union deps(//examples/gallery:all_programs)")
    assert {target for target, _ in bazel} > {"//examples/mlp:mlp", "//examples/vision:vision.ethos_u"}
    assert bazel == by_buck2(checkout.directory)


def test_the_arguments_are_the_same_in_a_workspace_that_uses_the_rules(
    checkout: Workspace, output_root: Path, packages: Path
) -> None:
    monorepo = Workspace(checkout.directory / "examples/monorepo", output_root, packages)
    try:
        bazel = by_bazel(monorepo, "//apps/...")
    finally:
        monorepo.stop()
    assert {target for target, _ in bazel} == {"//apps/fitness:fitness", "//apps/gesture:gesture"}
    assert bazel == by_buck2(monorepo.directory)
