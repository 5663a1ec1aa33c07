"""Provides the packages that the driver needs: a virtual environment from pinned requirements with hashes.

    python3 build_packages.py --requirements LOCK [--instead LOCK] [--extra LOCK]... [--more LOCK]... --cpu LOCK
                              --cuda LOCK --build LOCK --out DIR [--torch cpu|index] [--pack] [-- ARGUMENT...]
    python3 build_packages.py --requirements LOCK [--instead LOCK] [--extra LOCK]... [--more LOCK]... --cuda LOCK
                              --packages PEX --out DIR

write, for the version of Python that runs this,
    DIR/venv           a link to a virtual environment with the packages and their bytecode. All that need the same
                       packages share it, and nobody changes it once it is there.
    DIR/packages.json  the digest of each package: what stands for them in the keys of actions. It is the same on every
                       machine with the same wheels and the same version of Python, such as 3.12.
    DIR/names.json     the names of the packages, as indexes write them.
    DIR/python.json    the Python that runs this: its version, and the digests of its executable and of its standard
                       library. It is an input of actions too. It holds no path: two machines with the same files have
                       the same keys.
    DIR/packages.pex   with --pack: the packages as one file, for other machines.

The second form takes a packages.pex that another machine packed, checks that it has the packages of the locks, and
needs no network. With --platform, its machines are others than this one: then it is only checked, and only
DIR/names.json is written. --needs NAME is a package that --requirements must have.

uv installs the packages, and pip installs uv. Both check the hashes of the locks. pip's configuration applies, and uv's
own; ARGUMENT adds to both. Environments and what uv has unpacked are in a directory of the user:
$RULES_EXECUTORCH_CACHE, or else `rules_executorch` in $XDG_CACHE_HOME or in ~/.cache. A file that several environments
have is on the disk once. After an interrupt, packages that were complete are not downloaded again. An environment that
no DIR has a link to is removed KEPT_DAYS after somebody last asked for it.

Uses only the standard library, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import ast
import base64
import csv
import fcntl
import hashlib
import io
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from locks import (
    ENVIRONMENT,
    added_pins,
    build_of_torch,
    check_covers,
    check_has,
    normalized,
    pinned,
    pins_of,
    split_torch,
    use_platform,
    with_others,
)
from packages_file import DESCRIPTION, PYTHON, compile_bytecode, make_venv, pack, site_packages, unpack

# The earliest time that a zip entry can have. setuptools uses it for the wheels that it builds.
SOURCE_DATE_EPOCH = "315532800"

FORM = 1
"""Part of the name of an environment. A change of what this program puts into one changes it."""

KEPT_DAYS = 30
"""How long an environment stays that no workspace has a link to."""

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def main(arguments: list[str]) -> None:
    """Provides the environment, and writes what describes it."""
    parser = argparse.ArgumentParser(description="Provide the packages that the driver runs on.")
    parser.add_argument("--requirements", type=Path, required=True, help="lock of the driver's requirements")
    parser.add_argument("--instead", type=Path, help="lock of packages that replace those of --requirements")
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
    parser.add_argument("--cpu", type=Path, help="lock of the CPU builds of torch")
    parser.add_argument("--cuda", type=Path, required=True, help="lock of what a CUDA build of torch needs")
    parser.add_argument("--build", type=Path, help="lock of uv and of what builds packages")
    parser.add_argument("--torch", choices=("", "cpu", "index"), default="", help="the build of torch")
    parser.add_argument("--torch-index", default=TORCH_INDEX, help="index with the CPU builds of torch")
    parser.add_argument("--packages", type=Path, help="packages.pex that is built already")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument(
        "--platform", help="machines that --packages is for, such as `osx_aarch64`, if not like this one"
    )
    parser.add_argument("--pack", action="store_true", help="also write packages.pex")
    parser.add_argument("pip_arguments", nargs="*", help="further arguments of pip and uv")
    options = parser.parse_args(arguments)

    if options.platform:
        use_platform(options.platform)
    pins = pins_of([options.requirements, *options.extras])
    if options.instead:
        pins = with_others(pins, pins_of([options.instead]))
    check_has(pins, options.needs)
    check_covers(pins, options.covers)
    for lock in options.more:
        pins += added_pins(lock, pins, options.cuda)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.packages:
        names = check_packages(options.packages, pins)
        if options.platform:
            write_json(out / "names.json", sorted(names))
            return
    provide(options, pins, out)
    if options.pack:
        pack(out / DESCRIPTION, out / "packages.pex", (out / "venv").resolve())


def say(text: str) -> None:
    """Prints a line for the user who waits."""
    print(f"rules_executorch: {text}", file=sys.stderr, flush=True)


def provide(options: argparse.Namespace, pins: list[str], out: Path) -> None:
    """Makes the environment, if it is not there, and links to it."""
    python = describe_python()
    if options.packages:
        source: object = file_digest(options.packages)
    else:
        torch, others = split_torch(pins)
        torch = build_of_torch(torch, options.cpu, options.torch)
        source = [torch, *others, *(lock.read_text("utf-8") for lock in (options.build, options.cuda))]
    facts = [FORM, python, os.path.realpath(sys.executable), source]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def fill(place: Path) -> None:
        if options.packages:
            unpack_file(options.packages, place / "venv")
        else:
            install(options, torch, others, place)
        finish(place, python)

    root = cache_root(out)
    with (root / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        place = made_once(root / "packages" / key, fill)
        os.utime(place)
        for name in (DESCRIPTION, "names.json", "python.json"):
            shutil.copyfile(place / name, out / name)
        link(out / "venv", place / "venv")
        used = place.with_name(f"{key}.used")
        used.mkdir(exist_ok=True)
        link(used / hashlib.sha256(os.fsencode(out)).hexdigest()[:32], out / "venv")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # others are installing
        remove_unused(root)


def link(path: Path, target: Path) -> None:
    """Makes a link in place of what may be there."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def remove_unused(root: Path) -> None:
    """Removes environments that no workspace has a link to, long after the last one was made, and what uv keeps of
    packages that only they had. Nobody installs meanwhile."""
    gone: set[str] = set()
    for used in root.glob("packages/*.used"):
        place = used.with_suffix("")
        linked = any(each.resolve() == (place / "venv").resolve() for each in used.iterdir())
        if linked or not place.exists() or time.time() - place.stat().st_mtime < KEPT_DAYS * 86400:
            continue
        say(f"removes {place}, which no workspace has used for {KEPT_DAYS} days")
        gone |= distributions_in(place)
        shutil.rmtree(place.rename(place.with_name(f"{place.name}.partial")))  # this process may be killed
        shutil.rmtree(used)
    for description in root.glob(f"packages/*/{DESCRIPTION}") if gone else ():
        gone -= distributions_in(description.parent)
    names = sorted({each.rpartition("-")[0] for each in gone})
    for uv in root.glob("tools/*/bin/uv") if names else ():
        run([str(uv), "cache", "clean", "--quiet", "--cache-dir", str(uv.parents[1] / "cache"), *names])


