"""Tries every family of decoders in transformers: what a new user gets with two commands.

    python -m benchmarks.families.run [--only NAME...] [--peers] [--list] [--results FILE] [--write docs/families.md]
    python -m benchmarks.families.run --tasks [NAME...] [--write docs/families.md]

For each family, a tiny model with random weights is saved to a folder, `etbuild init --huggingface FOLDER` writes its
manifest, and `etbuild build` builds it. ExecuTorch's `TextLLMRunner` then continues a prompt of several calls, and the
text has to be that of transformers, which computes it without a cache. A second program has its weights in 4 bits: its
scores are compared with those of transformers in float32. Each of these steps runs in a process of its own with a time
limit.

With `--peers`, transformers' exporter and optimum-executorch are tried on the same folders too. Rows that the file has
get their columns.

With `--tasks`, families for other tasks are tried (`tasks.py`), which are the second table of the page.

Each row is also a line of the file of results. A run takes the rows that the file has, so that one that was interrupted
continues; families that `--only` names are tried again. The page has those that were tried.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from benchmarks import optimum_environment  # noqa: E402
from benchmarks.families import families, peers  # noqa: E402
from tests.helpers.language_models import tokenizer  # noqa: E402
from tests.helpers.worker_client import Worker  # noqa: E402

Row = dict[str, Any]
RESULTS = ROOT / "benchmarks/results/families.jsonl"
_COLUMNS = {
    "family": "family",
    "task": "task",
    "cache": "`cache.kind`",
    "equal": "equal tokens",
    "size": "size",
    "memory": "planned memory",
    "size_4_bits": "4 bits: size",
    "divergence": "divergence",
    "by_transformers": "transformers' exporter",
    "by_optimum": "optimum-executorch",
    "note": "note",
}
_MEASURED = ("size", "memory", "size_4_bits", "divergence")
_NO_MODEL = "no tiny model"  # the sizes here do not fit each other, which says nothing about the driver
_NOT_EXPORTED, _NOT_RUN = "does not export", "does not run"
_PEERS = ("by_transformers", "by_optimum")
_QUANTIZE = {"torchao": [{"config": "8da4w", "group_size": 32}]}
_NEAR = 1e-4  # of the largest score: the roundings of another order of additions
_SHOWN = 160  # characters of an error
_TEXT_GENERATION = "text-generation"


class NotMade(Exception):
    """A step has failed. The message is for the table."""


def in_fork(work: Callable[..., Any], seconds: float, *arguments: Any) -> Any:
    """Calls a function in a fork of this process, and returns its result, which JSON can hold."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise NotMade(f"no result in {seconds:.0f} s")
        result, error = ours.recv()
    except EOFError:
        process.join()
        raise NotMade(f"the process ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if error is not None:
        raise NotMade(error)
    return result


def _send(pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # the runner prints what it does
    os.dup2(quiet, 2)
    try:
        pipe.send((work(*arguments), None))
    except Exception as error:  # noqa: BLE001 - every error is a row
        pipe.send((None, f"{type(error).__name__}: {error}"))


def say(program: str, words: str, count: int) -> str:
    """What ExecuTorch's runner generates after the prompt."""
    from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

    text: list[str] = []
    how = GenerationConfig(echo=False, max_new_tokens=count, temperature=0.0)
    TextLLMRunner(program, words).generate(families.PROMPT, how, text.append)
    return "".join(text)


def divergence(program: str, folder: str, cls: str, tokens: list[int]) -> float:
    """The mean divergence of a program's scores from those of transformers in float32, in nats.

    Args:
        program: The path of the program.
        folder: The folder with the model.
        cls: The model's class.
        tokens: A text. Each of its tokens after the first is a call.
    """
    import torch
    import transformers

    from etkit.running.generation.decoder import Decoder
    from etkit.running.testing.text_scores import divergences
    from etplugins.runtime import program_files

    model = getattr(transformers, cls).from_pretrained(folder, dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        expected = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        decoder = Decoder(program_files.read(Path(program)), Path(scratch))
        scores = [decoder.scores(tokens[:count]) for count in range(1, len(tokens) + 1)]
    return float(divergences(torch.stack(scores), expected).mean())


def sizes(program: Path) -> tuple[int, int]:
    """The bytes of a program with its named data, and the bytes of memory that its methods plan."""
    report = json.loads(program.with_name(f"{program.stem}.report.json").read_text("utf-8"))
    data = sum(each.stat().st_size for each in program.parent.glob("*.ptd"))
    return program.stat().st_size + data, sum(sum(each["memory"]) for each in report["methods"].values())


class Builder:
    """Runs the driver's commands."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self.directory, self.seconds = directory, seconds
        self.worker: Worker | None = None

    def init(self, folder: Path, out: Path) -> Path:
        """The manifest that `init` writes for a folder."""
        self._run("init", "--huggingface", folder, "-o", out)
        return next(out.glob("*.yaml"))

    def build(self, manifest: Path, out: Path) -> Path:
        """The program of a manifest."""
        self._run("build", manifest, "-o", out, "--no-cache")
        return next(out.glob("*.pte"))

    def _run(self, verb: str, *arguments: object) -> None:
        """Runs a command in a process that has imported what all commands import."""
        if self.worker is None or self.worker.process.poll() is not None:
            self.worker = Worker(self.directory)
        self.worker.send(verb, *arguments)
        try:
            answer = self.worker.receive(self.seconds)
        except AssertionError as error:
            raise NotMade(f"{verb}: {error}") from None
        if answer.exit_code:
            raise NotMade(f"{verb}: {error_in(answer.output)}")

    def build_in_4_bits(self, manifest: Path, out: Path) -> Path:
        """The program of a manifest with weights in 4 bits."""
        data = yaml.safe_load(manifest.read_text("utf-8"))
        changed = manifest.with_name("small.yaml")
        changed.write_text(
            json.dumps({**data, "defaults": {**data.get("defaults", {}), "quantize": _QUANTIZE}}), "utf-8"
        )
        return self.build(changed, out)

    def end(self) -> None:
        """Ends the worker."""
        if self.worker is not None:
            self.worker.end()


def error_in(output: str) -> str:
    """The message of an error of the driver, in one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if "error: " in line), len(lines) - 1)
    shown = [re.sub(r"^error: (\S+:\d+:\d+: )?", "", lines[first])]
    shown += [line for line in lines[first + 1 : first + 2] if line.startswith("at ")]
    return " ".join(shown)


def written(family: str, cls: str, folder: Path, seconds: float) -> Any:
    """The tokens of transformers for a tiny model of a family, whose folder is written."""
    try:
        return in_fork(families.write, seconds, family, cls, folder)
    except NotMade as error:
        raise NotMade(f"{_NO_MODEL}: {error}") from None


def ran(program: Path, words: Path, seconds: float) -> str:
    """What ExecuTorch's runner says, in a process of its own."""
    try:
        return str(in_fork(say, seconds, str(program), str(words), families.TOKENS))
    except NotMade as error:
        raise NotMade(f"run: {error}") from None


def attempt(family: str, cls: str, builder: Builder, seconds: float, scratch: Path) -> Row:
    """The row of one family."""
    row: Row = {"family": family, "task": _TEXT_GENERATION, "class": cls, "cache": "", "equal": "", "works": False}
    row |= dict.fromkeys(_MEASURED, "")
    folder = scratch / family.replace("-", "_")
    folder.mkdir()
    try:
        expected = written(family, cls, folder, seconds)
        manifest = builder.init(folder, scratch)
        cache = yaml.safe_load(manifest.read_text("utf-8"))["model"]["huggingface"].get("cache")
        row["cache"] = "none" if cache is None else cache.get("kind", "static")
        program = builder.build(manifest, scratch / "out")
        words = program.with_suffix(".tokenizer") / "tokenizer.json"
        said = ran(program, words, seconds)
        size, memory = sizes(program)
        row |= {"size": f"{size / 1e3:.0f} kB", "memory": f"{memory / 1e3:.0f} kB"}
    except (NotMade, subprocess.TimeoutExpired) as error:
        return {**row, "note": shortened(str(error), scratch)}
    tokens: list[int] = expected["tokens"]
    equal = families.common(tokenizer().encode(said).ids, tokens)
    note = "" if expected["different"] > 1 else "transformers repeats one token"
    if equal < len(tokens):
        near = expected["margins"][equal] < _NEAR
        note = "then two scores are equal but for roundings" if near else "other text"
    try:
        small = builder.build_in_4_bits(manifest, scratch / "small")
        row["size_4_bits"] = f"{sizes(small)[0] / 1e3:.0f} kB"
        text = tokenizer().encode(families.PROMPT).ids + tokens
        row["divergence"] = f"{in_fork(divergence, seconds, str(small), str(folder), cls, text):.2g}"
    except NotMade as error:
        note = "; ".join([*filter(None, [note]), f"4 bits: {shortened(str(error), scratch)}"])
    return {
        **row,
        "equal": equal_tokens(tokenizer().encode(said).ids, tokens),
        "works": equal == len(tokens),
        "note": note,
    }


def with_peers(row: Row, seconds: float, scratch: Path) -> Row:
    """The row with the number of equal tokens that other exporters' programs say, or that they do not export or run.
    `reasons` of the row has the errors."""
    folder = scratch / f"{row['family'].replace('-', '_')}_peers"
    folder.mkdir()
    try:
        expected = written(row["family"], row["class"], folder, seconds)["tokens"]
    except NotMade:
        return {**row, **dict.fromkeys(_PEERS, "")}
    reasons: list[str] = []
    found = {
        "by_transformers": _by_transformers(row["class"], folder, expected, seconds, reasons),
        "by_optimum": _by_optimum(folder, expected, seconds, reasons),
    }
    return {**row, **found, "reasons": [shortened(reason, scratch) for reason in reasons]}


def _by_transformers(cls: str, folder: Path, expected: list[int], seconds: float, reasons: list[str]) -> str:
    ids, programs = tokenizer().encode(families.PROMPT).ids, str(folder / "transformers")
    stage = _NOT_EXPORTED
    try:
        in_fork(peers.export_with_transformers, seconds, str(folder), cls, ids, programs)
        stage = _NOT_RUN
        said = in_fork(peers.said_by_transformers, seconds, str(folder), cls, programs, ids, families.TOKENS)
    except NotMade as error:
        reasons.append(f"transformers' exporter: {error}")
        return stage
    return equal_tokens(said, expected)


def _by_optimum(folder: Path, expected: list[int], seconds: float, reasons: list[str]) -> str:
    """With ExecuTorch's own attention and cache, or without them if that fails."""
    stages = []
    for options in (optimum_environment.CUSTOM, ()):
        stages.append(_NOT_EXPORTED)
        try:
            program = peers.optimum_program(folder, options, folder / f"optimum{len(options)}", seconds)
            stages[-1] = _NOT_RUN
            said = in_fork(say, seconds, str(program), str(folder / "tokenizer.json"), families.TOKENS)
            return equal_tokens(tokenizer().encode(said).ids, expected)
        except (NotMade, RuntimeError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{' '.join(['optimum-executorch', *options])}: {error}")
    return _NOT_RUN if _NOT_RUN in stages else _NOT_EXPORTED


def equal_tokens(said: list[int], expected: list[int]) -> str:
    """How many tokens at the start of a text are equal to the expected ones."""
    return f"{families.common(said, expected)} of {len(expected)}"


def shortened(text: str, scratch: Path) -> str:
    """A message without the scratch directory, in one line of a table."""
    line = " ".join(text.replace(str(scratch), ".").replace("|", "/").split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| " + " | ".join(_COLUMNS.values()) + " |", "|---" * len(_COLUMNS) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(str(row.get(key, "")) for key in _COLUMNS) + " |" for row in rows)])


def summary(rows: list[Row]) -> str:
    """How many families work."""
    made = [row for row in rows if not row["note"].startswith(_NO_MODEL)]
    lines = [f"{sum(row['works'] for row in made)} of {len(made)} families give the tokens that transformers gives."]
    if without := len(rows) - len(made):
        lines.append(f"Of {without} more, no tiny model could be made.")
    for key, name in (("by_transformers", "transformers' exporter"), ("by_optimum", "optimum-executorch")):
        found = [row[key] == f"{families.TOKENS} of {families.TOKENS}" for row in made if row.get(key)]
        if found:
            lines.append(f"{name[0].upper()}{name[1:]}: {sum(found)} of {len(found)}.")
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    """The page with all rows."""
    from benchmarks.families import tasks  # it uses the steps of this module

    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("executorch", "torch", "transformers")
    )
    command = "python -m benchmarks.families.run --write docs/families.md"
    return f"""# Families of models

`{command}` writes this page, with {versions}.

Each family is tried with the commands of a new user: `etbuild init --huggingface` on a tiny model with random weights,
`etbuild build`, and ExecuTorch's `TextLLMRunner`. The runner continues a prompt by {families.TOKENS} tokens, which are
more than the sliding windows of the tiny models hold.

| column | what it says |
|---|---|
| `cache.kind` | what `init` wrote |
| equal tokens | the tokens before the first that differs from those of transformers without a cache |
| size, planned memory | of the program with its data, and of its methods |
| 4 bits: size | of the same program with `8da4w` in groups of 32 |
| divergence | of the scores of that program from those of transformers in float32: the mean, in nats |
| transformers' exporter, optimum-executorch | equal tokens of their programs of the same folder, if tried |

If a family does not work, the note has the error of `init`, of the build or of the runner. The programs of
transformers' exporter, one for the whole prompt and one for a single token, run in its `generate`. Those of
optimum-executorch {optimum_environment.version()} run in `TextLLMRunner`: with ExecuTorch's own attention and cache, or
without them if that fails. The errors are in `benchmarks/results/families.jsonl`, under `reasons`.

{summary(rows)}
The others of transformers' {len(families.decoders())} have not been tried yet.

<!-- age of families: python -m benchmarks.run --only families --write -->
<!-- end of age of families -->

{table(rows)}
{tasks.section(list(tasks.rows().values()))}"""


def main() -> None:
    """The command line."""
    from benchmarks.families import tasks  # it uses the steps of this module

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = families.decoders()
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help="try these families, again if need be")
    parser.add_argument("--peers", action="store_true", help="try other exporters too")
    parser.add_argument("--tasks", nargs="*", choices=tasks.NAMES, metavar="NAME", help="try families of other tasks")
    parser.add_argument("--list", action="store_true", help="print the names of the families")
    parser.add_argument("--results", type=Path, metavar="FILE", help="the file of results of what is tried")
    parser.add_argument("--seconds", type=float, default=300.0, help="the time limit of one step")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there")
    options = parser.parse_args()
    if options.list:
        print("\n".join([*known, *tasks.NAMES]))
        return
    results = options.results if options.results and options.tasks is None else RESULTS
    rows = read(results)
    lacking = _PEERS[0] if options.peers else "family"
    builder = Builder(Path(tempfile.gettempdir()), options.seconds)
    try:
        if options.tasks is not None:
            tasks.measure(options.tasks, options.seconds, options.results or tasks.RESULTS)
        missing = [name for name in known if lacking not in rows.get(name, {})] if options.tasks is None else []
        for family in options.only or missing:
            row = rows.get(family, {})
            if not (row and options.peers):
                row |= in_own_directory(attempt, family, known[family], builder, options.seconds)
            rows[family] = in_own_directory(with_peers, row, options.seconds) if options.peers else row
            add(results, rows[family])
            print("  ".join(str(rows[family].get(key, "")) for key in _COLUMNS), flush=True)
    finally:
        builder.end()
    listed = [rows[name] for name in known if name in rows and name in (options.only or rows)]
    print(f"\n{table(listed)}\n\n{summary(listed)}")
    if options.write:
        options.write.write_text(page([rows[name] for name in known if name in rows]), "utf-8")


def in_own_directory(work: Callable[..., Row], *arguments: Any) -> Row:
    """The row that a function makes in a directory, which is then removed."""
    with tempfile.TemporaryDirectory(prefix="families-") as scratch:
        return work(*arguments, scratch=Path(scratch))


def read(results: Path) -> dict[str, Row]:
    """The last row of each family in a file of results."""
    lines = results.read_text("utf-8").splitlines() if results.is_file() else []
    return {row["family"]: row for row in map(json.loads, lines)}


def add(results: Path, row: Row) -> None:
    """Adds a row to the file of results."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    import executorch.kernels.quantized  # noqa: F401 - the kernels of programs, for all forks
    import torch
    import transformers
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    torch.set_num_threads(1)  # the models are tiny
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    main()
