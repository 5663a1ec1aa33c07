"""A package that is no part of ours adds a backend: installed, it is there, with its options, and in the key."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/third_party_backend"
MANIFEST = EXAMPLE / "tally.yaml"


def install(root: Path, change: str = "") -> Path:
    """Installs the example's package, with a change at its end, and returns the directory that has it."""
    shutil.copytree(EXAMPLE, root / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    with (root / "source/etbuild_tally/lowering.py").open("a") as file:
        file.write(change)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(root / "site"), str(root / "source")], check=True)
    return root / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("third_party"))


def etbuild(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, "-m", "etbuild", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_the_package_its_backend_is_unknown() -> None:
    done = etbuild("validate", MANIFEST)
    assert done.returncode == 2
    assert "unknown backend `tally`" in done.stderr


def test_its_methods_share_the_weights_that_they_have_in_common(site: Path, tmp_path: Path) -> None:
    done = etbuild("build", MANIFEST, "--no-cache", "-o", tmp_path, path=site)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "tally.report.json").read_bytes())
    calls = {name: method["operators"]["delegated"]["TallyBackend"] for name, method in report["methods"].items()}
    assert calls["features"] == {"aten::addmm": 1, "aten::permute_copy": 1, "aten::relu": 1}
    assert calls["classify"] == {"aten::addmm": 2, "aten::permute_copy": 2, "aten::relu": 1}
    assert sorted(report["bytes"]["named_data"].values()) == [4 * 8, 4 * 64, 4 * 64 * 8, 4 * 64 * 64]


def test_a_mistake_in_its_options_has_a_place(site: Path, tmp_path: Path) -> None:
    text = MANIFEST.read_text().replace("operators:", "operator:")
    (tmp_path / "tally.yaml").write_text(text)
    done = etbuild("validate", tmp_path / "tally.yaml", path=site)
    assert done.returncode == 2
    assert "tally.yaml:7:34: defaults.partitioners[0].options.operator: unknown key" in done.stderr
    assert "did you mean `operators`?" in done.stderr


def test_its_version_and_content_are_part_of_the_key(site: Path, tmp_path: Path) -> None:
    plans = [
        json.loads(etbuild("plan", MANIFEST, path=path).stdout) for path in (site, install(tmp_path, "# a change\n"))
    ]
    found = [plan["inputs"]["toolchain"]["distributions"].pop("etbuild-tally") for plan in plans]
    assert [one["version"] for one in found] == ["1.0", "1.0"]
    assert found[0]["sha256"] != found[1]["sha256"]
    assert plans[0]["inputs"] == plans[1]["inputs"]
    assert plans[0]["key"] != plans[1]["key"]


def test_a_broken_package_is_named(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    (broken / "etbuild_tally/__init__.py").write_text("import a_module_that_is_not_there\n")
    done = etbuild("validate", MANIFEST, path=broken)
    assert done.returncode == 2
    assert (
        "the entry point `tally` of the group `etbuild.backends` (etbuild_tally:BACKEND) cannot be loaded"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_packages_are_looked_for_where_a_name_is_unknown_and_not_before(site: Path) -> None:
    code = (
        "import sys; from etbuild.cli import main; main(['validate', *sys.argv[1:]]); "
        "print('etbuild_tally' in sys.modules, 'torch' in sys.modules)"
    )
    found = []
    for manifest in (EXAMPLE.parent / "mlp/model.yaml", MANIFEST):
        command = [sys.executable, "-c", code, str(manifest)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
        found.append(done.stdout.splitlines()[-1])
    assert found == ["False False", "True False"]