def distributions_in(place: Path) -> set[str]:
    """Returns the names of the distributions of an environment, with their versions."""
    return {*json.loads((place / DESCRIPTION).read_text("utf-8"))["distributions"]}


def cache_root(out: Path) -> Path:
    """Returns the directory that all environments of the user are in: $RULES_EXECUTORCH_CACHE, which has to be
    writable, or that of the user's cache. If the latter is not writable, it is one in `out`, which nobody else uses."""
    chosen = os.environ.get("RULES_EXECUTORCH_CACHE")
    shared = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rules_executorch")  # noqa: PTH111
    root = Path(chosen) if chosen else shared
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if chosen:
            sys.exit(f"RULES_EXECUTORCH_CACHE names a directory that cannot be written to, {root}: {error.strerror}")
        say(
            f"cannot write to {root} ({error.strerror}), so the packages are not shared: name another directory with "
            "RULES_EXECUTORCH_CACHE"
        )
        root = out / "cache"
    return root.resolve()


def made_once(place: Path, fill: Callable[[Path], object]) -> Path:
    """Returns a directory that is complete: `fill` makes its content elsewhere, and then it is renamed. A process that
    needs what another one is making waits for it."""
    if place.exists():
        say(f"the packages are in {place}")
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{place.name}.partial")
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            partial.mkdir()
            fill(partial)
            partial.rename(place)
    return place


