"""Runs a workload in a process of its own, and measures it."""

from __future__ import annotations

import gc
import platform
import random
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import BuildError, InputError
from etbuild.exception_text import summary
from etbuild.inputs.step_context import Stage, silent
from etbuild.surroundings.memory import give_back
from etkit.running.benchmarking.workloads import Workload
from etplugins.runtime import child
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session, check_inputs, laid_out, register_kernels, unavailable

_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"  # written to /proc/self/clear_refs: see proc(5)


@dataclass(frozen=True)
class Timing:
    """How often and how long is measured.

    Attributes:
        runs: The number of processes of each workload and program.
        seconds: The least time that all runs of a workload and program measure together.
        calls: The number of passes in each run; replaces `seconds`.
        warm_up: The number of passes before the measured ones, in each run.
        threads: The number of threads of the runtime; None for the runtime's own choice.
        seed: Decides which of two programs runs first.
        stage: Is called for each workload, to show progress.
    """

    runs: int
    seconds: float
    calls: int | None
    warm_up: int
    threads: int | None
    seed: int
    stage: Stage = field(default=silent)


@dataclass(frozen=True)
class Run:
    """What one process measured.

    Attributes:
        seconds: The times of the calls, by phase.
        load_program: The seconds to load the program.
        load_methods: The seconds to load the methods.
        peak: By how many bytes the largest memory exceeds that before the program was loaded; None if unknown.
        kept: By how many bytes the memory that is no part of a file has grown at the end; None if unknown.
        threads: The number of threads of the runtime.
    """

    seconds: Mapping[str, Sequence[float]]
    load_program: float
    load_methods: float
    peak: int | None
    kept: int | None
    threads: int


def measure(programs: Sequence[ProgramFiles], workload: Workload, timing: Timing) -> list[list[Run]]:
    """Runs a workload with each program, each time in a new process. Two programs run in turns, in random order.

    Returns:
        The runs of each program.

    Raises:
        InputError: The runtime here lacks a backend that a program calls, or the inputs do not fit.
        BuildError: The runtime refuses a program or a call, or it crashed.
    """
    torch.set_num_threads(1)  # the forked processes of the runs would not have the threads of a pool
    for files in programs:
        register_kernels(files)  # once, before the runs
        for call in workload.calls:
            check_inputs(files, call.method, call.inputs)
    order = random.Random(timing.seed)
    found: list[list[Run]] = [[] for _ in programs]
    with timing.stage(f"measure {workload.name}"):
        for _ in range(timing.runs):
            turns = list(enumerate(programs))
            order.shuffle(turns)
            for number, files in turns:
                what = f"running {workload.name} of {files.program.name}"
                found[number].append(Run(**child.result(what, partial(_run, files, workload, timing))))
    return found


def check_backends(programs: Sequence[ProgramFiles]) -> None:
    """Checks that the runtime here can run programs.

    Raises:
        InputError: It lacks a backend that one of them calls.
    """
    for files in programs:
        missing = child.result("the runtime", partial(unavailable, files))
        if missing:
            message = f"the runtime here has no backend `{missing[0]}`, which {files.program.name} calls"
            raise InputError.of(message, "measure the program on its device")


def machine() -> dict[str, Any]:
    """Facts on which the times depend besides the program: the system, the processor, and ExecuTorch's version."""
    from importlib.metadata import version

    from etbuild.steps.lowering_options import processors

    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": found[1].strip() if found else platform.processor(),
        "processors": processors(),
        "executorch": version("executorch"),
    }


# In the process of a run


def _run(files: ProgramFiles, workload: Workload, timing: Timing) -> dict[str, Any]:
    from executorch.extension.pybindings import portable_lib

    if timing.threads is not None:
        portable_lib._unsafe_reset_threadpool(timing.threads)
    threads = portable_lib._threadpool_get_thread_count()
    with tempfile.TemporaryDirectory() as scratch:
        session = Session(files, Path(scratch))
        session.forget()
        gc.collect()
        give_back()
        before = _start_memory()
        clock = time.perf_counter
        start = clock()
        for method in workload.inputs:
            session.load_program(method)
        loaded = clock()
        try:
            methods = {method: session.load(method) for method in workload.inputs}
            ready = clock()
            taken = {method: files.method(method)["inputs"] for method in methods}
            calls = [
                (call.phase, partial(methods[call.method].execute, laid_out(call.inputs, taken[call.method])))
                for call in workload.calls
            ]
            seconds = _time(calls, timing)
        except RuntimeError as error:
            raise BuildError.of(f"the runtime cannot run {workload.name}: {summary(error)}") from error
        peak, kept = _grown(before)
    load = {"load_program": loaded - start, "load_methods": ready - loaded}
    return {"seconds": seconds, **load, "peak": peak, "kept": kept, "threads": threads}


def _time(calls: Sequence[tuple[str, Callable[[], object]]], timing: Timing) -> dict[str, list[float]]:
    """Times calls. Returns their seconds, by phase. A pass always ends: the calls of a text differ from each other."""
    for _ in range(timing.warm_up):
        for _, call in calls:
            call()
    found: dict[str, list[float]] = {phase: [] for phase, _ in calls}
    clock = time.perf_counter
    passes, end = 0, clock() + timing.seconds / timing.runs
    gc.disable()  # no collection is needed: this process ends soon
    while passes == 0 or (clock() < end if timing.calls is None else passes < timing.calls):
        for phase, call in calls:
            start = clock()
            call()
            found[phase].append(clock() - start)
        passes += 1
    return found


def _start_memory() -> dict[str, int] | None:
    """Resets the largest memory of this process, and returns its present memory. None if the system cannot do this."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, "ascii")
        return _memory()
    except OSError:
        return None


def _grown(before: Mapping[str, int] | None) -> tuple[int | None, int | None]:
    """By how many bytes the largest memory, and the memory that is no part of a file, have grown."""
    if before is None:
        return None, None
    now = _memory()
    return max(0, now["VmHWM"] - before["VmRSS"]), max(0, now["RssAnon"] - before["RssAnon"])


def _memory() -> dict[str, int]:
    """The memory of this process in bytes, by the names of proc(5)."""
    text = _STATUS.read_text("ascii")
    return {
        name: 1024 * int(size) for name, size in re.findall(r"^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB$", text, re.MULTILINE)
    }
