"""Runs the README's two commands on fresh machines: roots of Debian, as root and as a user with sudo.

    python -m tests.machines.run [--suites bookworm trixie] [--users root alice] [--commands 'make build' 'make test']
                                 [--write docs/support.md]

needs root, debootstrap, and network for packages. A root holds Debian's smallest system with git, make and sudo, and a
clone of the last commit. It shares with this machine the kernel, and how packages are reached: the name server, the
certificates, and the variables of pip and of proxies. A root in which a command failed stays, for a look.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PASSED_ON = re.compile(r"PIP_\w+|UV_\w+|(https?|no|all)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE", re.IGNORECASE)
PACKAGES = "ca-certificates,git,make,sudo"
HEADER = (
    "| system | Python | user | command | result | minutes | GB on the disk |",
    "|---|---|---|---|---|---|---|",
)
MARKED = re.compile(r"(<!-- machines -->\n)(.*)(<!-- /machines -->)", re.DOTALL)

# Bazel's sandbox needs a namespace of its own, which a process in a `chroot` does not get.
ENTER = """
root=$1 shared=$2 user=$3 command=$4
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for path in $shared; do
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; touch "$root$path"; fi
  mount --rbind "$path" "$root$path"
done
mkdir -p "$root/outside"
cd "$root"
pivot_root . outside
umount --lazy /outside
cd /
exec runuser -u "$user" -- bash -euc "$command"
"""


@dataclass(frozen=True)
class Row:
    """What one command did on one machine."""

    system: str
    python: str
    user: str
    command: str
    result: str
    minutes: float
    gigabytes: float

    def __str__(self) -> str:
        figures = f"{self.minutes:.0f} | {self.gigabytes:.1f}"
        return f"| {self.system} | {self.python} | {self.user} | `{self.command}` | {self.result} | {figures} |"


def main(arguments: list[str]) -> int:
    """Runs all commands on all machines. Returns 1 if one of them fails."""
    parser = argparse.ArgumentParser(description="Run the README's commands on fresh machines.")
    parser.add_argument("--suites", nargs="+", default=["bookworm", "trixie"], help="releases of Debian")
    parser.add_argument("--users", nargs="+", default=["root", "alice"])
    parser.add_argument("--commands", nargs="+", default=["make build", "make test"], help="commands in the clone")
    parser.add_argument("--roots", type=Path, default=REPOSITORY / ".cache/machines", help="directory for the roots")
    parser.add_argument("--write", type=Path, help="page with the table")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.exit("Roots of Debian can only be made as root: run this with sudo.")
    rows: list[Row] = []
    for suite in options.suites:
        base = base_root(options.roots.resolve(), suite)
        for user in options.users:
            rows += run_machine(base, user, options.commands)
            print(rows[-1], flush=True)
    print("\n".join((*HEADER, *map(str, rows))))
    if options.write:
        page = options.write.read_text("utf-8")
        written = MARKED.sub(lambda match: match[1] + updated(match[2], rows) + match[3], page)
        options.write.write_text(written, encoding="utf-8")
    return int(any(row.result == "failed" for row in rows))


def updated(table: str, rows: list[Row]) -> str:
    """Returns the table of a page with new rows. Those of other machines, users and commands stay."""

    def subject(line: str) -> tuple[str, ...]:
        cells = [cell.strip() for cell in line.split("|")]
        return (cells[1], cells[3], cells[4])

    kept = {subject(line): line for line in table.splitlines()[len(HEADER) :]}
    kept.update({subject(str(row)): str(row) for row in rows})
    return "\n".join((*HEADER, *(kept[each] for each in sorted(kept)))) + "\n"


def base_root(roots: Path, suite: str) -> Path:
    """Returns the root of a release as debootstrap makes it. Makes it if it is not there."""
    base = roots / suite
    if not base.exists():
        roots.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(prefix=f"{suite}.", dir=roots))
        include = f"--include={PACKAGES}"
        # In a namespace of its own, so that an interrupted run leaves nothing mounted.
        subprocess.run(["unshare", "--mount", "debootstrap", "--variant=minbase", include, suite, begun], check=True)
        begun.rename(base)
    return base


def run_machine(base: Path, user: str, commands: list[str]) -> list[Row]:
    """Runs commands in a clone on a fresh machine, until one fails. Removes the machine if none does."""
    root = Path(tempfile.mkdtemp(prefix=f"{base.name}-{user}.", dir=base.parent))
    subprocess.run(["cp", "--archive", "--reflink=auto", f"{base}/.", root], check=True)
    root.chmod(0o755)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc", name), root / "etc" / name)
    subprocess.run(["git", "bundle", "create", "--quiet", root / "source.bundle", "HEAD"], cwd=REPOSITORY, check=True)
    if user != "root":
        prepare(root, "root", f"useradd --create-home --shell /bin/bash {user}")
        (root / "etc/sudoers.d" / user).write_text(f"{user} ALL=(ALL) NOPASSWD:ALL\n", encoding="utf-8")
    prepare(root, user, "cd; git -c advice.detachedHead=false clone --quiet /source.bundle rules_executorch")
    size = gigabytes(root)
    rows: list[Row] = []
    for command in commands:
        start = time.monotonic()
        status = enter(root, user, f"cd; cd rules_executorch; {command}")
        minutes = (time.monotonic() - start) / 60
        result = "failed" if status else "passed"
        rows.append(Row(system(root), python(root), user, command, result, minutes, gigabytes(root) - size))
        if status:
            print(f"see {root}", file=sys.stderr)
            return rows
    shutil.rmtree(root)
    return rows


def prepare(root: Path, user: str, command: str) -> None:
    """Runs a command that makes the machine. Exits if it fails: what follows would measure something else."""
    if enter(root, user, command):
        sys.exit(f"The machine cannot be made. This failed: {command}\nsee {root}")


def enter(root: Path, user: str, command: str) -> int:
    """Runs a command of a shell on a machine, and returns its status. Its processes end with it."""
    passed = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    paths = [path for value in passed.values() for path in value.split() if path.startswith("/")]
    shared = [path for path in paths if Path(path).exists()]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root" if user == "root" else f"/home/{user}",
        "USER": user,
        **passed,
    }
    namespace = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    words = [str(root), " ".join(sorted({*shared, str(CERTIFICATES)})), user, command]
    done = subprocess.run([*namespace, "bash", "-euc", ENTER, "enter", *words], env=environment, check=False)
    return done.returncode


def gigabytes(root: Path) -> float:
    """Returns what the files of a machine take on the disk, in units of 10^9 bytes. A file counts once."""
    found = subprocess.check_output(["du", "--summarize", "--one-file-system", "--block-size=1", root], text=True)
    return int(found.split()[0]) / 1e9


def system(root: Path) -> str:
    """Returns the name of a machine's release, such as `Debian 13`."""
    text = (root / "etc/os-release").read_text("utf-8")
    values = dict(re.findall(r'^(\w+)="?([^"\n]*)', text, re.MULTILINE))
    return f"{values['NAME'].split()[0]} {values['VERSION_ID']}"


def python(root: Path) -> str:
    """Returns the version of the Python in the clone's virtual environment; empty if there is none."""
    for home in ("root", "home/*"):
        for file in root.glob(f"{home}/rules_executorch/.venv/pyvenv.cfg"):
            return file.read_text("utf-8").partition("version = ")[2].split()[0]
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
