"""The CMake package builds a program, and runs only what an edit asks for, with Ninja and with Make."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import etbuild
from tests.helpers.manifests import net

MODEL = net("self.linear = torch.nn.Linear(4, 4)", forward="return self.linear(x)")
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods: {forward: {example_inputs: [{shape: [1, 4]}]}}
named_data: {weights: {parameters: ["*"]}}
"""
PROJECT = """\
cmake_minimum_required(VERSION 3.20)
project(demo NONE)
find_package(etbuild REQUIRED)
executorch_add_program(net MANIFEST "models here/net.yaml" NAMED_DATA weights OUTPUT_DIRECTORY made ALL)
"""


class Project:
    """A project that CMake has configured."""

    def __init__(self, directory: Path, generator: str) -> None:
        self.directory = directory
        self.models = directory / "models here"
        self.models.mkdir(parents=True)
        (directory / "CMakeLists.txt").write_text(PROJECT)
        (self.models / "net.yaml").write_text(MANIFEST)
        (self.models / "model.py").write_text(MODEL)
        self.generator = generator

    def configure(self) -> subprocess.CompletedProcess[str]:
        prefix = etbuild("--cmake-prefix-path").stdout.strip()
        driver = Path(sys.executable).with_name("etbuild")
        options = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DETBUILD_EXECUTABLE={driver}"]
        command = ["cmake", "-G", self.generator, "-S", str(self.directory), "-B", str(self.directory / "build")]
        return subprocess.run([*command, *options], capture_output=True, text=True, check=False)

    def build(self) -> subprocess.CompletedProcess[str]:
        command = ["cmake", "--build", str(self.directory / "build")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def ran(self) -> list[str]:
        """Builds, and returns what ran."""
        done = self.build()
        assert done.returncode == 0, done.stdout + done.stderr
        return [word for word in ("Planning net", "Building net.pte") if word in done.stdout]

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.models / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))


@pytest.fixture(scope="module", params=["Ninja", "Unix Makefiles"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    if shutil.which("cmake") is None or shutil.which("ninja" if request.param == "Ninja" else "make") is None:
        pytest.skip("install cmake, ninja and make")
    made = Project(tmp_path_factory.mktemp("a project"), request.param)
    assert made.configure().returncode == 0
    assert made.ran() == ["Planning net", "Building net.pte"]
    return made


def test_only_what_changed_runs_again(project: Project) -> None:
    """One test, because each step begins where the one before it ends."""
    made = project.directory / "build/made"
    assert {file.name for file in made.iterdir()} >= {"net.pte", "net.weights.ptd", "net.index.json"}
    assert project.ran() == []
    project.edit("net.yaml", "name: net", "name: net  # the network")
    assert project.ran() == ["Planning net"]
    assert project.ran() == []
    before = (made / "net.pte").read_bytes()
    project.edit("model.py", "return self.linear(x)", "return self.linear(x) + 1")
    assert project.ran() == ["Planning net", "Building net.pte"]
    assert (made / "net.pte").read_bytes() != before
    assert project.ran() == []
    (made / "net.weights.ptd").unlink()
    assert project.ran() == ["Building net.pte"]


def test_an_error_of_the_manifest_ends_the_build(project: Project) -> None:
    project.edit("net.yaml", "model:", "model_:")
    done = project.build()
    assert done.returncode != 0
    assert "net.yaml:3:" in done.stdout + done.stderr
    project.edit("net.yaml", "model_:", "model:")
    project.ran()


def test_tags_that_the_manifest_does_not_have(project: Project) -> None:
    lists = project.directory / "CMakeLists.txt"
    lists.write_text(PROJECT.replace("NAMED_DATA weights", "NAMED_DATA others"))
    done = project.build()
    assert done.returncode != 0
    assert "others" in done.stdout + done.stderr
    lists.write_text(PROJECT)
    project.ran()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("net", "MANIFEST is missing"),
        ("net MANIFEST a.yaml DATA b", "expected NAME=FILE"),
        ("net X", "unknown arguments"),
    ],
)
def test_a_wrong_call_is_an_error(arguments: str, message: str, project: Project) -> None:
    lists = project.directory / "CMakeLists.txt"
    lists.write_text(PROJECT.replace("executorch_add_program(net", f"executorch_add_program({arguments})\n#"))
    done = project.configure()
    assert done.returncode != 0
    assert message in done.stderr
    lists.write_text(PROJECT)
