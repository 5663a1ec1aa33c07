#!/usr/bin/env python3
"""Measures which faults the comparison of a build finds: it plants faults by machine, and counts.

    python benchmarks/comparison/mutations.py [--models NAME...] [--kinds KIND...] [--count N] [--seed S]
        [--resume FILE] [--write benchmarks/results]

Each model is exported once. Each mutant is a copy of the process that lowers it: it plants one fault into the method in
the edge dialect (faults.py) or into what was emitted (emitted_faults.py), and goes on: it partitions, emits and writes
the program, and compares it as a build does. Nothing tells the comparison what was planted. The program without a fault
is compared too: if that fails, it is a false alarm.

A mutant counts if an output changes by more than the tolerance: oracle.py calls it with many inputs, beside the clean
program. One that the comparison finds counts too. `--resume` keeps what was measured, model by model.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import logging
import os
import pickle
import platform
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etkit.local.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks/zoo")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

_SECONDS = 240  # of one mutant; the program without a fault may take three times as long
_OF_EMITTED = 6  # one of so many faults is planted into what was emitted
_FOUND, _MISSED, _SAME, _REFUSED = "found", "missed", "the same", "refused"
_FALSE_ALARM = "false alarm"


@dataclass(frozen=True)
class Mutant:
    """What became of a fault.

    Attributes:
        model: The model.
        kind: The kind of the fault.
        what: The fault, for people.
        outcome: `found`; `missed`; `the same`: no output changes; `refused`: it cannot be lowered.
        shown_by: The call of the oracle that shows it, or the first words of the error.
        seconds: The wall time of the mutant.
    """

    model: str
    kind: str
    what: str
    outcome: str
    shown_by: str
    seconds: float


@dataclass(frozen=True)
class Scored:
    """What was measured of one model.

    Attributes:
        model: Its name.
        control: Of the program without a fault: `right`; `false alarm` and what the comparison says; or `left out`
            and why there is no such program.
        seconds: The wall time of exporting, of the control, and of all its mutants.
        calls: How many calls the oracle made of each mutant.
        mutants: Its mutants.
    """

    model: str
    control: str
    seconds: float
    calls: int
    mutants: list[Mutant]


@dataclass(frozen=True)
class Wanted:
    """Which faults to plant.

    Attributes:
        count: How many per model.
        kinds: Of which kinds; all if it is empty.
        seed: Where random numbers come from.
        code: A digest of the driver and of what plants faults.
    """

    count: int
    kinds: Sequence[str]
    seed: int
    code: str


def models() -> dict[str, Callable[[Path], Path]]:
    """The models by name: functions that return a manifest, and may write it to a directory."""
    from zoo import MODELS, write

    from benchmarks.comparison import small

    examples = (
        "mlp/model", "vision/model", "encoder_decoder/model", "tiny_lm/model", "shared_weights/classifier",
        "shared_weights/embedder", "quantized/int8", "quantized/int4", "huggingface/bert", "huggingface/llama",
    )  # fmt: skip
    found: dict[str, Callable[[Path], Path]] = {
        f"small: {name}": lambda directory, name=name: small.write(name, directory)  # type: ignore[misc]
        for name in small.MODELS
    }
    for name in examples:
        found[f"examples: {name}"] = lambda directory, name=name: ROOT / f"examples/{name}.yaml"  # type: ignore[misc]
    for path in sorted((ROOT / "examples/gallery").glob("*.yaml")):
        found[f"gallery: {path.stem}"] = lambda directory, path=path: path  # type: ignore[misc]
    for name in MODELS:
        if name in ("qwen 3, any length", "gpt-2", "clip", "mobilenet v2, int8"):
            found[f"zoo: {name}"] = lambda directory, name=name: write(name, directory / "zoo")  # type: ignore[misc]
    return found


class _Over(Exception):
    """All faults are planted, and the process that planted them need not lower the method."""


class Trial:
    """One model: its export, and the lowerings of its mutants.

    Args:
        name: Its name.
        manifest: Its manifest.
        wanted: Which faults to plant.
        scratch: An empty directory.
    """

    def __init__(self, name: str, manifest: Path, wanted: Wanted, scratch: Path) -> None:
        from etbuild.inputs.step_context import silent
        from etbuild.key.declared import Inputs
        from etbuild.manifest import validate
        from etbuild.plan.plan import from_manifest
        from etbuild.steps.lowering_options import LoweringOptions
        from etkit.local.pipeline import Pipeline, Request

        self.name, self.wanted, self.scratch = name, wanted, scratch
        self.plan = from_manifest(validate.load(manifest, None, None, {}).data)
        request = Request.read(self.plan, Inputs.named({}, {}, [manifest.parent]))
        self.pipeline = Pipeline(request, scratch, silent, LoweringOptions(jobs=1), None)
        _step("export", self.pipeline)
        self.mutants: list[Mutant] = []
        self._own: Path | None = None  # the directory of this process, if it is a copy
        self._seconds = 0.0  # of the last copy

    def run(self) -> Scored:
        """Lowers the model without a fault, and then with each."""
        try:
            return self._run()
        except BaseException:  # a copy must not go on as if it were the original, whatever happens
            if self._own is None:
                raise
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _run(self) -> Scored:
        from etbuild.lower import passes
        from etbuild.patching import replaced

        began = time.monotonic()
        self._programs, self._shards = self._methods()
        control = self._fork("control")
        if control is None:
            self._finish(self._control)
        assert control is not None
        said = control.get("control", "left out: its process has failed")
        self.mutants += control.get("mutants", [])
        if said == "right":
            self._known = pickle.loads((self.scratch / "known.pickle").read_bytes())
            self._left = len(self._programs)
            self._count = self.wanted.count - len(self.mutants)
            with replaced(passes, "edge", self._passes):
                self._finish(self._judged)
        return Scored(self.name, said, time.monotonic() - began, control.get("calls", 0), self.mutants)

    def _methods(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The exported methods with their weights, and the shards of these."""
        from etbuild.lower import shards
        from etbuild.steps.saved_export import load_custom_ops, load_methods, open_content, opened_export

        job = self.pipeline.job(self.plan.lower_plan)
        with opened_export(job) as (saved, context):
            load_custom_ops(job.plan, context)
            programs = load_methods(saved, open_content(job, saved).loaded(), self.plan.methods)
            return programs, shards.of_tensors(job.plan, saved.tensors)

    def _finish(self, look: Callable[[Any], dict[str, Any]]) -> None:
        """Lowers and emits the methods, writes down what `look` makes of them, and ends this copy of the process."""
        from etbuild import switches
        from etbuild.emit.emit_methods import Lowered, emit_methods
        from etbuild.errors import EtbuildError
        from etbuild.lower.finite_weights import non_finite
        from etbuild.lower.lower_methods import lower_programs

        weights = non_finite(self._programs)
        try:
            with switches.lowering():
                edge = lower_programs(self.plan.lower_plan, self._programs, self._shards)
                emitted = emit_methods(self.plan.lower_plan, Lowered(edge, self._shards, weights, None))
        except EtbuildError as error:
            if self._own is None:  # all faults are planted
                return
            self._end(
                {"outcome": _REFUSED, "shown_by": _first_words(error), "control": f"left out: {_first_words(error)}"}
            )
        self._end(look(emitted))

    def _passes(self, plan: Any, programs: Mapping[str, Any], recipe: Any) -> dict[str, list[Any]]:
        """The passes of the edge dialect: each plants the faults of its method."""
        from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult

        del plan, recipe
        trial = self

        class Plant(ExportedProgramPassBase):
            def __init__(self, method: str) -> None:
                self._method = method

            def call(self, exported_program: Any) -> Any:
                return ExportedProgramPassResult(exported_program, trial._plant(self._method, exported_program))

        return {name: [Plant(name)] for name in programs}

    def _plant(self, name: str, program: Any) -> bool:
        """Makes a copy of this process for each fault of a method. Returns whether this is one."""
        from benchmarks.comparison.faults import KINDS
        from benchmarks.comparison.method import Method

        if self._own is not None:
            return False
        rng = random.Random(f"{self.wanted.seed} {self.name} {name}")
        method = Method(program, rng)
        found = {title: list(find(method)) for title, find in KINDS.items() if title in self.wanted.kinds}
        share = -(-self._count // len(self._programs))
        for title, fault in _chosen(found, share, rng):
            result = self._fork("mutant")
            if result is None:
                fault.plant()
                method.finish()
                return True
            self._note(title, f"`{name}`: {fault.what}", result)
        self._left -= 1
        if not self._left:
            raise _Over
        return False

    def _note(self, kind: str, what: str, result: Mapping[str, Any]) -> None:
        outcome = result.get("outcome", _REFUSED)
        why = result.get("shown_by", "its process has failed: the fault could not be planted")
        self.mutants.append(Mutant(self.name, kind, what, outcome, why, self._seconds))

    def _control(self, emitted: Any) -> dict[str, Any]:
        """What the comparison says of the program without a fault; and what the oracle learns from it."""
        from benchmarks.comparison.emitted_faults import EMITTED_KINDS
        from benchmarks.comparison.oracle import Oracle
        from etbuild.export import example_values
        from etbuild.export.layout import EXAMPLES
        from etplugins.comparison.parts import ComparePlan

        built = self._written(copy.deepcopy(emitted))  # merging changes it
        wrong = self._compared(built)
        if wrong is not None:
            return {"control": f"{_FALSE_ALARM}: {wrong}"}
        programs, _ = self._methods()
        path = self.pipeline.export.directory / EXAMPLES
        examples = {name: example_values.saved_inputs(path, name, program) or [] for name, program in programs.items()}
        ranges = {name: each.ranges for name, each in ComparePlan.of(self.plan).comparisons.items()}
        oracle = Oracle(programs, examples, ranges, self.wanted.seed)
        calls = oracle.learn(self._files(built), self._directory)
        self._known = oracle.judge
        unlike = self._known.difference(self._files(built), self._directory)
        if unlike is not None:
            return {"control": f"left out: the program differs from itself: {unlike}"}
        (self.scratch / "known.pickle").write_bytes(pickle.dumps(self._known))
        rng = random.Random(f"{self.wanted.seed} {self.name}")
        found = {title: list(find(emitted, rng)) for title, find in EMITTED_KINDS.items() if title in self.wanted.kinds}
        for title, fault in _chosen(found, -(-self.wanted.count // _OF_EMITTED), rng):
            result = self._fork("mutant")
            if result is None:
                fault.plant()
                self._end(self._judged(emitted))
            else:
                self._note(title, fault.what, result)
        return {"control": "right", "calls": calls, "mutants": self.mutants}

    def _judged(self, emitted: Any) -> dict[str, Any]:
        """Whether the comparison finds a mutant, and whether an output changes."""
        built = self._written(emitted)
        wrong = self._compared(built)
        if wrong is not None:
            return {"outcome": _FOUND, "shown_by": wrong}
        shown = self._known.difference(self._files(built), self._directory)
        return {"outcome": _SAME if shown is None else _MISSED, "shown_by": shown or ""}

    def _written(self, emitted: Any) -> Pipeline:
        """Writes the program of emitted methods. Returns a pipeline of it, beside the export of all mutants."""
        from etbuild.inputs.step_context import StepContext, silent
        from etbuild.steps.lower import write_program
        from etbuild.steps.lowering_options import LoweringOptions
        from etkit.local.pipeline import Pipeline

        plan, directory = self.plan.lower_plan, self._directory / "build"
        (directory / "program").mkdir(parents=True)
        (directory / "export").symlink_to(self.pipeline.export.directory)
        context = StepContext(self.pipeline.job(plan).inputs)
        write_program(plan, [emitted], self._shards, context, directory / "program", {})
        return Pipeline(self.pipeline.request, directory, silent, LoweringOptions(jobs=1), None)

    def _compared(self, built: Pipeline) -> str | None:
        """The first words of what the comparison of a build says; None if it finds nothing."""
        from etbuild.errors import EtbuildError
        from etbuild.patching import replaced
        from etplugins.comparison.locate import Search

        try:
            with replaced(Search, "run", lambda *search: "not searched"):  # it takes long, and finds no other faults
                _step("compare", built)
        except EtbuildError as error:
            return _first_words(error)
        return None

    @staticmethod
    def _files(built: Pipeline) -> Any:
        """The files that the runtime loads."""
        from etplugins.comparison.step import Built

        return Built.below(built.program, built.lowering).files

    @property
    def _directory(self) -> Path:
        assert self._own is not None
        return self._own

    def _end(self, made: Mapping[str, Any]) -> None:
        (self._directory / "result.pickle").write_bytes(pickle.dumps(made))
        os._exit(0)

    def _fork(self, name: str) -> dict[str, Any] | None:
        """Makes a copy of this process. Returns None in it; here, what it wrote down, or nothing if it failed."""
        directory = (self._own or self.scratch) / name
        directory.mkdir()
        began = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            self._own = directory
            os.setpgid(0, 0)
            log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            return None
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
            if time.monotonic() > began + (3 * _SECONDS if name == "control" else _SECONDS):
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
        self._seconds = time.monotonic() - began
        result = directory / "result.pickle"
        found = pickle.loads(result.read_bytes()) if result.exists() else {}
        if not found and "KEEP_LOGS" in os.environ:
            sys.stderr.write((directory / "log").read_text("utf-8", "replace")[-3000:])
        shutil.rmtree(directory)
        return found


def _step(name: str, pipeline: Pipeline) -> None:
    """Runs one step of a build."""
    from etkit.local.pipeline import STEPS

    step = next(step for step in STEPS if step.name == name)
    (pipeline.directory / step.writes).mkdir()
    step.run(pipeline)


def _first_words(error: Exception) -> str:
    problems = getattr(error, "problems", None)
    return (problems[0].message if problems else str(error)).partition("\n")[0]


def _chosen(found: Mapping[str, list[Any]], count: int, rng: random.Random) -> list[tuple[str, Any]]:
    """Faults of as many kinds as possible, and one after the other of each."""
    left = {title: rng.sample(faults, len(faults)) for title, faults in found.items() if faults}
    chosen: list[tuple[str, Any]] = []
    while left and len(chosen) < count:
        for title in rng.sample(sorted(left), len(left)):
            chosen.append((title, left[title].pop()))
            if not left[title]:
                del left[title]
    return chosen[:count]


def measure(name: str, make: Callable[[Path], Path], wanted: Wanted) -> Scored:
    """Scores one model in a process of its own, so that nothing of it stays."""
    from etbuild.files.scratch import temporary

    with temporary("mutants") as own:  # the guard of reads knows it: a step may write there
        directory = own.path
        result, scratch = directory / "scored", directory / "trial"
        scratch.mkdir()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                scored = Trial(name, make(directory), wanted, scratch).run()
                result.write_bytes(pickle.dumps(scored))
            except BaseException as error:  # noqa: BLE001 - one model must not end the others
                print(f"{name}: {error}", file=sys.stderr)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        os.waitpid(child, 0)
        if not result.exists():
            return Scored(name, "left out: it could not be exported", 0.0, 0, [])
        found: Scored = pickle.loads(result.read_bytes())
        return found


def prepare() -> None:
    """Imports all that the models share, before processes are forked."""
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.ERROR)  # PyTorch logs what cannot be computed, and arguments are tried
    from benchmarks.comparison import faults, oracle  # noqa: F401
    from etbuild.steps import export, lower  # noqa: F401
    from etbuild.steps.executorch_imports import imports_of_executorch
    from etbuild.steps.lowering_options import LoweringOptions

    for part in imports_of_executorch(LoweringOptions()):
        part()
    import executorch.backends.xnnpack.partition.xnnpack_partitioner  # noqa: F401
    import transformers  # noqa: F401


def score(scored: Sequence[Scored]) -> dict[str, Any]:
    """The figures of all models: whole, and for each kind."""
    mutants = [mutant for model in scored for mutant in model.mutants]

    def counts(of: Sequence[Mutant]) -> dict[str, Any]:
        number = {
            outcome: sum(each.outcome == outcome for each in of) for outcome in (_FOUND, _MISSED, _SAME, _REFUSED)
        }
        changed = number[_FOUND] + number[_MISSED]
        return {**number, "share": number[_FOUND] / changed if changed else None}

    kinds = sorted({mutant.kind for mutant in mutants})
    return {
        "planted": len(mutants),
        **counts(mutants),
        "models": len(scored),
        "false alarms": {model.model: model.control for model in scored if model.control.startswith(_FALSE_ALARM)},
        "left out": {model.model: model.control for model in scored if model.control.startswith("left out")},
        "seconds": sum(model.seconds for model in scored),
        "kinds": {title: counts([mutant for mutant in mutants if mutant.kind == title]) for title in kinds},
    }


def table(figures: Mapping[str, Any]) -> str:
    """The figures as a table of a page."""
    lines = ["| kind of fault | found | missed | no output changes |", "|---|---|---|---|"]
    rows = sorted(figures["kinds"].items(), key=lambda row: row[1]["share"] if row[1]["share"] is not None else 2.0)
    lines += [f"| {title} | {row[_FOUND]} | {row[_MISSED]} | {row[_SAME]} |" for title, row in rows]
    lines.append(f"| **all {len(rows)} kinds** | {figures[_FOUND]} | {figures[_MISSED]} | {figures[_SAME]} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="parts of the names of models")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="parts of the names of kinds")
    parser.add_argument("--count", type=int, default=400, help="how many faults, over all models")
    parser.add_argument("--seed", type=int, default=0, help="chooses which")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what was measured there, and go on from it")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write mutations.json there")
    options = parser.parse_args()
    prepare()
    from benchmarks.comparison.emitted_faults import EMITTED_KINDS
    from benchmarks.comparison.faults import KINDS

    chosen = {
        name: make
        for name, make in models().items()
        if not options.models or any(part in name for part in options.models)
    }
    kinds = [
        title for title in [*KINDS, *EMITTED_KINDS] if not options.kinds or any(part in title for part in options.kinds)
    ]
    wanted = Wanted(-(-options.count // max(len(chosen), 1)), kinds, options.seed, _code())
    scored = []
    for name, make in chosen.items():
        model = _kept(options.resume, name, wanted) or measure(name, make, wanted)
        scored.append(model)
        if options.resume:
            _keep(options.resume, wanted, model)
        figures = score([model])
        print(
            f"{name}: {model.control}; {figures[_FOUND]} found, {figures[_MISSED]} missed, {figures[_SAME]} the same, "
            f"{figures[_REFUSED]} refused; {model.seconds:.0f} s",
            flush=True,
        )
    print_figures(scored)
    if options.write:
        machine = {"machine": platform.machine(), "python": platform.python_version()}
        missed = [asdict(mutant) for mutant in missed_of(scored)]
        results = {"machine": machine, "seed": options.seed, **score(scored), "missed faults": missed}
        (options.write / "mutations.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")


def missed_of(scored: Sequence[Scored]) -> list[Mutant]:
    """The mutants that the comparison misses."""
    return [mutant for model in scored for mutant in model.mutants if mutant.outcome == _MISSED]


def print_figures(scored: Sequence[Scored]) -> None:
    """Prints the figures for people."""
    figures = score(scored)
    print(f"\n{table(figures)}\n")
    for mutant in missed_of(scored):
        print(f"missed: {mutant.model}: {mutant.kind}: {mutant.what}\n    shown by {mutant.shown_by}")
    for name, why in {**figures["false alarms"], **figures["left out"]}.items():
        print(f"{name}: {why}")
    share = "none" if figures["share"] is None else f"{figures['share']:.1%}"
    print(
        f"found: {share} of {figures[_FOUND] + figures[_MISSED]} that change an output, {figures['planted']} planted; "
        f"false alarms: {len(figures['false alarms'])} of {len(scored)} models; {figures['seconds']:.0f} s"
    )


def _code() -> str:
    """A digest of the code that the figures depend on."""
    found = hashlib.sha256()
    for directory in (ROOT / "toolchain/etbuild", ROOT / "benchmarks/comparison"):
        for path in sorted(directory.rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


def _kept(path: Path | None, name: str, wanted: Wanted) -> Scored | None:
    """What was measured of a model with the same wishes."""
    if path is None or not path.exists():
        return None
    for line in path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["model"]["model"] == name and entry["wanted"] == json.loads(json.dumps(asdict(wanted))):
            return Scored(**{**entry["model"], "mutants": [Mutant(**each) for each in entry["model"]["mutants"]]})
    return None


def _keep(path: Path, wanted: Wanted, model: Scored) -> None:
    if _kept(path, model.model, wanted) is None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"wanted": asdict(wanted), "model": asdict(model)}) + "\n")


if __name__ == "__main__":
    main()