def install(options: argparse.Namespace, torch: str, others: list[str], place: Path) -> None:
    """Installs the packages of the locks."""
    start = time.monotonic()
    version = torch.split(maxsplit=1)[0].removeprefix("torch").strip("=")
    size = "0.4 GB to download and 1.6 GB on the disk"
    if sys.platform == "linux" and not version.endswith("+cpu"):
        size = (
            'up to 3 GB to download and 6 GB on the disk, for CUDA (`torch = "cpu"` needs 1.6 GB, if the lock has it)'
        )
    say(f"installs {len(others) + 1} packages for Python {PYTHON} ({sys.executable}) into {place.parent}:")
    say(f"    torch {version}, {size} ...")
    tools = place.parents[1] / "tools" / file_digest(options.build)[:32]
    if not tools.exists():
        made_once(tools, lambda partial: install_tools(options, partial))
    site = make_venv(place / "venv")
    uv = Uv(tools, place / "venv", options.build, options.pip_arguments)
    install_torch(uv, torch, options.torch_index)
    uv.install(others)
    if needs_cuda(site):
        named = pinned(others)
        uv.install([pin for pin in pins_of([options.cuda]) if not pinned([pin]).keys() & named.keys()])
    for distribution in overlapping(site):  # in this order, since uv installs in any
        name = normalized(distribution.partition("-")[0])
        uv.install([pin for pin in (torch, *others) if name in pinned([pin])], "--reinstall")
    say(f"installed {gigabytes(site)}, {time.monotonic() - start:.0f} s")


def install_tools(options: argparse.Namespace, place: Path) -> None:
    """Installs uv and pip, which reads its configuration."""
    run([sys.executable, "-m", "venv", str(place / "first")])
    pip = [str(place / "first/bin/python"), "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input"]
    command = ["install", "--no-deps", "--require-hashes", "--no-compile", "--target", str(place)]
    run([*pip, *command, *options.pip_arguments, "--requirement", str(options.build)])
    shutil.rmtree(place / "first")


@dataclass
class Uv:
    """Installs packages into a virtual environment."""

    tools: Path
    venv: Path
    build: Path
    """The lock with what builds packages."""
    arguments: list[str]

    def __post_init__(self) -> None:
        options, self._environment = options_of_pip(self.tools)
        self._command = [str(self.tools / "bin/uv"), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        self._command += ["--python", str(self.venv / "bin/python"), "--link-mode", "hardlink"]
        self._command += ["--cache-dir", str(self.tools / "cache"), "--build-constraints", str(self.build)]
        self._indexes = [*options, "--index-strategy", "unsafe-best-match", *self.arguments]

    def install(self, pins: list[str], *more: str) -> None:
        """Installs packages. Exits if that fails."""
        run(self._full(pins, self._indexes, more), self._environment)

    def has(self, pin: str) -> bool:
        """Returns whether the user's indexes have a package."""
        command = self._full([pin], self._indexes, ("--dry-run",))
        return not run_quietly(command, self._environment)

    def install_from(self, index: str, pin: str) -> bool:
        """Installs a package from one index. Returns whether that succeeds."""
        return not subprocess.run(
            self._full([pin], ["--default-index", index], ()), env={**environment(), **self._environment}, check=False
        ).returncode

    def _full(self, pins: list[str], indexes: list[str], more: tuple[str, ...]) -> list[str]:
        lock = self.venv.parent / "pins.lock"
        lock.write_text("\n".join(pins) + "\n", encoding="utf-8")
        return [*self._command, *indexes, *more, "--requirement", str(lock)]


def install_torch(uv: Uv, pin: str, index: str) -> None:
    """Installs torch: a CPU build from the user's own indexes or else from PyTorch's."""
    if not pin.startswith("torch==") or "+cpu" not in pin.split(maxsplit=1)[0] or uv.has(pin):
        uv.install([pin])
    elif "--no-index" in uv.arguments or not uv.install_from(index, pin):
        sys.exit(
            f"cannot get {pin.split(maxsplit=1)[0]} from your indexes or from PyTorch's, {index}: name an index that "
            'has it in pip\'s configuration, or take the build of the package index with `torch = "index"`'
        )


_OPTIONS = {
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "index-url": "--default-index",
    "no-binary": "--no-binary",
    "only-binary": "--only-binary",
    "trusted-host": "--allow-insecure-host",
}
_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
}
_SECTIONS = ("global", "install", ":env:")  # a later one counts


