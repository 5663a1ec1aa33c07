"""Measures `etbuild push` and `etbuild pull` against skopeo and oras (the Python package), on loopback.

    python -m benchmarks.registry.run [--runs 3] [--megabytes 1000] [--directory /tmp]

Needs docker-registry and skopeo, which tools/find_registry.sh installs. The tools run in turn, each into an empty
registry; the first round is not counted. Prints wall-clock seconds and the ratio of ours to the faster of the others.
Then it counts the bytes on the wire of a second program over the same weights, and of a pull of a changed program over
old weights. Every pull is compared with what was pushed.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.builds import write_build
from tests.registry.servers import Registry, Wire, find

SHARDS = 4
ORAS = """
import json, sys
from pathlib import Path
from oras.client import OrasClient
from oras.container import Container
verb, registry, layout, digest, out = sys.argv[1:]
client = OrasClient(hostname=registry, insecure=True)
if verb == "pull":
    client.pull(target=f"{registry}/bench/oras@{digest}", outdir=out)
else:
    blobs = Path(layout, "blobs/sha256")
    manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_bytes())
    container = Container(f"{registry}/bench/oras@{digest}")
    for layer in [manifest["config"], *manifest["layers"]]:
        client.upload_blob(str(blobs / layer["digest"].removeprefix("sha256:")), container, layer)
    data = (blobs / digest.removeprefix("sha256:")).read_bytes()
    answer = client.do_request(
        f"http://{container.manifest_url()}", "PUT", data=data, headers={"Content-Type": manifest["mediaType"]}
    )
    assert answer.status_code == 201, answer.text
"""


def run(*command: object) -> float:
    """Runs a command and returns its wall-clock seconds."""
    start = time.monotonic()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return time.monotonic() - start


def etbuild(*arguments: object) -> float:
    return run(sys.executable, "-m", "etbuild", *arguments)


def compare(built: Path, pulled: Path) -> None:
    """Checks that a pull gave the files of the build."""
    names = [str(path.relative_to(built)) for path in built.rglob("*.pt?")]
    if filecmp.cmpfiles(built, pulled, names, shallow=False)[0] != names:
        sys.exit(f"{pulled}: not what was pushed")


class Bench:
    """A package, a registry and the commands of each tool."""

    def __init__(self, directory: Path, megabytes: int) -> None:
        self.directory = directory
        self.built, self.layout, self.out = directory / "built", directory / "layout", directory / "out"
        source = random.Random(0)
        shards = {
            f"net.weights/weights-{number}.ptd": source.randbytes(megabytes * 10**6 // SHARDS)
            for number in range(SHARDS)
        }
        index = write_build(self.built, "net", pte=source.randbytes(100_000), ptd=None, more=shards)
        etbuild("package", index, "-o", self.layout)
        root = json.loads((self.layout / "index.json").read_bytes())["manifests"][0]["digest"]
        package = json.loads((self.layout / "blobs/sha256" / root.partition(":")[2]).read_bytes())
        self.digest = package["manifests"][0]["digest"]

    def tools(self, server: Registry) -> dict[str, tuple[Callable[[], float], Callable[[], float]]]:
        """For each tool its push and its pull."""
        skopeo, target = (
            [find("skopeo"), "--insecure-policy", "copy", "--all"],
            f"docker://{server.address}/bench/skopeo:v1",
        )
        own = f"{server.address}/bench/etbuild:v1"

        def oras(verb: str) -> float:
            return run(sys.executable, "-c", ORAS, verb, server.address, self.layout, self.digest, self.out)

        return {
            "etbuild": (
                lambda: etbuild("push", self.layout, own),
                lambda: etbuild("pull", own, "-o", self.out),
            ),
            "skopeo": (
                lambda: run(*skopeo, "--dest-tls-verify=false", f"oci:{self.layout}", target),
                lambda: run(*skopeo, "--src-tls-verify=false", target, f"oci:{self.out}"),
            ),
            "oras": (lambda: oras("push"), lambda: oras("pull")),
        }

    def round(self) -> dict[str, tuple[float, float]]:
        """The seconds of a push and a pull with each tool."""
        seconds = {}
        for name in ("etbuild", "skopeo", "oras"):
            server = Registry(self.directory / "registry")
            server.start()
            try:
                push, pull = self.tools(server)[name]
                for path in self.layout.rglob("*"):  # the first tool must not read from a colder disk than the others
                    if path.is_file():
                        path.read_bytes()
                pushed, pulled = push(), pull()
                if name != "skopeo":  # which writes a layout
                    compare(self.built, self.out)
                seconds[name] = (pushed, pulled)
            finally:
                server.kill()
                shutil.rmtree(self.directory / "registry", ignore_errors=True)
                shutil.rmtree(self.out, ignore_errors=True)
                os.sync()
        return seconds


def traffic(directory: Path, megabytes: int) -> None:
    """Counts the bytes of a second program over the same weights, and of a changed program over old weights."""
    weights = random.Random(1).randbytes(megabytes * 10**6)
    for name, program in {"first": "first", "second": "second", "changed": "first"}.items():
        index = write_build(directory / name, program, pte=random.Random(name).randbytes(20_000), ptd=weights)
        etbuild("package", index, "-o", directory / f"{name}.oci")
    server = Registry(directory / "registry")
    server.start()
    try:
        with Wire(server.port) as wire:
            counts = []
            for name in ("first", "second", "changed"):
                before = wire.sent
                etbuild("push", directory / f"{name}.oci", f"{wire.address}/bench/shared:{name}")
                counts.append(wire.sent - before)
            print(f"push: first program {counts[0]:,} bytes, second over the same weights {counts[1]:,} "
                  f"({100 * counts[1] / counts[0]:.3f} %)")  # fmt: skip
            received = []
            for name in ("first", "changed"):
                before = wire.received
                etbuild("pull", f"{wire.address}/bench/shared:{name}", "-o", directory / "pulled")
                received.append(wire.received - before)
            print(f"pull: first {received[0]:,} bytes, changed program over old weights {received[1]:,} "
                  f"({100 * received[1] / received[0]:.3f} %)")  # fmt: skip
    finally:
        server.kill()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="counted rounds (default: 3)")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the package (default: 1000)")
    parser.add_argument("--directory", type=Path, help="where to work (default: the directory of temporary files)")
    options = parser.parse_args()
    os.environ["ETBUILD_CACHE_DIR"] = "/nonexistent"  # a pull must not find files there
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        bench = Bench(Path(scratch) / "bench", options.megabytes)
        rounds = [bench.round() for _ in range(options.runs + 1)][1:]
        print(f"{'':8}   push s   pull s   (medians of {options.runs}; {options.megabytes} MB in {SHARDS} files)")
        for name in rounds[0]:
            push, pull = (statistics.median(each[name][part] for each in rounds) for part in (0, 1))
            print(f"{name:8} {push:8.2f} {pull:8.2f}")
        ratios = [
            [each["etbuild"][part] / min(each["skopeo"][part], each["oras"][part]) for each in rounds]
            for part in (0, 1)
        ]
        print(
            f"{'ratio':8} {statistics.median(ratios[0]):8.2f} {statistics.median(ratios[1]):8.2f}   (to the faster one)"
        )
        traffic(Path(scratch) / "traffic", 100)


if __name__ == "__main__":
    main()
