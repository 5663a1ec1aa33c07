"""Surroundings of a build on the command line: variables, directories of packages, code that runs when Python
starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from etbuild.errors import InputError
from etbuild.key import distributions
from etbuild.surroundings.environment import FIXED, environment, python_path
from etplugins.assignments import small_sizes
from tests.helpers.commands import etbuild
from tests.helpers.manifests import one_method

MANIFEST = one_method()
# The width of the layer shows which surroundings reach the model.
MODEL = """\
import json, locale, os, sys, torch

WIDTH = 8 + json.loads("[1]")[0] * 0

def create():
    assert __debug__
    assert not hasattr(sys, "customized"), sys.customized
    width = WIDTH + int(os.environ.get("MY_WIDTH", 0))
    assert list({"a", "b", "c"}) == EXPECTED, list({"a", "b", "c"})
    assert locale.getpreferredencoding(False).lower() == "utf-8"
    torch.manual_seed(0)
    return torch.nn.Linear(8, width)
"""
CUSTOMIZE = "import sys\nsys.customized = __name__\n"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    # The order of a set with the hash seed 0.
    script = "print(list({'a', 'b', 'c'}))"
    order = subprocess.run([sys.executable, "-c", script], env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    (tmp_path / "model.py").write_text(f"EXPECTED = {order.stdout.strip()}\n{MODEL}")
    (tmp_path / "model.yaml").write_text(MANIFEST)
    return tmp_path / "model.yaml"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory for PYTHONPATH that changes everything."""
    place = tmp_path / "hostile"
    place.mkdir()
    for name in ("sitecustomize", "usercustomize"):
        (place / f"{name}.py").write_text(CUSTOMIZE)
    (place / "json.py").write_text("def loads(text):\n    return [3]\n")
    (place / "numpy").mkdir()
    (place / "numpy/__init__.py").write_text("raise RuntimeError('this hides NumPy')\n")
    return place


