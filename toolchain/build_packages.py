"""Builds the packages that the driver needs: one PEX from pinned requirements with hashes, and an unpacked copy.

    python3.11 build_packages.py --requirements LOCK [--extra LOCK]... [--more LOCK]... --cuda LOCK --build LOCK
                                 --out DIR [-- PIP_ARGUMENT...]
    python3.11 build_packages.py --requirements LOCK [--extra LOCK]... [--more LOCK]... --cuda LOCK --packages PEX
                                 --out DIR

write
    DIR/packages.pex   the input of actions: its digest stands for every package. It is byte-reproducible: the same
                       locks give the same file on every machine, with any Python 3.11 and any paths. So it contains
                       no bytecode, which differs between patch versions of Python.
    DIR/venv           the same files as a virtual environment of this machine, with bytecode. Only a PEX in the same
                       directory uses it, so that local actions do not unpack the PEX.
    DIR/python.json    the Python that runs this: its version, and the digests of its executable and of its standard
                       library. It is an input of the actions that use DIR/venv, so that their keys hold their Python.
                       It holds no path: two machines with the same files have the same keys.

The second form takes a packages.pex that another machine built, checks that it has the packages of the locks, and
writes only DIR/venv and DIR/python.json. It needs no pip and no network.

Uses only the standard library, since it runs before anything is installed. pip's configuration applies; PIP_ARGUMENT
adds to it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

# The earliest time that a zip entry can have. setuptools uses it for the wheels that it builds.
SOURCE_DATE_EPOCH = "315532800"


def main(arguments: list[str]) -> None:
    """Builds both forms in a directory, or unpacks a PEX that is built already."""
    parser = argparse.ArgumentParser(description="Build the packages that the driver runs on.")
    parser.add_argument("--requirements", type=Path, required=True, help="lock of the driver's requirements")
    parser.add_argument(
        "--extra", type=Path, dest="extras", action="append", default=[], help="lock of what an extra needs besides"
    )
    parser.add_argument(
        "--covers", type=Path, action="append", default=[], help="lock whose packages --requirements must have"
    )
    parser.add_argument(
        "--more", type=Path, action="append", default=[], help="lock of the user's with packages to add"
    )
    parser.add_argument("--cuda", type=Path, required=True, help="lock of what a CUDA build of torch needs")
    parser.add_argument("--build", type=Path, help="lock of pex and of what builds packages")
    parser.add_argument("--packages", type=Path, help="packages.pex that is built already")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument("pip_arguments", nargs="*", help="further arguments of pip")
    options = parser.parse_args(arguments)

    pins = unique_pins([lock.read_text(encoding="utf-8") for lock in (options.requirements, *options.extras)])
    check_covers(pins, options.covers)
    for lock in options.more:
        pins += added_pins(lock, pins, options.cuda)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    described = json.dumps(describe_python(), indent=2, sort_keys=True)
    (out / "python.json").write_text(described + "\n", encoding="utf-8")
    if options.packages:
        check_packages(options.packages, pins)
        site = site_packages(make_venv(out / "venv", with_pip=False))
        unpack(options.packages, site)
        compile_bytecode(site).wait()
    else:
        build(options, pins, out)


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


def build(options: argparse.Namespace, pins: list[str], out: Path) -> None:
    """Installs the packages of locks, and packs them."""
    work = out / "work"
    work.mkdir()
    tools = make_venv(work / "tools", with_pip=True)
    pip = [str(tools), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    install = [*pip, "install", "--quiet", "--require-hashes", "--no-deps", *options.pip_arguments]
    run([*install, "--requirement", str(options.build)])

    site = site_packages(make_venv(out / "venv", with_pip=False))
    into_site = [*install, "--no-build-isolation", "--no-compile", "--no-warn-script-location", "--target", str(site)]
    torch, others = split_torch(pins)
    torch_lock, others_lock = work / "torch.lock", work / "others.lock"
    torch_lock.write_text(torch, encoding="utf-8")
    others_lock.write_text(others, encoding="utf-8")

    # If pip knows the hashes of two builds, it prefers the one whose link contains its hash. Links to a plain directory
    # of wheels contain none. So pip first chooses torch by version as usual (2.13.0+cpu is above 2.13.0). The hash is
    # checked afterwards.
    wheels = work / "wheels"
    download = [*pip, "download", "--quiet", "--no-deps", "--dest", str(wheels), *options.pip_arguments]
    run([*download, "--only-binary=:all:", torch.split()[0]])
    # Downloads go through pip's cache. The installation has none: pip would use a wheel from it that another version of
    # setuptools built from the same source.
    from_wheels = [*into_site, "--no-cache-dir", "--no-index", "--find-links", str(wheels)]
    run([*from_wheels, "--requirement", str(torch_lock)])
    files = [others_lock, *([options.cuda] if needs_cuda(wheels) else [])]
    requirements = [part for file in files for part in ("--requirement", str(file))]
    run([*download, "--require-hashes", "--no-build-isolation", *requirements])
    run([*from_wheels, *requirements])
    shutil.rmtree(wheels)
    drop_scripts(site)

    sources = snapshot(site, work / "sources")
    with compile_bytecode(site):  # at the same time
        run([str(tools), "-m", "pex", "--sources-directory", str(sources), "--output-file", str(out / "packages.pex"),
             "--venv", "--include-tools", "--python-shebang", "/usr/bin/env python3.11",
             "--interpreter-constraint", "CPython==3.11.*", "--pex-root", str(work / "pex_root"),
             "--tmpdir", str(work)])  # fmt: skip
    shutil.rmtree(work)


def check_covers(pins: list[str], locks: list[Path]) -> None:
    """Exits if the user's own lock lacks a package of other locks. It may have another version of it."""
    for lock in locks:
        missing = pinned(unique_pins([lock.read_text(encoding="utf-8")])).keys() - pinned(pins).keys()
        if missing:
            extra = lock.stem.removeprefix("requirements-")
            sys.exit(f"`requirements` lacks packages of the extra `{extra}`: {', '.join(sorted(missing))}")