def options_of_pip(tools: Path) -> tuple[list[str], dict[str, str]]:
    """Returns uv's options and variables that say what pip's configuration says, which uv does not read."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    said = subprocess.run(
        command, env={**environment(), "PYTHONPATH": str(tools)}, capture_output=True, text=True, check=False
    ).stdout
    found = {}
    lines = [line.partition("=")[::2] for line in said.splitlines()]
    for section in _SECTIONS:
        for key, value in lines:
            if key.rpartition(".")[0] == section:
                found[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    options = [
        word for key, option in _OPTIONS.items() for value in found.get(key, "").split() for word in (option, value)
    ]
    options += ["--no-index"] if found.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
    options += ["--keyring-provider", "subprocess"] if found.get("keyring-provider") == "subprocess" else []
    return options, {variable: found[key] for key, variable in _VARIABLES.items() if key in found}


def needs_cuda(site: Path) -> bool:
    """Returns whether the installed torch requires NVIDIA's packages on this machine."""
    text = next(site.glob("torch-*.dist-info/METADATA")).read_text("utf-8")
    return (
        sys.platform == "linux" and re.search(r"^Requires-Dist: (nvidia|cuda|triton)", text, re.MULTILINE) is not None
    )


def overlapping(site: Path) -> list[str]:
    """Returns the distributions that have files of the same name with other contents."""
    digests: dict[str, set[str]] = {}
    rows = {path.parent.name: list(rows_of(path)) for path in sorted(site.glob("*.dist-info/RECORD"))}
    for file, digest, _ in (row for each in rows.values() for row in each):
        digests.setdefault(file, set()).add(digest)
    return [name for name, each in rows.items() if any(len(digests[file]) > 1 for file, _, _ in each)]


_OF_INSTALLERS = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json")


def rows_of(record: Path) -> Iterator[list[str]]:
    """Gives the rows of a RECORD whose files are in the site directory, without what installers write."""
    with record.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            inside = row and not row[0].startswith(("../", "/")) and not row[0].endswith(".pyc")
            if inside and not (".dist-info/" in row[0] and row[0].split("/")[1] in _OF_INSTALLERS):
                yield row


def unpack_file(packages: Path, venv: Path) -> None:
    """Unpacks a packages.pex, and compares its files with the digests in it, which keys are made from."""
    start = time.monotonic()
    say(f"unpacks the packages for Python {PYTHON} ({sys.executable}) into {venv.parents[1]} ...")
    site = make_venv(venv)
    sizes = unpack(packages, site)
    wrong = [f"{file}" for record in site.glob("*.dist-info/RECORD") for file in changed(record)]
    if wrong:
        sys.exit(f"the file of `packages` has files with other contents than it says: {', '.join(wrong[:3])}")
    say(f"unpacked {len(sizes)} files, {sum(sizes) / 1e9:.2f} GB, {time.monotonic() - start:.0f} s")


def changed(record: Path) -> Iterable[str]:
    """Returns the files of a distribution whose contents are not those of its RECORD, or that it has no digest of."""
    site = record.parents[1]

    def differs(row: list[str]) -> bool:
        name, _, digest = row[1].partition("=")
        content = hashlib.new(name, (site / row[0]).read_bytes()).digest() if name else b""
        return base64.urlsafe_b64encode(content).decode().rstrip("=") != digest or not digest

    rows = list(rows_of(record))
    with ThreadPoolExecutor() as pool:
        return [row[0] for row, other in zip(rows, pool.map(differs, rows), strict=True) if other]


def finish(place: Path, python: dict[str, str]) -> None:
    """Removes what depends on the installer and on the place, writes bytecode and descriptions, and makes all files
    read-only."""
    start = time.monotonic()
    say("compiles the packages to bytecode ...")
    venv = place / "venv"
    site = site_packages(venv)
    for command in (venv / "bin").iterdir():  # they hold the path of an interpreter, and are never run
        if not command.name.startswith("python"):
            command.unlink()
    distributions = [normal_record(record) for record in sorted(site.glob("*.dist-info/RECORD"))]
    described = {"distributions": dict(distributions), "python": PYTHON}
    write_json(place / DESCRIPTION, described)
    names = (path.name.removesuffix(".dist-info").rpartition("-")[0] for path in site.glob("*.dist-info"))
    write_json(place / "names.json", sorted(map(normalized, names)))
    write_json(place / "python.json", python)
    for file in site.rglob("*.pyc"):  # of wheels
        file.unlink()
    reuse_bytecode(site, [each for each in place.parent.glob("*") if same_python(each, python)])
    compile_bytecode(site)
    for directory, _, files in os.walk(venv):
        for name in files:
            file = Path(directory, name)
            if not file.is_symlink():
                file.chmod(file.stat().st_mode & 0o555)
    say(f"compiled the packages, {time.monotonic() - start:.0f} s")


