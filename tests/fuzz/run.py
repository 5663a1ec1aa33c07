"""The long run of the targets, by atheris: `python -m tests.fuzz.run --seconds 1200 -j 2 [TARGET ...]`.

Each target goes on from the inputs that earlier runs kept in `.cache/fuzz`. What a reader should not do is written to
`findings/`, where `test_fuzz.py` takes it for a seed. The result is a table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS, FINDINGS = ROOT / ".cache/fuzz", Path(__file__).with_name("findings")
SLICE = 120  # seconds of one process: what a reader leaves in memory ends with it
MOST_BYTES, MOST_FINDINGS = 50 << 20, 20  # of what is kept of a target
INPUT_BYTES, INPUT_SECONDS, MEMORY_MB = 1 << 16, 60, 4096  # seconds on a clock, which other load makes longer


@dataclass
class Result:
    """What came of a target."""

    target: str
    executions: int = 0
    seconds: int = 0
    findings: int = 0
    broken: bool = False  # it could not be run to its end


def main() -> int:
    """Runs the targets, prints the table, and ends with 1 where there are findings."""
    options = _options()
    if options.child:
        _fuzz(options.targets[0], options.seconds)
        return 0
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda target: _run(target, options.seconds), options.targets))
    print(json.dumps([asdict(result) for result in results], indent=2) if options.json else _table(results))
    return 1 if any(result.findings or result.broken for result in results) else 0


def _options() -> argparse.Namespace:
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all ({', '.join(TARGETS)})")
    parser.add_argument("--seconds", type=int, default=180, help="of each target (default: 180)")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="so many targets at once")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    options.targets = options.targets or list(TARGETS)
    return options


def _run(target: str, seconds: int) -> Result:
    """A target in processes of its own, one after the other, until the time is over."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(exist_ok=True)
    result, end = Result(target), time.monotonic() + seconds
    while (rest := round(end - time.monotonic())) > 0 and _found(target) < MOST_FINDINGS:
        _shrink(corpus)
        command = [sys.executable, "-m", "tests.fuzz.run", "--child", target, "--seconds", str(min(rest, SLICE))]
        start = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
        count = _executions(done.stderr)
        result.executions += count
        result.seconds += round(time.monotonic() - start)
        if count == 0 and done.returncode != 0:
            print(done.stderr[-2000:], file=sys.stderr)
            result.broken = True
            break
    result.findings = _found(target)
    return result


def _found(target: str) -> int:
    return len(list(FINDINGS.glob(f"{target}-*")))


def _executions(said: str) -> int:
    """How many, of what libFuzzer says at its end, or at the last input before one that it ended with."""
    units = (
        re.findall(r"Done (\d+) runs? in \d+ second", said)
        or re.findall(r"stat::number_of_executed_units:\s*(\d+)", said)
        or re.findall(r"^#(\d+)\s", said, re.MULTILINE)
    )
    return int(units[-1]) if units else 0


def _shrink(corpus: Path) -> None:
    """Keeps the disk free: the largest inputs go first."""
    files = sorted(corpus.iterdir(), key=lambda path: path.stat().st_size)
    kept = 0
    for path in files:
        kept += path.stat().st_size
        if kept > MOST_BYTES:
            path.unlink()


def _fuzz(target: str, seconds: int) -> None:
    """Fuzzes in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["etbuild", "yaml", "flatbuffers"], enable_loader_override=False):
        from tests.fuzz import targets
        from tests.fuzz.seeds import seeds

        for data in seeds(target):
            (CORPUS / target / hashlib.sha1(data).hexdigest()).write_bytes(data)
            targets.TARGETS[target](data)  # what it imports is instrumented, and none of its time counts
    known: set[str] = set()

    def run(data: bytes) -> None:
        try:
            targets.TARGETS[target](data)
        except Exception as error:  # whatever it is, it is a finding
            _keep(target, data, error, known)

    limits = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES}"]
    limits += [f"-timeout={INPUT_SECONDS}", f"-report_slow_units={INPUT_SECONDS}"]
    limits += [f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={FINDINGS}/{target}-"]
    atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", str(CORPUS / target)], run)
    atheris.Fuzz()


def _keep(target: str, data: bytes, error: Exception, known: set[str]) -> None:
    """Writes the first input of each kind of finding, and goes on."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/fuzz/run" not in frame.filename]
    kind = f"{type(error).__name__}-{Path(frames[-1].filename).stem}-{frames[-1].lineno}"
    path = FINDINGS / f"{target}-{kind}"
    if kind not in known and not path.exists():
        path.write_bytes(data)
        print("".join(traceback.format_exception(error)), file=sys.stderr)
    known.add(kind)


def _table(results: list[Result]) -> str:
    rows = ["| target | executions | seconds | findings |", "|---|---:|---:|---:|"]
    for each in results:
        findings = "could not be run" if each.broken else each.findings
        rows.append(f"| {each.target} | {each.executions:,} | {each.seconds} | {findings} |")
    return "\n".join(rows)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