def test_surroundings_do_not_reach_the_bytes(manifest: Path, hostile: Path, tmp_path: Path) -> None:
    plain = etbuild("build", manifest, "--no-cache", "-o", tmp_path / "plain")
    assert plain.returncode == 0, plain.stderr
    changed = {"PYTHONOPTIMIZE": "2", "PYTHONHASHSEED": "7", "PYTHONPATH": str(hostile), "PYTHONSTARTUP": "/no/such"}
    changed |= {"PYTHONWARNINGS": "error", "PYTHONPYCACHEPREFIX": str(tmp_path / "pyc")}
    changed |= {"LC_ALL": "en_US.ISO-8859-1", "TORCH_LOGS": "+all", "TORCHDYNAMO_DISABLE": "1", "PYTORCH_JIT": "0"}
    # A process that is started with such a PYTHONPATH must not use the files in it.
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.remove({str(hostile)!r}); {RUN}"]
    given = {**os.environ, **changed}
    arguments = ["build", str(manifest), "--no-cache", "-o", str(tmp_path / "changed")]
    done = subprocess.run([*command, *arguments], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"note: builds ignore {hostile}, a directory of PYTHONPATH" in done.stderr
    for name in ("net.pte", "net.report.json", "net.index.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "changed" / name).read_bytes()


RUN = "import site; site.main(); from etbuild.__main__ import main; sys.exit(main())"


def test_kept_and_dropped_variables_of_an_environment() -> None:
    stays = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "TMPDIR": "/t",
        "LC_ALL": "C",
        "https_proxy": "p",
        "NO_PROXY": "q",
        "QNN_SDK_ROOT": "/qnn",
        "EXYNOS_AI_LITECORE_ROOT": "/s",
        "MODEL_CONVERTER_PATH": "/m",
        "CUDA_HOME": "/c",
        "FLATC_EXECUTABLE": "/f",
        "ANDROID_NDK": "/n",
        "LD_LIBRARY_PATH": "/l",
        "ETBUILD_CACHE_DIR": "/cache",
        "HF_HOME": "/hf",
    }
    goes = ["PYTHONOPTIMIZE", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONSTARTUP", "PYTHON_GIL"]
    goes += ["TORCH_LOGS", "PYTORCH_JIT", "EXECUTORCH_X", "KMP_AFFINITY", "MKL_DYNAMIC", "NUMEXPR_NUM_THREADS", "WIDTH"]
    given = {**stays, **dict.fromkeys([*goes, *FIXED], "2")}
    dropped = {"ETBUILD_DROPPED_VARIABLES": "=".join(sorted(goes))}
    assert environment(given) == {**stays, **FIXED, **dropped}
    assert environment(environment(given)) == environment(given)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site directory of an environment that takes its packages from the environment of the tests."""
    root = tmp_path_factory.mktemp("own")
    venv.create(root, symlinks=True, with_pip=False)
    [place] = (root / "lib").glob("python*/site-packages")
    [tests] = [path for path in map(Path, sys.path) if path.name == "site-packages"]
    (place / "packages.pth").write_text(f"{tests}\n{Path(distributions.__file__).parents[2]}\n")
    return place


def in_environment(place: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    python = place.parents[2] / "bin/python"
    return subprocess.run([python, "-m", "etbuild", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_code_that_runs_when_python_starts(own: Path, manifest: Path, tmp_path: Path) -> None:
    """`sitecustomize` does not run. A `.pth` file runs, and is part of the key together with the module that it
    imports."""
    before = in_environment(own, "plan", manifest)
    assert before.returncode == 0, before.stderr
    assert '"startup"' not in before.stdout
    for name in ("sitecustomize", "usercustomize"):
        (own / f"{name}.py").write_text(CUSTOMIZE)
    done = in_environment(own, "build", manifest, "--no-cache", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert in_environment(own, "plan", manifest).stdout == before.stdout
    keys = {before.stdout}
    for content in ("x = 1\n", "x = 2\n"):
        (own / "started.py").write_text(content)
        (own / "runs.pth").write_text("import started\n")
        keys.add(in_environment(own, "plan", manifest).stdout)
    assert len(keys) == 3
    done = in_environment(own, "build", manifest, "--no-cache", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    index = json.loads((tmp_path / "out/net.index.json").read_bytes())
    assert list(index["inputs"]["toolchain"]["startup"]) == ["runs.pth"]


def install(place: Path) -> Path:
    """Installs a distribution with one module, and returns the module's path."""
    (place / "edited-1.dist-info").mkdir(parents=True)
    (place / "edited.py").write_text("x = 1\n")
    (place / "edited-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: edited\nVersion: 1\n")
    digest = distributions._record_digest(place / "edited.py")
    (place / "edited-1.dist-info/RECORD").write_text(f"edited.py,{digest},6\nedited-1.dist-info/RECORD,,\n")
    return place / "edited.py"


@pytest.mark.parametrize("content", ["x = 10\n", "x = 2\n"], ids=["another size", "the same size"])
def test_a_package_that_was_edited_in_place(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = install(tmp_path)
    distributions.check_unedited.__wrapped__("edited")
    late = module.stat().st_mtime + 60
    os.utime(module, (late, late))  # as after a copy
    distributions.check_unedited.__wrapped__("edited")
    module.write_text(content)
    os.utime(module, (late, late))
    with pytest.raises(InputError, match=r"`edited.py` of the installed package `edited` was changed"):
        distributions.check_unedited.__wrapped__("edited")


def test_a_package_whose_tests_were_overwritten_by_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path)
    record = tmp_path / "edited-1.dist-info/RECORD"
    record.write_text(record.read_text() + "tests/conftest.py,sha256=x,6\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text("from = 'another package'\n")
    distributions.check_unedited.__wrapped__("edited")
    with pytest.raises(InputError, match=r"`tests/conftest.py` of the installed package `edited` was changed"):
        distributions.check_unedited.__wrapped__("edited", frozenset({"tests"}))


@pytest.mark.parametrize("fails", [False, True], ids=["and works", "and fails"])
def test_a_build_with_a_package_that_was_edited_in_place(fails: bool, manifest: Path, tmp_path: Path) -> None:
    """Packages are checked while another process exports. The edit is the error, whichever of them ends first."""
    packages = tmp_path / "packages"
    install(packages).write_text("raise RuntimeError('broken')\n" if fails else "x = 10\n")
    manifest.with_name("model.py").write_text("import edited, torch\ndef create(): return torch.nn.Linear(8, 8)\n")
    surroundings = {**os.environ, "PYTHONPATH": str(packages)}
    command: list[str | Path] = [sys.executable, "-m", "etbuild", "build", manifest, "--no-cache"]
    done = subprocess.run(
        [*command, "-o", tmp_path / "out"], env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "`edited.py` of the installed package `edited` was changed after its installation" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").glob("*")) == []


@pytest.mark.parametrize("below", ["", "/lib"])
def test_builds_do_not_look_into_an_archive(below: str, manifest: Path, tmp_path: Path) -> None:
    """Python would import from an archive, or from a directory inside it. No key contains the content of an archive."""
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for prefix in ("", "lib/"):
            opened.writestr(f"{prefix}yaml/__init__.py", "raise RuntimeError('this hides PyYAML')\n")
    place = f"{archive}{below}"
    assert python_path({"PYTHONPATH": f"{place}:{tmp_path / 'not_there'}"}) == [tmp_path / "not_there"]
    surroundings = {**os.environ, "PYTHONPATH": str(place)}
    done = etbuild("validate", manifest, environment=surroundings)
    assert done.returncode == 0, done.stderr
    arguments = ("build", manifest, "--no-cache", "--timeout", "0.01", "-o", tmp_path / "out")
    done = etbuild(*arguments, environment=surroundings)
    assert f"note: builds ignore {place}, an entry of PYTHONPATH: it is not a directory" in done.stderr


GONE = "error: the current directory was removed\n    go to another directory\n"
REMOVED = "import os, sys\nos.mkdir('gone'), os.chdir('gone'), os.rmdir('../gone')\n"


@pytest.mark.skipif(sys.version_info[:2] == (3, 13), reason="CPython 3.13 imports no extension module there")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("validate MANIFEST", 0, ""),
        ("validate model.yaml", 2, "error: model.yaml: cannot read the file: No such file or directory\n"),
        ("cache info --cache-dir relative", 2, GONE),
        ("build MANIFEST -o OUT", 2, GONE),
        ("inspect OUT/net.pte", 2, GONE),
    ],
)
def test_the_current_directory_was_removed(
    arguments: str, code: int, said: str, manifest: Path, tmp_path: Path
) -> None:
    """Importing PyTorch there would end the process."""
    words = arguments.replace("MANIFEST", str(manifest)).replace("OUT", str(tmp_path)).split()
    command = [sys.executable, "-c", f"{REMOVED}from etbuild.__main__ import main\nsys.exit(main())", *words]
    given = {**os.environ, "PYTHONPATH": f"relative:{tmp_path}"}
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)


def test_a_manifest_from_a_pipe_is_read_once_and_a_note_is_told_once(manifest: Path, tmp_path: Path) -> None:
    """The process that watches the build reads the manifest, and so does the one that builds."""
    (tmp_path / "file").touch()
    given = {**os.environ, "ETBUILD_CACHE_DIR": str(tmp_path / "file")}
    reading, writing = os.pipe()
    os.write(writing, manifest.read_bytes())
    os.close(writing)
    here = str(tmp_path)
    command = [sys.executable, "-m", "etbuild", "build", f"/dev/fd/{reading}", "--root", here, "-o", here]
    done = subprocess.run(command, env=given, pass_fds=[reading], capture_output=True, text=True, check=False)
    os.close(reading)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("note: building without a cache") == 1
    assert (tmp_path / "net.pte").exists()


def test_a_trial_of_small_sizes_shows_no_log_of_kernels(capfd: pytest.CaptureFixture[str]) -> None:
    """Kernels of ExecuTorch, such as that of an attention, write lines to standard error for each call."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            os.write(2, b"[kernel_runtime_context.h:91] No temp allocator provided\n")
            return x * 2

    dim = torch.export.Dim("n", max=8)
    inputs = (torch.ones(3),)
    program = torch.export.export(Net(), inputs, dynamic_shapes={"x": {0: dim}})
    capfd.readouterr()
    assert small_sizes.difference(Net(), Net(), program, (inputs, {}), [(dim,)], []) is None
    assert capfd.readouterr().err == ""