def same_python(place: Path, python: dict[str, str]) -> bool:
    """Returns whether a directory has a complete environment of the same Python."""
    file = place / "python.json"
    return not place.name.endswith(".partial") and file.exists() and json.loads(file.read_text("utf-8")) == python


def reuse_bytecode(site: Path, others: list[Path]) -> None:
    """Takes bytecode from other environments: that of the same files, which are on the disk once."""
    known: dict[int, Path] = {}
    for source in (file for other in others for file in site_packages(other / "venv").rglob("*.py")):
        if (bytecode := Path(cache_from_source(str(source)))).exists():
            known[source.stat().st_ino] = bytecode
    for source in site.rglob("*.py") if known else ():
        if source.stat().st_ino in known:
            own = Path(cache_from_source(str(source)))
            own.parent.mkdir(exist_ok=True)
            try:
                own.hardlink_to(known[source.stat().st_ino])
            except OSError:  # it is mounted from elsewhere
                return


def normal_record(record: Path) -> tuple[str, str]:
    """Writes the RECORD of a distribution as all installers would, and returns its name and a digest."""
    directory = record.parent
    for name in _OF_INSTALLERS:
        if name != "RECORD":
            (directory / name).unlink(missing_ok=True)
    rows = list(rows_of(record))
    missing = [row[0] for row in rows if not row[1]]
    if missing:
        sys.exit(f"{directory.name} has no digest of {missing[0]}")
    text = io.StringIO()
    own = [f"{directory.name}/RECORD", "", ""]
    csv.writer(text, lineterminator="\n").writerows(sorted([*rows, own]))
    record.unlink()  # the same file is in the cache of uv
    record.write_text(text.getvalue(), encoding="utf-8", newline="")
    return directory.name.removesuffix(".dist-info"), hashlib.sha256(text.getvalue().encode()).hexdigest()


def write_json(file: Path, value: object) -> None:
    """Writes a value, with the same bytes on every machine."""
    file.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def gigabytes(directory: Path) -> str:
    """Returns the size of a directory in words."""
    files = (Path(place, name) for place, _, names in os.walk(directory) for name in names)
    return f"{sum(file.lstat().st_size for file in files) / 1e9:.2f} GB"


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


def file_digest(path: Path) -> str:
    """Returns the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_packages(packages: Path, pins: list[str]) -> Iterable[str]:
    """Exits if a file is no packages.pex with the packages of the locks for this machine. It may have more packages:
    returns the names of all."""
    if not zipfile.is_zipfile(packages):
        sys.exit("`packages` names a file that is not a packages.pex")
    advice = "build the file again, with the same version of the rules and the same `extras` or `requirements`"
    with zipfile.ZipFile(packages) as archive:
        if DESCRIPTION not in archive.namelist():
            sys.exit(f"`packages` names a file that is not a packages.pex of this version: {advice}")
        found = {name: (version, tags) for name, version, tags in distributions(archive)}
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
    """Gives the name, the version and the tags of each installed distribution in a packages.pex."""
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


_NOT_OURS = ("UV_CONSTRAINT", "UV_EXCLUDE_NEWER", "UV_OVERRIDE", "UV_NO_CACHE", "UV_COMPILE_BYTECODE", "UV_LINK_MODE")


def environment() -> dict[str, str]:
    """Returns the user's environment without what would change the meaning of the locks."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    return {**kept, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "PYTHONHASHSEED": "0"}


def run(command: list[str], more: dict[str, str] | None = None) -> None:
    """Runs a command. Exits if it fails."""
    # Standard output is for the results of commands; errors are on the other one.
    status = subprocess.run(
        command, env={**environment(), **(more or {})}, stdout=subprocess.DEVNULL, check=False
    ).returncode
    if status:
        sys.exit(f"failed with status {status}: {' '.join(command)}")


def run_quietly(command: list[str], more: dict[str, str]) -> int:
    """Runs a command without its messages, and returns its status."""
    return subprocess.run(command, env={**environment(), **more}, capture_output=True, check=False).returncode


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:  # such as a full disk
        sys.exit(f"cannot build the packages: {error}")
