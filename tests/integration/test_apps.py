"""The apps of examples/android and examples/ios, as far as they can be checked without SDKs, and examples/fetch."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from tests.conftest import EXAMPLES, MANIFESTS
from tests.helpers.commands import etbuild
from tests.registry.servers import Registry

ANDROID, IOS = EXAMPLES / "android", EXAMPLES / "ios"
KOTLIN = ANDROID / "app/src/main/kotlin/com/example/mlp"
SWIFT = IOS / "Sources/Classifier"
STUBS = Path(__file__).parents[1] / "helpers/android_stubs"


def text(*files: Path) -> str:
    return "\n".join(file.read_text("utf-8") for file in files)


def found(pattern: str, *files: Path) -> str:
    """What the group of the pattern matches, in the only place where the pattern matches."""
    [match] = re.findall(pattern, text(*files))
    return str(match)


class Programs:
    """A package with the programs of both apps in a registry, and what a command of an app needs."""

    def __init__(self, directory: Path, address: str, programs: list[Path]) -> None:
        self.directory = directory
        self.built = {program.stem: program.parent for program in programs}
        indexes = [program.with_suffix(".index.json") for program in programs]
        layout = directory / "models.oci"
        assert etbuild("package", *indexes, "-o", layout).returncode == 0
        self.tag = f"{address}/models/apps:v1"
        digest = json.loads(etbuild("push", layout, self.tag, "--json").stdout)["digest"]
        self.reference = f"{address}/models/apps@{digest}"
        script = directory / "bin/etbuild"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m etbuild "$@"\n')
        script.chmod(0o755)

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            [*map(str, command)], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )

    def index(self, name: str) -> Any:
        return json.loads((self.built[name] / f"{name}.index.json").read_text())

    def signature(self, name: str, method: str) -> tuple[Any, Any]:
        """The only input and the only output of a method."""
        described = json.loads((self.built[name] / f"{name}.report.json").read_text())["methods"][method]
        [given], [made] = described["inputs"], described["outputs"]
        return given, made

    def are_in(self, directory: Path, name: str) -> bool:
        """Whether a directory has the files of a program, byte for byte."""
        names = [artifact["file"] for artifact in self.index(name)["artifacts"]]
        return all((directory / each).read_bytes() == (self.built[name] / each).read_bytes() for each in names)


@pytest.fixture(scope="module")
def programs(cli_built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    directory = tmp_path_factory.mktemp("apps")
    registry = Registry(directory / "registry")
    registry.start()
    yield Programs(directory, registry.address, [cli_built("mlp"), cli_built("classifier")])
    registry.kill()


@pytest.mark.parametrize(("language", "files"), [("kotlin", "android/**/*.kt*"), ("swift", "ios/**/*.swift")])
def test_the_syntax(language: str, files: str) -> None:
    tree_sitter = pytest.importorskip("tree_sitter", reason="`make venv` installs tree-sitter")
    grammar = importlib.import_module(f"tree_sitter_{language}")
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))
    sources = [each.read_bytes() for each in EXAMPLES.glob(files)]
    assert len(sources) >= 5
    for source in sources:
        assert not parser.parse(source).root_node.has_error
        assert parser.parse(source.replace(b"(", b"", 1)).root_node.has_error


def test_the_files_of_android_fit_together() -> None:
    name = "{http://schemas.android.com/apk/res/android}name"
    gradle = ANDROID / "app/build.gradle.kts"
    [activity] = ET.parse(ANDROID / "app/src/main/AndroidManifest.xml").iter("activity")
    assert (KOTLIN / f"{activity.attrib[name].removeprefix('.')}.kt").is_file()
    packages = set(re.findall(r"^package (\S+)$", text(*KOTLIN.iterdir()), re.MULTILINE))
    assert (
        packages
        == {found(r'namespace = "(.*)"', gradle)}
        == {KOTLIN.relative_to(KOTLIN.parents[2]).as_posix().replace("/", ".")}
    )
    assert found(r'include\(":(.*)"\)', ANDROID / "settings.gradle.kts") == gradle.parent.name
    property_of_gradle = found(r"val (\w+): String by project", gradle)
    assert re.search(rf"^{property_of_gradle}=", text(ANDROID / "gradle.properties"), re.MULTILINE)


def test_the_files_of_ios_fit_together() -> None:
    manifest = text(IOS / "Package.swift")
    targets = re.findall(r'arget\(\s*name: "(\w+)"', manifest)
    assert sorted(targets) == sorted(each.name for each in (IOS / "Sources").iterdir())
    assert (SWIFT / found(r'\.copy\("(\w+)"\)', IOS / "Package.swift")).is_dir()
    project = yaml.safe_load(text(IOS / "app/project.yml"))
    assert (IOS / "app" / project["packages"]["Classifier"]["path"]).resolve() == IOS.resolve()
    [target] = project["targets"].values()
    assert all((IOS / "app" / source).is_file() for source in target["sources"])


def test_the_compiler_takes_the_kotlin(tmp_path: Path) -> None:
    kotlinc = os.environ.get("KOTLINC") or shutil.which("kotlinc")
    if not kotlinc:
        pytest.skip("kotlinc is not installed: npm's package kotlin-compiler has it")
    command = [kotlinc, "-Werror", "-jvm-target", "11", STUBS, ANDROID / "app/src/main/kotlin", "-d", tmp_path]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "com/example/mlp/MainActivity.class").is_file()


def test_gradle_pulls_the_program(programs: Programs, tmp_path: Path) -> None:
    arguments = found(r"commandLine\((.*)\)", ANDROID / "app/build.gradle.kts").split(", ")
    values = {"programs": programs.reference, "directory": str(tmp_path / "programs")}
    command = [values[each] if each in values else json.loads(each) for each in arguments]
    done = programs.run(*command)
    assert done.returncode == 0, done.stderr
    assert programs.are_in(tmp_path / "programs", "mlp")
    assert not list((tmp_path / "programs").glob("classifier*"))
    (tmp_path / "programs/mlp.pte").write_bytes(b"another file")
    assert programs.run(*command).returncode == 0
    assert programs.are_in(tmp_path / "programs", "mlp")
    pattern = found(r'Regex\("(.*)"\)', ANDROID / "app/build.gradle.kts")
    assert re.fullmatch(pattern, programs.reference)
    assert not re.fullmatch(pattern, programs.tag)
    assert not re.fullmatch(pattern, found(r"(?m)^programs=(.*)$", ANDROID / "gradle.properties"))


def test_ios_pulls_the_program(programs: Programs, tmp_path: Path) -> None:
    app = shutil.copytree(IOS, tmp_path / "ios")
    directory = app / "Sources/Classifier/Programs"
    refused = programs.run(app / "fetch.sh", programs.tag)
    assert refused.returncode == 2
    assert "by its digest" in refused.stderr
    for _ in range(2):  # the second time it repairs the file
        done = programs.run(app / "fetch.sh", programs.reference)
        assert done.returncode == 0, done.stderr
        assert programs.are_in(directory, "classifier")
        assert not list(directory.glob("mlp*"))
        (directory / "classifier.backbone.ptd").write_bytes(b"another file")
    other = programs.run(app / "fetch.sh", programs.reference[:-64] + "0" * 64)
    assert other.returncode != 0


def test_cmake_pulls_the_program(programs: Programs, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("install cmake")
    configure = ["cmake", "-S", EXAMPLES / "fetch", "-B", tmp_path / "build"]
    refused = programs.run(*configure, f"-DPROGRAMS={programs.tag}")
    assert refused.returncode != 0
    assert "by its digest" in refused.stderr
    done = programs.run(*configure, f"-DPROGRAMS={programs.reference}")
    assert done.returncode == 0, done.stderr
    assert programs.run("cmake", "--install", tmp_path / "build", "--prefix", tmp_path / "app").returncode == 0
    assert programs.are_in(tmp_path / "app/share/app", "classifier")


def test_the_kotlin_is_for_the_built_program(programs: Programs) -> None:
    activity, files = KOTLIN / "MainActivity.kt", KOTLIN / "Programs.kt"
    given, made = programs.signature("mlp", found(r'execute\("(\w+)"', activity))
    shape = json.loads("[" + found(r"longArrayOf\((.*?)\)", activity) + "]")
    assert given == {"dtype": "float32", "dynamic": False, "shape": shape}
    assert f"float32, {made['shape'][1]} numbers" in text(activity)
    assert int(found(r"FloatArray\((\d+)\)", activity)) == given["shape"][1]
    assert (
        found(r'installedProgram\(this, "(.*)"\)', activity)
        == "mlp"
        == found(r'"--program", "(.*?)"', ANDROID / "app/build.gradle.kts")
    )
    index = programs.index("mlp")
    assert re.findall(r'getJSON\w+\("(\w+)"\)', text(files)) == ["artifacts", "inputs", "plan"]
    assert index["inputs"]["plan"]
    [program] = [each for each in index["artifacts"] if each["kind"] == "program"]
    assert (program["file"], len(program["sha256"])) == ("mlp.pte", 64)


def test_the_swift_is_for_the_built_program(programs: Programs) -> None:
    source = SWIFT / "Classifier.swift"
    given, made = programs.signature("classifier", found(r'execute\("(\w+)"', source))
    last = int(found(r"\(1\.\.\.(\d+)\)", source))
    assert given == {"dtype": "int64", "dynamic": True, "shape": [1, last]}
    assert (made["dtype"], made["shape"][0]) == ("float32", 1)
    assert f"each of {made['shape'][1]} classes" in text(source)
    assert found(r'ProgramFiles\(name: "(\w+)"', source) == "classifier" == found(r"--program (\w+)", IOS / "fetch.sh")
    assert found(r"Tensor<(Int64)>", source)
    artifacts = programs.index("classifier")["artifacts"]
    assert {"program", "named_data"} <= {each["kind"] for each in artifacts}
    assert set(re.findall(r'paths\("(\w+)"\)', text(SWIFT / "ProgramFiles.swift"))) == {"program", "named_data"}
    assert all(each.keys() >= {"file", "kind", "size"} for each in artifacts)


def test_programs_that_the_apps_refuse() -> None:
    """Both apps read this key of the plan, under this name."""
    key = found(r'optBoolean\("(\w+)"\)', KOTLIN / "Programs.kt")
    assert f"let {key}: Bool?" in text(SWIFT / "ProgramFiles.swift")
    assert json.loads(etbuild("plan", MANIFESTS["tiny_lm"]).stdout)["inputs"]["plan"][key] is True


def test_the_runtimes_are_as_new_as_what_lowered(programs: Programs) -> None:
    lowered = Version(programs.index("mlp")["versions"]["executorch"])
    assert Version(found(r"org\.pytorch:executorch-android:([\d.]+)", ANDROID / "app/build.gradle.kts")) >= lowered
    assert Version(found(r'branch: "swiftpm-([\d.]+)"', IOS / "Package.swift")) >= lowered
