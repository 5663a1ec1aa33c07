"""The patches of `upstream/`: they apply to the installed packages, and make switches and workarounds unnecessary.

A patched process lowers the same models as a process with the installed packages, with switches and without. What is
compared is the bytes, and how often something is done: no seconds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from etplugins.accelerate import occasions
from tests.conformance.upstream_limits import LIMITS
from tests.helpers import patched_packages

ROOT = Path(__file__).parents[2]
SWITCHES = sorted(path.stem for path in (ROOT / "toolchain/etplugins/accelerate").glob("*.py"))
PATCHES = patched_packages.patches()
NAMES = [patch.stem for patch in PATCHES]
NOT_COUNTED = {
    "import_inductor_later",  # an import happens once, before a process can count
    "merge_by_sets",  # how often it looks depends on the order of a set, because it stops at the first hit
}
COUNTED = sorted(set(NAMES) & set(SWITCHES) - NOT_COUNTED)
OF_LIMITS = sorted(set(NAMES) & {limit.name for limit in LIMITS})

of_the_packages = pytest.mark.long("packages")  # what `results` finds in a minute or two
Results = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all patches, applied one after the other."""
    directory = tmp_path_factory.mktemp("patched")
    patched_packages.apply(PATCHES, directory, fuzz=2)
    return directory


def files(patch: Path, directory: Path) -> list[str]:
    root = directory / patched_packages.root(patch)
    return [str(root / path) for path in patched_packages.test_paths(patch)]


@pytest.fixture(scope="module")
def results(applied: Path) -> Results:
    """What the installed and the patched packages do, in two processes at the same time."""
    switches = sorted(set(NAMES) & set(SWITCHES) - {"import_inductor_later"})
    tests = [file for patch in PATCHES for file in files(patch, applied)]
    requests = [
        (dict(os.environ), {"work": [[], switches], "tests": tests}),
        (patched_packages.environment(applied), {"work": [[]], "tests": tests}),
    ]
    command = [sys.executable, "-m", "tests.helpers.counted_work"]
    processes = [
        subprocess.Popen([*command, json.dumps(request)], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        for environment, request in requests
    ]
    installed, patched = (json.loads(process.communicate()[0].splitlines()[-1]) for process in processes)
    return installed, patched


@pytest.mark.parametrize("patch", PATCHES, ids=NAMES)
def test_a_patch_applies_to_the_installed_files(patch: Path, tmp_path: Path) -> None:
    patched_packages.apply([patch], tmp_path)
    assert files(patch, tmp_path)


@pytest.mark.parametrize("patch", PATCHES, ids=NAMES)
def test_a_patch_says_what_it_changes_and_how_to_test_it(patch: Path) -> None:
    assert patch.stem in {*SWITCHES, *(limit.name for limit in LIMITS)}
    message, _, changes = patch.read_text("utf-8").partition("\n---\n")
    assert re.search(r"^Subject: \[PATCH\] \S", message, re.MULTILINE)
    [test] = patched_packages.test_paths(patch)
    assert f"Test: python {'-m unittest ' if patched_packages.root(patch) else ''}{test}\n" in f"{message}\n"
    assert all(f"diff --git a/{path} b/{path}" in changes for path in patched_packages.paths(patch))
    assert max(map(len, message.splitlines())) <= 80


@of_the_packages
def test_the_programs_stay_the_same(results: Results) -> None:
    (installed, switched), [patched] = (result["work"] for result in results)
    assert installed["programs"] == switched["programs"] == patched["programs"]


@of_the_packages
@pytest.mark.parametrize("switch", COUNTED)
def test_a_patch_avoids_what_its_switch_avoids(switch: str, results: Results) -> None:
    (installed, switched), [patched] = (result["work"] for result in results)
    counts = [work["counts"][switch] for work in (installed, switched, patched)]
    assert counts[2] <= counts[1] < counts[0], counts


@of_the_packages
def test_patched_packages_do_not_import_inductor(results: Results) -> None:
    assert [result["imported_inductor"] for result in results] == [True, False]


@of_the_packages
@pytest.mark.parametrize("patch", PATCHES, ids=NAMES)
def test_the_tests_of_a_patch_pass_with_it_and_fail_without(patch: Path, applied: Path, results: Results) -> None:
    installed, patched = (result["tests"] for result in results)
    for file in files(patch, applied):
        assert not patched[file], "\n".join(patched[file])
        assert installed[file], "it passes without the patch too"


def test_the_limits_with_patches_are_gone(applied: Path) -> None:
    test = "tests/conformance/test_upstream_limits.py::test_the_limit_is_still_there"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"{test}[{name}]" for name in OF_LIMITS),
    ]
    environment = patched_packages.environment(applied)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert [name for name in OF_LIMITS if f"upstream has fixed `{name}`" not in done.stdout] == [], done.stdout


def test_the_page_names_each_patch() -> None:
    text = (ROOT / "docs/upstream.md").read_text("utf-8")
    assert [name for name in NAMES if f"upstream/{name}.patch" not in text] == []


def test_each_switch_of_lowering_has_a_patch_or_a_reason() -> None:
    """A new switch is work for upstream too."""
    text = (ROOT / "upstream/README.md").read_text("utf-8")
    others = {
        "annotate_where_possible",
        "import_inductor_later",
        "import_lowering_later",
        "save_without_canonical_form",
    }
    switches = {*occasions.SWITCHES, *others}
    assert [name for name in sorted(switches - set(NAMES)) if f"`{name}`" not in text] == []
