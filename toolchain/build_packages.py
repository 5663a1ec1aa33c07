"""Builds the packages that the driver needs: one PEX from pinned requirements with hashes, and an unpacked copy.

    python3 build_packages.py --requirements LOCK [--extra LOCK]... [--more LOCK]... --cuda LOCK --build LOCK
                              --out DIR [--stage STAGE] [-- PIP_ARGUMENT...]
    python3 build_packages.py --requirements LOCK [--extra LOCK]... [--more LOCK]... --cuda LOCK --packages PEX
                              --out DIR [--stage STAGE]

write, for the version of Python that runs this,
    DIR/packages.pex   the input of actions: its digest stands for every package. It is byte-reproducible: the same
                       wheels and the same version of Python, such as 3.12, give the same file on every machine, in
                       any paths and with any patch release. So it contains no bytecode.
    DIR/venv           the same files as a virtual environment of this machine, with bytecode. Only a PEX in the same
                       directory uses it, so that local actions do not unpack the PEX.
    DIR/names.json     the names of the packages, as indexes write them.
    DIR/python.json    the Python that runs this: its version, and the digests of its executable and of its standard
                       library. It is an input of the actions that use DIR/venv, so that their keys hold their Python.
                       It holds no path: two machines with the same files have the same keys.

The second form takes a packages.pex that another machine built, checks that it has the packages of the locks, and
writes only the other files. It needs no pip and no network.

The work has stages: `download`, `pack`, `unpack` and `compile`; in the second form the last two. --stage runs
one of them, after those before it, so that a caller can say in between what happens. Each stage says on standard error
what it does and how long it took. --platform says that the machines of the PEX are others than this one: then it is
only checked, and only DIR/names.json is written. --needs NAME is a package that --requirements must have.

Uses only the standard library, since it runs before anything is installed. pip's configuration applies; PIP_ARGUMENT
adds to it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from locks import (
    ENVIRONMENT,
    added_pins,
    check_covers,
    check_has,
    normalized,
    pinned,
    pins_of,
    split_torch,
    use_platform,
)
from pex_file import write_pex

# The earliest time that a zip entry can have. setuptools uses it for the wheels that it builds.
SOURCE_DATE_EPOCH = "315532800"

PYTHON = "{}.{}".format(*sys.version_info)


def main(arguments: list[str]) -> None:
    """Builds both forms in a directory, or unpacks a PEX that is built already."""
    parser = argparse.ArgumentParser(description="Build the packages that the driver runs on.")
    parser.add_argument("--requirements", type=Path, required=True, help="lock of the driver's requirements")
    parser.add_argument(
        "--extra", type=Path, dest="extras", action="append", default=[], help="lock of what an extra needs in addition"
    )
    parser.add_argument(
        "--covers", type=Path, action="append", default=[], help="lock whose packages --requirements must have"
    )
    parser.add_argument("--needs", action="append", default=[], help="package that --requirements must have")
    parser.add_argument(
        "--more", type=Path, action="append", default=[], help="lock of the user's with packages to add"
    )
    parser.add_argument("--cuda", type=Path, required=True, help="lock of what a CUDA build of torch needs")
    parser.add_argument("--build", type=Path, help="lock of pex and of what builds packages")
    parser.add_argument("--packages", type=Path, help="packages.pex that is built already")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument(
        "--platform", help="machines that --packages is for, such as `osx_aarch64`, if not like this one"
    )
    parser.add_argument("--stage", choices=("download", "pack", "unpack", "compile"), help="only this part of the work")
    parser.add_argument("pip_arguments", nargs="*", help="further arguments of pip")
    options = parser.parse_args(arguments)

    if options.platform:
        use_platform(options.platform)
    pins = pins_of([options.requirements, *options.extras])
    check_has(pins, options.needs)
    check_covers(pins, options.covers)
    for lock in options.more:
        pins += added_pins(lock, pins, options.cuda)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.platform:
        write_names(out, check_packages(options.packages, pins))
        return
    stages = {} if options.packages else stages_with_pip(options, pins, out)
    for name, (text, stage) in {**stages, **stages_with_file(options.packages, pins, out)}.items():
        if options.stage in (None, name):
            say(f"{text} ...")
            start = time.monotonic()
            result = stage()
            say(f"{result}, {time.monotonic() - start:.0f} s")


Stages = dict[str, tuple[str, Callable[[], str]]]
"""What there is to do, in this order: what it is, and a function that does it and returns what it has done."""


def say(text: str) -> None:
    """Prints a line for the user who waits."""
    print(f"rules_executorch: {text}", file=sys.stderr, flush=True)


def stages_with_pip(options: argparse.Namespace, pins: list[str], out: Path) -> Stages:
    """Returns the stages that build the packages of locks."""
    work = out / "work"
    wheels, packages = work / "wheels", out / "packages.pex"

    def get() -> str:
        work.mkdir()
        tools = make_venv(work / "tools", with_pip=True)
        pip = [str(tools), "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input"]
        download(pip, options, pins, wheels)
        build_wheels(pip, wheels)
        files = list(wheels.iterdir())
        torch = next(file.name.split("-")[1] for file in files if file.name.startswith("torch-"))
        return f"downloaded {len(files)} packages, {gigabytes(files)}, with torch {torch}"

    def pack() -> str:
        first_line = f"#!/usr/bin/env python{PYTHON}"
        write_pex(sorted(wheels.iterdir()), first_line, functools.partial(make_frame, work), packages)
        shutil.rmtree(work)
        return f"packed {gigabytes([packages])}"

    size = "about 0.5 GB, or 3 GB with a CUDA build of torch; `python_version` chooses another Python"
    return {
        "download": (f"downloads the packages for Python {PYTHON} with pip, {size}", get),
        "pack": ("packs packages.pex, which stands for the packages in keys and on other machines", pack),
    }


def stages_with_file(given: Path | None, pins: list[str], out: Path) -> Stages:
    """Returns the stages that unpack a file with packages: the given one, or the one that the stages before made."""

    def unpack_file() -> str:
        if given:
            check_packages(given, pins)
        make_venv(out / "venv", with_pip=False)
        sizes = unpack(given or out / "packages.pex", site_packages(out / "venv"))
        return f"unpacked {len(sizes)} files, {sum(sizes) / 1e9:.2f} GB"

    return {
        "unpack": ("unpacks the packages", unpack_file),
        "compile": ("compiles the packages to bytecode", lambda: compiled(out)),
    }


def compiled(out: Path) -> str:
    """Writes the bytecode, the description of its Python, and the names of the packages."""
    site = site_packages(out / "venv")
    compile_bytecode(site)
    write_names(out, (normalized(path.stem.rpartition("-")[0]) for path in site.glob("*.dist-info")))
    described = json.dumps(describe_python(), indent=2, sort_keys=True)
    (out / "python.json").write_text(described + "\n", encoding="utf-8")
    return "compiled the packages"


def write_names(out: Path, names: Iterable[str]) -> None:
    """Writes the names of the packages."""
    (out / "names.json").write_text(json.dumps(sorted(names)) + "\n", encoding="utf-8")


def gigabytes(files: Iterable[Path]) -> str:
    """Returns the size of files in words."""
    return f"{sum(file.stat().st_size for file in files) / 1e9:.2f} GB"


def describe_python() -> dict[str, str]:
    """Returns the version of this Python, and the digests of its executable, its library and its standard library."""
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME"))  # if it has a shared one
    executable = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    left_out = {"__pycache__", "site-packages", "dist-packages"}  # not part of it, or made from it
    modules = [
        path
        for path in standard.rglob("*")
        if path.is_file() and not left_out.intersection(path.relative_to(standard).parts)
    ]
    return {
        "implementation": sys.implementation.name,
        "version": platform.python_version(),
        "executable": files_digest({path.name: path for path in (executable, library) if path.is_file()}),
        "standard_library": files_digest({path.relative_to(standard).as_posix(): path for path in modules}),
    }


def files_digest(files: dict[str, Path]) -> str:
    """Returns the sha256 of the names and contents of files."""
    lines = (f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def download(pip: list[str], options: argparse.Namespace, pins: list[str], wheels: Path) -> None:
    """Downloads what the locks pin, and checks the hashes.

    If pip knows the hashes of two builds of torch, it prefers the one whose link contains its hash. Links to a plain
    directory of wheels contain none. So pip chooses torch by version as usual (2.13.0+cpu is above 2.13.0). The hash is
    checked afterwards. At the same time pip installs what builds packages, which it needs to look into sources, and
    downloads the others.
    """
    torch, others = split_torch(pins)
    of_torch = wheels.with_name("torch")
    tools = [*pip, "install", "--no-deps", "--require-hashes", "--no-compile", *options.pip_arguments]
    get = [*pip, "download", "--no-deps", *options.pip_arguments]
    hashed = [*get, "--require-hashes", "--no-build-isolation", "--dest", str(wheels)]
    lock = wheels.with_name("others.lock")
    lock.write_text("\n".join(others) + "\n", encoding="utf-8")
    chosen = "torch==" + pinned([torch])["torch"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run, [*get, "--only-binary=:all:", "--dest", str(of_torch), chosen])
        run([*tools, "--requirement", str(options.build)])
        run([*hashed, "--requirement", str(lock)])
        waiting.result()
    (wheel,) = of_torch.iterdir()
    check_hash(wheel, torch)
    wheel.rename(wheels / wheel.name)
    if needs_cuda(wheels / wheel.name):
        run([*hashed, "--requirement", str(options.cuda)])


def check_hash(file: Path, pin: str) -> None:
    """Exits if a file has no hash of its pin."""
    found = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            found.update(block)
    if f"--hash=sha256:{found.hexdigest()}" not in pin.split():
        sys.exit(f"the lock does not have the hash of {file.name}, which pip found: sha256:{found.hexdigest()}")


def build_wheels(pip: list[str], wheels: Path) -> None:
    """Builds a wheel of each package that has none on the index.

    Without pip's cache, and with what it needs from its lock only: the wheel in the cache may be one that another
    version of setuptools built.
    """
    sources = [file for file in wheels.iterdir() if file.suffix != ".whl"]
    if sources:
        build = ["wheel", "--no-deps", "--no-index", "--no-cache-dir", "--no-build-isolation", "--wheel-dir"]
        run([*pip, *build, str(wheels), *map(str, sources)])
    for source in sources:
        source.unlink()


def make_frame(work: Path, digest: str) -> Path:
    """Makes a PEX without the packages. It unpacks itself into a directory whose name stands for its sources: so it
    has one, with a digest of the packages."""
    sources, frame = work / "sources", work / "frame.pex"
    sources.mkdir()
    (sources / DIGEST).write_text(f"{digest}\n", encoding="utf-8")
    run([str(work / "tools/bin/python"), "-m", "pex", "--sources-directory", str(sources), "--output-file", str(frame),
         "--venv", "--include-tools", "--interpreter-constraint", f"CPython=={PYTHON}.*",
         "--pex-root", str(work / "pex_root"), "--tmpdir", str(work)])  # fmt: skip
    return frame


DIGEST = "packages.sha256"
"""A file of a PEX with a digest of its packages."""

# What a PEX has beside the packages.
PEX_PARTS = (".bootstrap", "PEX-INFO", "__main__.py", "__pex__", DIGEST)


def check_packages(packages: Path, pins: list[str]) -> Iterable[str]:
    """Exits if a file is no PEX with the packages of the locks for this machine. It may have more packages: returns
    the names of all."""
    if not zipfile.is_zipfile(packages):
        sys.exit("`packages` names a file that is not a packages.pex")
    with zipfile.ZipFile(packages) as archive:
        if "PEX-INFO" not in archive.namelist():
            sys.exit("`packages` names a file that is not a packages.pex")
        found = {name: (version, tags) for name, version, tags in distributions(archive)}
    advice = "build the file again, with the same version of the rules and the same `extras` or `requirements`"
    for name, version in pinned(pins).items():
        if name not in found:
            sys.exit(f"the file of `packages` has no {name}, and the lock has {name} {version}: {advice}")
        if found[name][0].split("+")[0] != version.split("+")[0]:  # 2.13.0+cpu is a build of 2.13.0
            sys.exit(f"the file of `packages` has {name} {found[name][0]}, and the lock has {version}: {advice}")
    for name, (version, tags) in sorted(found.items()):
        if tags and not any(runs_here(tag) for tag in tags):
            sys.exit(
                f"the file of `packages` is not for this machine ({ENVIRONMENT['sys_platform']}, "
                f"{ENVIRONMENT['platform_machine']}): its {name} {version} is for {tags[0]}. Build a file on such "
                "a machine"
            )
    return found.keys()


def distributions(archive: zipfile.ZipFile) -> Iterator[tuple[str, str, list[str]]]:
    """Gives the name, the version and the tags of each installed distribution in a PEX."""
    for member in archive.namelist():
        match = re.fullmatch(r"([^/]+)-([^/-]+)\.dist-info/WHEEL", member)
        if match:
            text = archive.read(member).decode()
            yield normalized(match[1]), match[2], re.findall(r"^Tag: (\S+)", text, re.MULTILINE)


def runs_here(tag: str) -> bool:
    """Returns whether the files of a wheel with this tag, such as `py3-none-any`, run on the machines of --platform."""
    target = tag.rpartition("-")[2]
    systems = {"linux": ("linux", "manylinux", "musllinux"), "darwin": ("macosx",)}
    return target == "any" or (
        target.startswith(systems.get(ENVIRONMENT["sys_platform"], ()))
        and target.endswith((ENVIRONMENT["platform_machine"], "universal2"))
    )


def unpack(packages: Path, site: Path) -> list[int]:
    """Unpacks the packages of a PEX, which has them as they are installed, on all processors. Returns their sizes."""
    with zipfile.ZipFile(packages) as archive:
        members = [member for member in archive.infolist() if member.filename.split("/", 1)[0] not in PEX_PARTS]
    files = sorted((member for member in members if not member.is_dir()), key=lambda member: -member.file_size)
    for name in (file.filename for file in files):
        if name.startswith("/") or ".." in name.split("/"):
            sys.exit(f"{packages} has a file outside of its directory: {name}")
    for directory in {(site / file.filename).parent for file in files}:
        directory.mkdir(parents=True, exist_ok=True)
    large = sum(file.file_size > 1 << 20 for file in files)
    write = functools.partial(write_member, packages, site)
    with ProcessPoolExecutor(os.cpu_count()) as pool:  # threads would wait for each other at each small file
        for done in (pool.map(write, files[:large]), pool.map(write, files[large:], chunksize=200)):
            list(done)
    return [file.file_size for file in files]


@functools.cache
def opened(packages: Path) -> zipfile.ZipFile:
    """Opens a PEX, once in each process."""
    return zipfile.ZipFile(packages)


def write_member(packages: Path, site: Path, member: zipfile.ZipInfo) -> None:
    """Unpacks a file. zipfile itself keeps neither modes nor times."""
    file = site / member.filename
    with opened(packages).open(member) as source, file.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    file.chmod(0o755 if (member.external_attr >> 16) & 0o111 else 0o644)
    # The driver reads a file again that is newer than the RECORD of its distribution.
    os.utime(file, (int(SOURCE_DATE_EPOCH), int(SOURCE_DATE_EPOCH)))


def make_venv(path: Path, *, with_pip: bool) -> Path:
    """Creates a virtual environment and returns its interpreter."""
    run([sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(path)])
    interpreter = path / "bin" / "python"
    status = interpreter.stat()
    # `launch.sh` compares it: an updated Python is no longer the one of python.json.
    (path / "interpreter.stat").write_text(f"{status.st_size} {int(status.st_mtime)}\n", encoding="utf-8")
    return interpreter


def site_packages(venv: Path) -> Path:
    """Returns the directory with the packages of a virtual environment."""
    return venv / "lib" / f"python{PYTHON}" / "site-packages"


def needs_cuda(wheel: Path) -> bool:
    """Returns whether a wheel of torch requires NVIDIA's packages on this machine."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    return (
        sys.platform == "linux" and re.search(r"^Requires-Dist: (nvidia|cuda|triton)", text, re.MULTILINE) is not None
    )


_TESTS = r"/tests?/|/(test_[^/]*|[^/]*_test)\.py$"
"""The paths of modules that only test a package."""


def compile_bytecode(site: Path) -> None:
    """Writes bytecode that stays valid when the files are copied, since sandboxes cannot write their own. The packages'
    own tests, a quarter of all modules, have none: actions do not run them."""
    # Some packages contain files for other versions of Python, which do not compile. So output and status are ignored.
    # Python 3.12 and later print a page of warnings about texts of other packages.
    command = [sys.executable, "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", "-x", _TESTS]
    command += ["--invalidation-mode", "unchecked-hash", str(site)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)


def run(command: list[str]) -> None:
    """Runs a command. Exits if it fails."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "PYTHONHASHSEED": "0"}
    # Standard output is for the results of commands; errors are on the other one.
    status = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode
    if status:
        sys.exit(f"failed with status {status}: {' '.join(command)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:  # such as a full disk
        sys.exit(f"cannot build the packages: {error}")