def added_pins(lock: Path, pins: list[str], cuda: Path) -> list[str]:
    """Returns the pins of a user's lock that the toolchain does not have.

    Such a lock repeats what its packages have in common with the toolchain, also what a CUDA build of torch needs.
    Exits if it has another version of a package.
    """
    known = pinned(pins)
    only_cuda = pinned(unique_pins([cuda.read_text(encoding="utf-8")])).keys() - known.keys()
    added = []
    for pin in unique_pins([lock.read_text(encoding="utf-8")]):
        for name, version in pinned([pin]).items():
            if name not in known and name not in only_cuda:
                added.append(pin)
            elif name in known and version.split("+")[0] != known[name].split("+")[0]:
                sys.exit(
                    f"{lock.name} has {name} {version}, and the toolchain has {name} {known[name]}: make the lock "
                    "again, with the lock of the toolchain as a constraint"
                )
    return added


# What a PEX has beside the packages.
PEX_PARTS = (".bootstrap", "PEX-INFO", "__main__.py", "__pex__")


def check_packages(packages: Path, pins: list[str]) -> None:
    """Exits if a file is no PEX with the packages of the locks for this machine. It may have more packages."""
    if not zipfile.is_zipfile(packages):
        sys.exit("`packages` names a file that is no packages.pex")
    with zipfile.ZipFile(packages) as archive:
        if "PEX-INFO" not in archive.namelist():
            sys.exit("`packages` names a file that is no packages.pex")
        found = {name: (version, tags) for name, version, tags in distributions(archive)}
    advice = "build the file again, with the same version of the rules and the same `extras` or `requirements`"
    for name, version in pinned([pin for pin in pins if ";" not in pin]).items():  # `;` begins a condition
        if name not in found:
            sys.exit(f"the file of `packages` has no {name}, and the lock has {name} {version}: {advice}")
        if found[name][0].split("+")[0] != version.split("+")[0]:  # 2.13.0+cpu is a build of 2.13.0
            sys.exit(f"the file of `packages` has {name} {found[name][0]}, and the lock has {version}: {advice}")
    for name, (version, tags) in sorted(found.items()):
        if tags and not any(runs_here(tag) for tag in tags):
            sys.exit(
                f"the file of `packages` is not for this machine ({sys.platform}, {platform.machine()}): its {name} "
                f"{version} is for {tags[0]}. Build a file on such a machine"
            )


