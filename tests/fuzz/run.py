"""Fuzzes the targets with atheris for a long time: `python -m tests.fuzz.run --seconds 1200 -j 2 [TARGET ...]`.

Each target continues from the inputs that earlier runs kept in `.cache/fuzz`. An input that makes a reader misbehave is
written to `findings/`, where `test_fuzz.py` uses it as a seed. The result is a table. With `--results FILE`, a long run
can be stopped and started again: the figures are added up in the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS, FINDINGS = ROOT / ".cache/fuzz", Path(__file__).with_name("findings")
SLICE = 300  # seconds of one process: its end frees the memory that a reader leaks
MOST_BYTES, MOST_FINDINGS = 50 << 20, 20  # limits for the inputs that are kept for a target
INPUT_BYTES, INPUT_SECONDS, MEMORY_MB = 1 << 16, 300, 4096  # wall seconds, which increase with other load


@dataclass
class Result:
    """The result of a target.

    Attributes:
        target: The name of the target.
        executions: The number of inputs that were tried.
        seconds: Processor time in seconds.
        findings: The number of kinds of wrong behaviour that are not fixed yet.
        broken: Whether the run could not be completed.
    """

    target: str
    executions: int = 0
    seconds: int = 0
    findings: int = 0
    broken: bool = False


class Results:
    """The results of all targets, of this run and of earlier runs in the file.

    Args:
        file: A JSON file with a list of results. None: the results are only in memory.
    """

    def __init__(self, file: Path | None) -> None:
        from tests.fuzz.targets import TARGETS

        self._file = file
        self._lock = threading.Lock()
        kept = json.loads(file.read_text("utf-8")) if file is not None and file.exists() else []
        self.of = {target: Result(target) for target in TARGETS}
        self.of |= {each["target"]: Result(**each) for each in kept if each["target"] in TARGETS}

    def save(self) -> None:
        """Writes the file."""
        if self._file is not None:
            with self._lock:
                self._file.write_text(self.json() + "\n", "utf-8")

    def json(self) -> str:
        """Returns all results in the order of the targets."""
        return json.dumps([asdict(result) for result in self.of.values()], indent=2)


def main() -> int:
    """Runs the targets and prints the table. The exit code is 1 if there are findings."""
    options = _options()
    if options.child:
        _fuzz(options.targets[0], options.seconds)
        return 0
    results = Results(options.results)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda target: _run(target, options.seconds, results), options.targets))
    ran = [results.of[target] for target in options.targets]
    print(_table(ran))
    return 1 if any(result.findings or result.broken for result in ran) else 0


def _options() -> argparse.Namespace:
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all ({', '.join(TARGETS)})")
    parser.add_argument("--seconds", type=int, default=180, help="of processor time for each target (default: 180)")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="so many targets at once")
    parser.add_argument("--results", type=Path, metavar="FILE", help="the results so far, as JSON; it is written again")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    options.targets = options.targets or list(TARGETS)
    return options


def _run(target: str, seconds: int, results: Results) -> None:
    """Runs a target in separate processes, one after the other, until its time is over."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(exist_ok=True)
    result = results.of[target]
    result.broken = False
    while result.seconds < seconds and _found(target) < MOST_FINDINGS:
        _shrink(corpus)
        ended = _slice(target, min(max(1, seconds - result.seconds), SLICE))
        result.executions += ended.executions
        result.seconds += ended.seconds
        result.findings = _found(target)
        if ended.executions == 0 and ended.code != 0:
            print(ended.said[-2000:], file=sys.stderr)
            result.broken = True
        results.save()
        if result.broken:
            break
    result.findings = _found(target)
    results.save()


@dataclass(frozen=True)
class _Ended:
    """The result of one process. `seconds` is processor time."""

    code: int
    said: str
    executions: int
    seconds: int


def _slice(target: str, seconds: int) -> _Ended:
    """Fuzzes a target in one process for a number of wall seconds."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--child", target, "--seconds", str(seconds)]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # the process was already waited for
        said.seek(0)
        text = said.read()
    return _Ended(process.returncode, text, _executions(text), max(1, round(used.ru_utime + used.ru_stime)))


def _found(target: str) -> int:
    return len(list(FINDINGS.glob(f"{target}-*")))


def _executions(said: str) -> int:
    """Returns the number of executions from libFuzzer's output: the final figure, or the last one before a crash."""
    units = (
        re.findall(r"Done (\d+) runs? in \d+ second", said)
        or re.findall(r"stat::number_of_executed_units:\s*(\d+)", said)
        or re.findall(r"^#(\d+)\s", said, re.MULTILINE)
    )
    return int(units[-1]) if units else 0


def _shrink(corpus: Path) -> None:
    """Limits the size of a corpus on the disk. Removes the largest inputs first."""
    files = sorted(corpus.iterdir(), key=lambda path: path.stat().st_size)
    kept = 0
    for path in files:
        kept += path.stat().st_size
        if kept > MOST_BYTES:
            path.unlink()


def _fuzz(target: str, seconds: int) -> None:
    """Fuzzes in this process. libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["etbuild", "yaml", "flatbuffers"], enable_loader_override=False):
        from tests.fuzz import targets
        from tests.fuzz.seeds import seeds

        known: set[str] = set()

        def run(data: bytes) -> None:
            try:
                targets.TARGETS[target](data)
            except Exception as error:  # every exception is a finding
                _keep(target, data, error, known)

        for data in seeds(target):
            (CORPUS / target / hashlib.sha1(data).hexdigest()).write_bytes(data)
            run(data)  # instruments the imports, whose time does not count

    limits = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES}"]
    limits += [f"-timeout={INPUT_SECONDS}", f"-report_slow_units={INPUT_SECONDS}"]
    limits += [f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={FINDINGS}/{target}-"]
    atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", str(CORPUS / target)], run)
    atheris.Fuzz()


def _keep(target: str, data: bytes, error: Exception, known: set[str]) -> None:
    """Writes the first input of each kind of finding, and continues."""
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
