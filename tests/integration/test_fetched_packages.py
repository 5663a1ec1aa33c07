"""The builder of the packages, with real uv and each Python that there is. Small wheels stand for torch and others."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"
HERE = "{}.{}".format(*sys.version_info)

Build = Callable[..., subprocess.CompletedProcess[str]]


def wheel(file: Path, module: str, text: str) -> str:
    """Writes a wheel with one module, and returns its pin with a place for a condition."""
    name, version = file.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    files = {module: text, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name},sha256={encoded(content)},{len(content)}\n" for name, content in files.items()]
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in files.items():
            archive.writestr(zipfile.ZipInfo(member), content)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join([*rows, f"{info}/RECORD,,\n"]))
    return f"{name}=={version} {{}}\\\n    --hash=sha256:{sha256(file.read_bytes()).hexdigest()}\n"


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def build(tmp_path: Path, cache: Path) -> Build:
    """`build(python, out, *arguments)` runs the builder with own.lock, cpu.lock and cuda.lock of the test."""
    for name in ("cpu.lock", "cuda.lock"):
        (tmp_path / name).write_text("# nothing\n")

    def run(python: str, out: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        locks = [word for name in ("cpu", "cuda") for word in (f"--{name}", f"{name}.lock")]
        command: list[str | Path] = [python, TOOLCHAIN / "build_packages.py", "--requirements", "own.lock", *locks]
        command += ["--build", TOOLCHAIN / "requirements-build.lock", "--out", out, *arguments]
        environment = {**os.environ, "RULES_EXECUTORCH_CACHE": str(cache)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def run_in(out: Path, program: str) -> str:
    return subprocess.check_output([out / "venv/bin/python", "-c", program], text=True)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_packages_are_fetched_for_each_python(tmp_path: Path, build: Build, version: str) -> None:
    python = sys.executable if version == HERE else shutil.which(f"python{version}")
    if not python or subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {version} with its module venv")
    torch = wheel(tmp_path / "torch-1.0-py3-none-any.whl", "torch/__init__.py", "VALUE = 1\n").format("")
    newer = wheel(tmp_path / "newer-1.0-py3-none-any.whl", "newer.py", "VALUE = '\\d'\n")  # of which Python 3.12 warns
    (tmp_path / "own.lock").write_text(torch + newer.format("; python_full_version >= '3.12' "))
    done = build(python, "out", "--pack", "--", f"--find-links={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert f"installs {1 + (version != '3.11')} packages for Python {version} (" in done.stderr
    assert "    torch 1.0, up to 3 GB to download and 6 GB on the disk" in done.stderr
    out = tmp_path / "out"
    program = "import importlib.util, torch; print(torch.VALUE, bool(importlib.util.find_spec('newer')))"
    assert run_in(out, program) == f"1 {version != '3.11'}\n"
    environment = {**os.environ, "PEX_ROOT": str(tmp_path / "root")}  # as Buck2 starts the packages
    packed = out / "packages.pex"
    assert packed.read_bytes().startswith(f"#!/usr/bin/env python{version}\n".encode())
    said = subprocess.check_output([python, packed, "-c", program], env=environment, text=True)
    assert said == f"1 {version != '3.11'}\n"
    again = build(python, "again")
    assert again.stderr.startswith("rules_executorch: the packages are in ")
    assert (tmp_path / "again/venv").resolve() == (out / "venv").resolve()
    described = json.loads((out / "packages.json").read_text())
    assert described["python"] == version
    assert list(described["distributions"]) == [*["newer-1.0"][: version != "3.11"], "torch-1.0"]
    written = [path for path in (out / "venv").resolve().rglob("*.py*") if path.stat().st_mode & 0o222]
    assert written == []
    # A file has the same digests on every machine: it stands for the same packages.
    options = ("--packages", str(packed))
    assert build(python, "of_file", *options).returncode == 0
    assert (tmp_path / "of_file/packages.json").read_bytes() == (out / "packages.json").read_bytes()


def test_the_cpu_build_is_the_default(tmp_path: Path, build: Build) -> None:
    """It comes from an index of the user's, or else from PyTorch's."""
    (tmp_path / "index/torch").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    plain = wheel(tmp_path / "links/torch-1.0-py3-none-any.whl", "torch.py", "BUILD = 'cuda'\n").format("")
    cpu = wheel(tmp_path / "index/torch/torch-1.0+cpu-py3-none-any.whl", "torch.py", "BUILD = 'cpu'\n").format("")
    name = "torch-1.0+cpu-py3-none-any.whl"
    (tmp_path / "index/torch/index.html").write_text(f'<a href="{name}">{name}</a>\n')
    (tmp_path / "own.lock").write_text(f"{plain.rstrip()} \\\n{cpu.splitlines()[1]}\n")
    (tmp_path / "cpu.lock").write_text(cpu)
    links = ("--", f"--find-links={tmp_path / 'links'}")
    index = ("--torch-index", (tmp_path / "index").as_uri())

    def built(out: str, *arguments: str) -> str:
        done = build(sys.executable, out, *arguments)
        assert done.returncode == 0, done.stderr
        return run_in(tmp_path / out, "import torch; print(torch.BUILD)").strip()

    assert built("a", *index, *links) == "cpu"
    assert built("b", "--torch", "index", *index, *links) == "cuda"
    shutil.rmtree(tmp_path / "index")
    assert built("c") == "cpu"  # it is there
    own = wheel(tmp_path / "links/torch-1.0+cpu-py3-none-any.whl", "torch.py", "BUILD = 'own'\n").format("")
    (tmp_path / "own.lock").write_text(f"{plain.rstrip()} \\\n{own.splitlines()[1]}\n")
    (tmp_path / "cpu.lock").write_text(own)
    assert built("d", *index, *links) == "own"
    assert built("e", "--torch", "index", *index, *links) == "cuda"


def test_an_index_without_the_cpu_build_is_an_error(tmp_path: Path, build: Build) -> None:
    """Nothing takes gigabytes without being asked."""
    (tmp_path / "index").mkdir()
    plain = wheel(tmp_path / "torch-3.0-py3-none-any.whl", "torch.py", "").format("")
    (tmp_path / "own.lock").write_text(plain)
    (tmp_path / "cpu.lock").write_text(plain.replace("==3.0", "==3.0+cpu"))
    index = (tmp_path / "index").as_uri()
    done = build(sys.executable, "out", "--torch-index", index, "--", f"--find-links={tmp_path}")
    assert done.returncode == 1
    assert f"cannot get torch==3.0+cpu from your indexes or from PyTorch's, {index}: name an index" in done.stderr
    assert not (tmp_path / "out/venv").exists()


def test_an_interrupted_fetch_goes_on(tmp_path: Path, build: Build) -> None:
    """What was complete is not downloaded again."""
    (tmp_path / "files").mkdir()
    names = [f"{name}-2.0-py3-none-any.whl" for name in ("first", "torch")]
    pins = [wheel(tmp_path / "files" / name, f"{name.split('-')[0]}.py", "VALUE = 2\n").format("") for name in names]
    (tmp_path / "own.lock").write_text("".join(pins))
    asked: list[str] = []
    broken = {"first"}

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            package = self.path.strip("/").split("/")[-1].split("-")[0]
            file = tmp_path / "files" / Path(self.path).name
            if file.is_file():
                asked.append(package)
            is_known = any(name.startswith(package) for name in names)
            self.send_response(200 if is_known and not (file.is_file() and package in broken) else 404)
            self.send_header("Content-Type", "application/octet-stream" if file.is_file() else "text/html")
            self.end_headers()
            links = "".join(f'<a href="/files/{name}">{name}</a>\n' for name in names if name.startswith(package))
            self.wfile.write(file.read_bytes() if file.is_file() else links.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    Thread(target=server.serve_forever, daemon=True).start()
    arguments = ("--", "--extra-index-url", f"http://127.0.0.1:{server.server_port}/simple")
    try:
        done = build(sys.executable, "out", *arguments)
        assert done.returncode == 1, done.stderr
        broken.clear()
        done = build(sys.executable, "out", *arguments)
        assert done.returncode == 0, done.stderr
    finally:
        server.shutdown()
        server.server_close()
    assert asked.count("torch") == 1
    assert asked[-1] == "first"
    assert run_in(tmp_path / "out", "import first, torch; print(first.VALUE, torch.VALUE)") == "2 2\n"


def test_what_no_workspace_uses_is_removed_after_some_time(tmp_path: Path, build: Build, cache: Path) -> None:
    """It can be installed again. What a workspace has a link to stays, however old it is."""
    arguments = ("--", f"--find-links={tmp_path}")
    places, pins = {}, {}
    for name in ("4.0", "5.0"):
        pins[name] = wheel(tmp_path / f"torch-{name}-py3-none-any.whl", "torch.py", f"VALUE = {name}\n").format("")
    for out, version in {"one": "4.0", "two": "5.0"}.items():
        (tmp_path / "own.lock").write_text(pins[version])
        assert build(sys.executable, out, *arguments).returncode == 0
        places[out] = (tmp_path / out / "venv").resolve().parent

    shutil.rmtree(tmp_path / "one")
    assert "removes" not in build(sys.executable, "three", *arguments).stderr
    long_ago = (time.time() - 31 * 86400,) * 2
    os.utime(places["one"], long_ago)
    said = build(sys.executable, "three", *arguments).stderr
    assert f"removes {places['one']}, which no workspace has used for 30 days" in said
    assert [place.exists() for place in places.values()] == [False, True]
    kept = [path.read_text() for path in cache.glob("tools/*/cache/archive-*/**/torch.py")]
    assert "VALUE = 4.0\n" not in kept
    os.utime(places["two"], long_ago)
    (tmp_path / "own.lock").write_text(pins["4.0"])
    again = build(sys.executable, "one", *arguments)
    assert again.returncode == 0, again.stderr
    assert "removes" not in again.stderr
    assert run_in(tmp_path / "one", "import torch; print(torch.VALUE)") == "4.0\n"