def distributions(archive: zipfile.ZipFile) -> Iterator[tuple[str, str, list[str]]]:
    """Gives the name, the version and the tags of each installed distribution in a PEX."""
    for member in archive.namelist():
        match = re.fullmatch(r"([^/]+)-([^/-]+)\.dist-info/WHEEL", member)
        if match:
            text = archive.read(member).decode()
            yield normalized(match[1]), match[2], re.findall(r"^Tag: (\S+)", text, re.MULTILINE)


def runs_here(tag: str) -> bool:
    """Returns whether the files of a wheel with this tag, such as `py3-none-any`, run on this machine."""
    target = tag.rpartition("-")[2]
    systems = {"linux": ("linux", "manylinux", "musllinux"), "darwin": ("macosx",)}.get(sys.platform, ())
    return target == "any" or (target.startswith(systems) and target.endswith((platform.machine(), "universal2")))


def unpack(packages: Path, site: Path) -> None:
    """Unpacks the packages of a PEX, which has them as they are installed."""
    with zipfile.ZipFile(packages) as archive:
        for member in archive.infolist():
            if member.filename.split("/", 1)[0] not in PEX_PARTS:
                file = Path(archive.extract(member, site))
                if not member.is_dir():  # zipfile keeps neither modes nor times
                    file.chmod(0o755 if (member.external_attr >> 16) & 0o100 else 0o644)
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


def site_packages(interpreter: Path) -> Path:
    """Returns the directory with the packages of a virtual environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return interpreter.parent.parent / "lib" / version / "site-packages"


def unique_pins(locks: list[str]) -> list[str]:
    """Returns the pins of several locks, each once, since two extras may need the same package. The locks must not
    conflict."""
    pins = [pin for lock in locks for pin in re.split(r"\n(?=\S)", lock.strip()) if not pin.startswith("#")]
    return list(dict.fromkeys(pins))


def pinned(pins: list[str]) -> dict[str, str]:
    """Returns the version of each package. Other lines of a lock, such as options of pip, are left out."""
    matches = (re.match(r"([\w.-]+)(?:\[[^]]*\])? *== *([^\s;]+)", pin) for pin in pins)
    return {normalized(match[1]): match[2] for match in matches if match}


def normalized(name: str) -> str:
    """Returns the name of a distribution as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def split_torch(pins: list[str]) -> tuple[str, str]:
    """Splits pins into torch's and all others. Exits if there is not exactly one pin of torch."""
    torch = [pin for pin in pins if pin.startswith("torch==")]
    if len(torch) != 1:
        sys.exit(f"the requirements must pin torch once, with `torch==`, and do it {len(torch)} times")
    return torch[0] + "\n", "\n".join(pin for pin in pins if pin not in torch) + "\n"


def needs_cuda(wheels: Path) -> bool:
    """Returns whether the only wheel in a directory requires NVIDIA's packages on this machine."""
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    return (
        sys.platform == "linux" and re.search(r"^Requires-Dist: (nvidia|cuda|triton)", text, re.MULTILINE) is not None
    )


def drop_scripts(site: Path) -> None:
    """Removes the packages' commands, which contain the path of this machine's interpreter and are never run."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not line.startswith("../")), encoding="utf-8")


def snapshot(site: Path, copy: Path) -> Path:
    """Makes a tree of the same files. Files that are later added to the original do not appear in it. Returns the copy.

    PEX excludes bytecode by name, but not the temporary files that Python writes it to first. It fails if such a file
    is removed before it is read, and otherwise includes it.
    """
    shutil.copytree(site, copy, symlinks=True, copy_function=link)
    return copy


def link(source: str, target: str) -> None:
    """Makes a hard link, or a copy if the file system has no hard links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def compile_bytecode(site: Path) -> subprocess.Popen[bytes]:
    """Starts to write bytecode that stays valid when the files are copied, since sandboxes cannot write their own."""
    # Some packages contain files for other versions of Python, which do not compile. So output and status are ignored.
    command = [sys.executable, "-m", "compileall", "-qq", "-j", "0", "--invalidation-mode", "unchecked-hash", str(site)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def run(command: list[str]) -> None:
    """Runs a command. Exits if it fails."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "PYTHONHASHSEED": "0"}
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        sys.exit(f"failed with status {status}: {' '.join(command)}")


if __name__ == "__main__":
    main(sys.argv[1:])
