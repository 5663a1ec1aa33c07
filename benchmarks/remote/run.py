"""Measures how programs are built by a remote executor, with one worker and with several.

    python -m benchmarks.remote.run [--programs 20] [--backbones 4] [--workers 1 4] [--write benchmarks/results]

The executor is BuildBox on this machine, so workers share its processors. First, one program is built: that sends the
packages. Then each number of workers builds as many other programs. `sent` and `received` are bytes between Bazel and
the executor. `inputs` are the bytes that actions read, as if each ran on a machine of its own; `repeated` is the share
of them that an earlier action has read too, which a cache of workers keeps. The variable BAZEL names the Bazel.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from benchmarks import frame
from benchmarks.monorepo import run, workspace
from tests.remote import protocol
from tests.remote.servers import BuildBox

TOOLCHAIN = "--extra_toolchains=@rules_executorch//toolchain:remote"
FEW = ("--remote_download_toplevel", "--spawn_strategy=remote,local")
"""The packages are split here; files between the steps stay with the executor."""


def build(bazel: run.Bazel, server: BuildBox, target: str, seen: dict[str, int]) -> frame.Row:
    """Builds with an executor.

    Args:
        bazel: Bazel in a workspace.
        server: The executor, which runs.
        target: What to build.
        seen: The inputs that earlier actions have read, by digest. It grows.
    """
    log = bazel.output_root / "calls"
    log.unlink(missing_ok=True)
    options = (f"--remote_executor=grpc://127.0.0.1:{server.port}", f"--experimental_remote_grpc_log={log}")
    jobs = f"--jobs={server.workers + 1}"
    done = bazel.run("build", bazel.override(), "--curses=no", TOOLCHAIN, *FEW, *options, jobs, target)
    if done.returncode:
        raise SystemExit(done.stderr + server.text()[-5000:])
    [seconds] = re.findall(r"Elapsed time: ([\d.]+)s", done.stderr)
    return {"seconds": float(seconds), **moved(server, protocol.calls(log), float(seconds), seen)}


def moved(server: BuildBox, calls: protocol.Calls, seconds: float, seen: dict[str, int]) -> frame.Row:
    """How many actions ran, and the bytes that they moved."""

    def store(digest: str) -> bytes:
        return server.blob(digest).read_bytes()

    read = repeated = 0
    for action in calls.actions:
        for digest, size in {(digest, size) for _, digest, size in protocol.inputs(store, action)}:
            read += size
            repeated += size if digest in seen else 0
            seen[digest] = size
    return {
        "actions": len(calls.actions),
        "actions_a_minute": round(60 * len(calls.actions) / seconds, 1),
        "sent": sum(size for _, size in calls.sent),
        "received": sum(size for _, size in calls.received),
        "inputs": read,
        "repeated": f"{100 * repeated / max(1, read):.2f} %",
        "different_inputs": sum(seen.values()),
    }


def measured(scratch: Path, programs: int, backbones: int, workers: list[int]) -> list[frame.Row]:
    """Makes a workspace, and builds the programs of a team with each number of workers."""
    directory, output_root = scratch / "workspace", scratch / "root"
    workspace.write(directory, programs * (len(workers) + 1), backbones, len(workers) + 1)
    output_root.mkdir()
    bazel, rows, seen = run.Bazel(directory, output_root, run.packages()), [], dict[str, int]()
    try:
        for team, number in enumerate([workers[0], *workers]):
            server = BuildBox(scratch / "server", workers=number)
            target = f"//apps/team_{team}/..." if team else "//apps/team_0/p0000"
            server.start()
            try:
                built = {"programs": programs, "workers": number} if team else {"programs": 1, "workers": number}
                rows.append({**built, **build(bazel, server, target, seen)})
            finally:
                server.kill()
            frame.tell(rows[-1])
    finally:
        bazel.stop()
    return rows


def main() -> None:
    """Measures, and writes the results if asked to."""
    parser = frame.parser(__doc__)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--backbones", type=int, default=4)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    if (why := BuildBox.missing()) is not None:
        raise SystemExit(why)
    frame.begin(options.write, options.loaded)
    with tempfile.TemporaryDirectory() as scratch:
        rows = measured(Path(scratch), options.programs, options.backbones, options.workers)
    frame.write(options.write, "remote", {"programs by a remote executor": rows}, options.loaded)


if __name__ == "__main__":
    main()
