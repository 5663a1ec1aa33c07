"""Measures Bazel over many programs: analysis, a build that has nothing to do, and what an edit runs again.

    python -m benchmarks.monorepo.run [--programs 1000] [--backbones 20] [--real 40] [--write benchmarks/results]

All programs are analysed with the real toolchain. They are built with a driver that writes digests in place of
programs (`counting_driver.py`), since to lower them all takes an hour: that shows which actions an edit reaches and
what Bazel needs for them. Heaps are what is in use after a garbage collection. `--real` programs, over as many
backbones as fit, are built with the real driver, in persistent workers. The variables BAZEL and BAZEL7 name the Bazels.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import frame
from benchmarks.frame import ROOT
from benchmarks.measure import usage
from benchmarks.monorepo import asked_for, workspace
from benchmarks.monorepo.counting_driver import ASKED_FOR
from tests.helpers.workspaces import NOT_COPIED, WORKERS, executed, packages_repository

COUNTING = """\
load("@rules_executorch//rules:defs.bzl", "executorch_toolchain")

sh_binary(
    name = "driver",
    srcs = ["counting_driver.py"],
)

executorch_toolchain(
    name = "executorch",
    driver = ":driver",
)

toolchain(
    name = "toolchain",
    toolchain = ":executorch",
    toolchain_type = "@rules_executorch//toolchain:toolchain_type",
)
"""
COUNTING_TOOLCHAIN = "--extra_toolchains=//counting:toolchain"
COUNTED = (COUNTING_TOOLCHAIN, "--spawn_strategy=local")
LOCKS = "--build_manual_tests"
"""The option that builds the lock tests of all programs, which no other build here does."""
HEAP = "--host_jvm_args=-Xmx1g"
"""What Bazel's heap may grow to. If it does not suffice, the command fails."""

Rows = dict[str, Any]


