"""Counts what stays outside of delegates, with and without the parts that a build computes or leaves out.

    python -m benchmarks.outside.run [--models NAME...] [--latency] [--list] [--write benchmarks/results]

Each model of the zoo is lowered twice for XNNPACK: as ExecuTorch does it, with the corrections of `etbuild`, and as
`etbuild` does it. `outside` counts the operators that no delegate takes, `share` is the part of all operators that
delegates take, and `bytes` is the size of the program.

`--latency` counts nothing. It runs both programs in turns, as `benchmarks.latency` does, which needs a quiet machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import Row
from benchmarks.latency import run as latency
from benchmarks.zoo.zoo import MODELS, write

OF_ONE = "--of"
TIMED = ("bert", "vit", "yolos")
_SIDES = ("before", "after")


def of_model(manifest: Path) -> Row:
    """The counts of a model. Writes both programs beside its manifest. It must be the first in its process."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from etbuild.lower.lower_methods import operator_counts
    from etbuild.lower.named_data import delegates
    from etbuild.patching import replaced
    from etplugins.upstream import constant_parts, lowering, xnnpack

    sys.argv[1:] = [str(manifest), ""]
    from benchmarks import plain  # reads the arguments

    def unchanged() -> AbstractContextManager[None]:
        return nullcontext()

    row: Row = {}
    for side, around in zip(_SIDES, (unchanged, constant_parts.computed_once), strict=True):
        with torch.no_grad():
            programs = plain.export_methods(json.loads(manifest.read_text("utf-8")))
        partitioners = {name: [XnnpackPartitioner()] for name in programs}
        with replaced(constant_parts, "computed_once", around), lowering.around(), xnnpack.around(partitioners):
            edge = to_edge_transform_and_lower(programs, partitioner=partitioners)
        methods = [edge.exported_program(name) for name in sorted(programs)]
        counts = [operator_counts(each) for each in methods]
        outside = sum(sum(each["fallback"].values()) for each in counts)
        taken = sum(sum(of.values()) for each in counts for of in each["delegated"].values())
        row |= {
            f"outside {side}": outside,
            f"share {side}": taken / (taken + outside),
            f"delegates {side}": sum(len([*delegates(each.graph_module)]) for each in methods),
        }
        lowering.finish(edge)
        row[f"bytes {side}"] = manifest.with_name(f"{side}.pte").write_bytes(edge.to_executorch().buffer)
    return row


def measure(name: str, scratch: Path) -> Row:
    """The row of one model, whose programs are written into a directory below this one."""
    manifest = write(name, scratch / "model")
    command = [sys.executable, "-m", "benchmarks.outside.run", OF_ONE, str(manifest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return {"model": name, **json.loads(done.stdout.splitlines()[-1])}


def times(name: str, scratch: Path) -> list[Row]:
    """The times of one model: the program that leaves less outside, against the other one."""
    measure(name, scratch)
    before, after = (scratch / f"model/{side}.pte" for side in _SIDES)
    words, left_out = {"ours": "after", "other": "before"}, ("other", "same bytes")
    rows = latency.rows(name, "", (after, before), latency.RUNS, latency.SECONDS)
    return [
        {" ".join(words.get(word, word) for word in key.split()): row[key] for key in row if key not in left_out}
        for row in rows
    ]


def main() -> None:
    """The command line."""
    parser = frame.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="NAME")
    parser.add_argument("--latency", action="store_true", help=f"measure times, of {', '.join(TIMED)} if none is named")
    parser.add_argument("--list", action="store_true", help="print the names of the models")
    parser.add_argument(OF_ONE, dest="of", type=Path, metavar="MANIFEST", help="print the counts of one manifest")
    options = parser.parse_args()
    if options.list:
        print("\n".join(MODELS))
        return
    if options.of is not None:
        print(json.dumps(of_model(options.of)))
        return
    frame.begin(options.write, options.loaded)
    rows, section = list[Row](), "latency" if options.latency else "models"
    for name in options.models or (TIMED if options.latency else MODELS):
        with tempfile.TemporaryDirectory() as scratch:
            rows += times(name, Path(scratch)) if options.latency else [measure(name, Path(scratch))]
        frame.tell(rows[-1])
        rows = frame.joined(options.write, "outside", section, rows, options.loaded)
        frame.write(options.write, "outside", {section: rows}, options.loaded)  # it may be ended
    print(frame.table(rows))


if __name__ == "__main__":
    main()