@dataclass
class Bazel:
    """One version of Bazel in a workspace of its own, with the packages of the developer's."""

    directory: Path
    output_root: Path
    packages: Path
    modern: str = ""
    overrides: list[str] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        """Returns a command; a modern Bazel ends with it, and an old one keeps a server."""
        if self.modern:
            return [*shlex.split(self.modern), str(self.directory), HEAP, *arguments]
        bazel = shlex.split(os.environ.get("BAZEL", "bazel"))
        return [*bazel, f"--output_user_root={self.output_root}", HEAP, *arguments]

    def environment(self) -> dict[str, str]:
        """Returns the variables of the commands."""
        binds = f"{self.packages} {(self.packages / 'venv').resolve().parent} {self.directory} {ROOT}"
        return {**os.environ, "BAZEL7_BIND": binds, "BAZEL7_OUTPUT_ROOT": str(self.output_root)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Bazel and returns what it said."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def disk_cache(self) -> str:
        """Returns the option that keeps results, so that to undo an edit runs nothing."""
        return f"--disk_cache={self.output_root / 'disk_cache'}"

    def override(self) -> str:
        """Returns the option that names the packages."""
        if not self.overrides:
            self.overrides.append(f"--override_repository={packages_repository(self.run)}={self.packages}")
        return self.overrides[0]

    def cpu(self) -> float:
        """Returns the processor seconds of the server so far; 0 for a Bazel without a server."""
        if self.modern:
            return 0.0
        pid = self.run("info", "server_pid").stdout.strip()
        user, system = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def build(self, *arguments: str) -> dict[str, object]:
        """Builds, and returns Bazel's own seconds, its processor seconds and how many actions of each kind ran."""
        log = self.output_root / "execution.json"
        log.unlink(missing_ok=True)
        before = self.cpu()
        done = self.run("build", self.override(), f"--execution_log_json_file={log}", "--curses=no", *arguments)
        if done.returncode:
            raise SystemExit(done.stderr)
        row: dict[str, object] = {"seconds": round(float(re.findall(r"Elapsed time: ([\d.]+)s", done.stderr)[-1]), 1)}
        if not self.modern:
            row["processor_seconds"] = round(self.cpu() - before, 1)
            row["heap_megabytes"] = self.heap()
        return {**row, "actions": dict(Counter(name.removeprefix("Executorch") for name in executed(log)[0]))}

    def heap(self) -> int:
        """Returns the megabytes of the server's heap that are in use after a garbage collection."""
        return int(self.run("info", "used-heap-size-after-gc").stdout.removesuffix("MB\n"))

    def declared(self, counting: Path) -> dict[str, object]:
        """Tells the counting driver what all actions read and write. Returns how many there are of each kind."""
        query = asked_for.QUERY.format("//apps/...")
        done = self.run("aquery", self.override(), COUNTING_TOOLCHAIN, "--output=text", query)
        if done.returncode:
            raise SystemExit(done.stderr)
        return {"actions": shown(asked_for.write(counting.parent, done.stdout, counting.parent.name))}

    def analysis(self) -> dict[str, object]:
        """Analyses all programs in a new process. Returns seconds and megabytes of the whole process, and its heap."""
        profile = self.output_root / "memory.txt"
        options = ("--nobuild", self.override(), "--curses=no", f"--memory_profile={profile}", "//apps/...")
        self.run("build", *options)  # repositories are made, and files are in the system's cache
        self.run("shutdown")
        command = self.command("build", *options) if self.modern else self.command("--batch", "build", *options)
        here = Path.cwd()
        os.chdir(self.directory)
        try:
            done = usage(*command, but=None, **self.environment())
        finally:
            os.chdir(here)
        targets = re.findall(r"Analyzed (\d+) targets", done.output)
        used = re.findall(r"^Load and analyze dependencies:heap:used:(\d+)", profile.read_text("utf-8"), re.MULTILINE)
        return {
            "seconds": round(done.wall, 1),
            "processor_seconds": round(done.cpu, 1),
            "megabytes": round(done.peak),
            "heap_megabytes": round(int(used[-1]) / 1e6),
            "targets": int(targets[-1]),
        }

    def stop(self) -> None:
        """Ends the server."""
        self.run("shutdown")


@contextmanager
def edited(path: Path, change: Callable[[Path], object]) -> Iterator[None]:
    """Makes an edit, and undoes it at the end."""
    before = path.read_bytes()
    change(path)
    try:
        yield
    finally:
        path.write_bytes(before)


def appended(path: Path) -> object:
    """Adds a line that changes no graph."""
    return path.write_text(path.read_text("utf-8") + "\n# A remark.\n", "utf-8")


def another_layer(path: Path) -> object:
    """Changes the graphs of a backbone."""
    return path.write_text(path.read_text("utf-8").replace(".relu()", ".sigmoid()"), "utf-8")


def other_weights(path: Path) -> None:
    """Changes the weights of a backbone."""
    workspace.write_weights(path, 1000)


def edits(bazel: Bazel, driver: Path, *more: str) -> Rows:
    """Builds, builds again, and builds after each edit."""
    rows: Rows = {}
    options = ("//apps/...", bazel.disk_cache, *more)

    def row(name: str) -> None:
        rows[name] = bazel.build(*options)
        print(f"{name:24} {rows[name]}", flush=True)

    backbone = bazel.directory / "backbones/b00"
    row("first build")
    row("nothing")
    for name, path, change in (
        ("one backbone's weights", backbone / "weights.safetensors", other_weights),
        ("one backbone's graph", backbone / "b00.py", another_layer),
    ):
        with edited(path, change):
            row(name)
        bazel.build(*options)  # from the disk cache
    with edited(driver, appended):
        row("the driver")
    return rows


def runfiles(bazel: Bazel) -> Rows:
    """Builds the lock tests of all programs, and measures what Bazel writes so that they find their files."""
    bazel.build("//apps/...", bazel.disk_cache, LOCKS, *COUNTED)
    trees = [path for path in (bazel.directory / "bazel-bin/apps").glob("**/*.runfiles") if path.is_dir()]
    entries = [path for tree in trees for path in tree.rglob("*")]
    links = [path for path in entries if path.is_symlink()]
    lists = [path for tree in trees for path in tree.parent.glob(f"{tree.name}_manifest")]
    lists += [path for path in entries if path.name == "MANIFEST" and not path.is_symlink()]
    return {
        "scripts": len(trees),
        "links": len(links),
        "bytes_of_links": sum(path.lstat().st_size for path in links),
        "bytes_of_lists": sum(path.lstat().st_size for path in lists),
    }


def packages() -> Path:
    """Returns the packages of the developer's own output base."""

    def developers(*arguments: str) -> subprocess.CompletedProcess[str]:
        bazel = shlex.split(os.environ.get("BAZEL", "bazel"))
        return subprocess.run([*bazel, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    assert developers("build", "//toolchain:etbuild").returncode == 0
    output_base = Path(developers("info", "output_base").stdout.strip())
    return (output_base / "external" / packages_repository(developers)).resolve()


def rules_to_edit(directory: Path) -> Path:
    """Copies what a build needs of the rules, so that the driver can be edited. Returns the copy."""
    for name in ("rules", "schemas", "toolchain", "tests/bazel/stubs"):
        shutil.copytree(ROOT / name, directory / name, symlinks=True, ignore=NOT_COPIED)
    for name in ("BUILD", "MODULE.bazel", "WORKSPACE"):
        shutil.copy2(ROOT / name, directory / name)
    return directory


def counting_driver(directory: Path) -> Path:
    """Adds a toolchain with the driver that only counts to a workspace. Returns the driver's file."""
    (directory / "counting").mkdir()
    (directory / "counting/BUILD").write_text(COUNTING, "utf-8")
    (directory / "counting" / ASKED_FOR).mkdir()
    return Path(shutil.copy(ROOT / "benchmarks/monorepo/counting_driver.py", directory / "counting"))


def measured(scratch: Path, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Makes the workspaces and measures in them. Gives each part of the results as soon as it is there."""
    rules, made = rules_to_edit(scratch / "rules"), packages()
    many, few = scratch / "many", scratch / "few"
    workspace.write(many, options.programs, options.backbones, teams=10, rules=rules)
    workspace.write(few, options.real, max(1, options.real * options.backbones // options.programs), 10, rules)
    counting = counting_driver(many)
    versions = {"bazel 4": "", **({"bazel 7": os.environ["BAZEL7"]} if os.environ.get("BAZEL7") else {})}
    bazels = {name: Bazel(many, scratch / f"{name[-1]}many", made, command) for name, command in versions.items()}
    real = Bazel(few, scratch / "4few", made)
    for bazel in (*bazels.values(), real):
        bazel.output_root.mkdir()
    try:
        for name, bazel in bazels.items():
            yield f"{name}, {options.programs} programs, analysis", bazel.analysis()
        yield f"bazel 4, {options.programs} programs, actions", bazels["bazel 4"].declared(counting)
        yield f"bazel 4, {options.programs} programs, digests only", edits(bazels["bazel 4"], counting, *COUNTED)
        yield f"bazel 4, {options.programs} programs, runfiles of lock tests", runfiles(bazels["bazel 4"])
        if options.real:
            driver = rules / "toolchain/etbuild/report/report.py"
            yield f"bazel 4, {options.real} programs, real driver", edits(real, driver, *WORKERS)
        if "bazel 7" in bazels:
            yield f"bazel 7, {options.programs} programs, actions", bazels["bazel 7"].declared(counting)
            yield f"bazel 7, {options.programs} programs, digests only", edits(bazels["bazel 7"], counting, *COUNTED)
    finally:
        for bazel in (*bazels.values(), real):
            bazel.stop()


def main() -> None:
    """Measures, and writes the results if asked to."""
    parser = frame.parser(__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--backbones", type=int, default=20)
    parser.add_argument("--real", type=int, default=40, help="how many programs to build with the real driver")
    options = parser.parse_args()
    frame.begin(options.write, options.loaded)
    with tempfile.TemporaryDirectory() as scratch:
        for name, found in measured(Path(scratch), options):
            print(name)
            rows = listed(found)
            for row in rows:
                frame.tell(row)
            frame.write(options.write, "monorepo", {name: rows}, options.loaded)


def listed(found: dict[str, Any]) -> list[frame.Row]:
    """A part of the results as rows."""
    if "first build" not in found:
        return [found]
    return [{"build after an edit of": edit, **row, "actions": shown(row["actions"])} for edit, row in found.items()]


def shown(actions: dict[str, int]) -> str:
    """How many actions there are of each kind, in words."""
    actions = {name.removeprefix("Executorch"): number for name, number in actions.items()}
    return ", ".join(f"{number} {name}" for name, number in actions.items()) or "nothing"


if __name__ == "__main__":
    main()
