"""Measures a program on a phone: what `adb` and ExecuTorch's `executor_runner` need, and what they bring back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from etbuild.errors import InputError
from etbuild.files import instructions, program_file, regular_files
from etbuild.publishing import artifacts
from etkit.inspection import etdump, profile
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import check_inputs, laid_out, merged

SCRIPT = "measure.sh"
_PROGRAM, _DATA = "program.pte", "data.ptd"
_HEAD = """\
#!/bin/sh
# Measures {name} on the phone of adb: sh {script} RUNNER
# RUNNER is ExecuTorch's executor_runner for the phone, built with its backends and an event tracer.
set -eu
: "${{1:?usage: sh {script} RUNNER}}"
here=$(cd "$(dirname "$0")" && pwd)
place=/data/local/tmp/etbuild-bench
adb shell rm -rf $place
adb shell mkdir -p $place
adb push "$1" $place/runner
adb shell chmod 755 $place/runner
"""


def write(
    directory: Path, files: ProgramFiles, inputs: Mapping[str, Sequence[Any]], calls: int, threads: int | None
) -> Path:
    """Writes the program, the inputs of its methods, and the script that measures them.

    Args:
        directory: The directory, which is made.
        files: The program.
        inputs: The inputs of each method, in the order of the program.
        calls: How often each method is called.
        threads: The number of threads of the runtime; None for its own choice.

    Returns:
        The script.

    Raises:
        InputError: The inputs do not fit, or the runner takes no such inputs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content = {_PROGRAM: files.program.read_bytes()}
    if files.named_data:
        data = files.named_data[0] if len(files.named_data) == 1 else merged(files.named_data, directory)
        content[_DATA] = data.read_bytes()
    commands = []
    for method, values in inputs.items():
        check_inputs(files, method, values)
        given = {f"{method}.{number}.bin": each for number, each in enumerate(_raw(files, method, values))}
        content.update(given)
        options = [f"--model_path={_PROGRAM}", f"--num_executions={calls}", f"--etdump_path={_dump(method)}"]
        options += [f"--data_path={_DATA}"] if files.named_data else []
        options += [f"--inputs={','.join(given)}"] if given else []
        options += [f"--method_name={method}"] if method != next(iter(files.facts["methods"])) else []
        options += [f"--cpu_threads={threads}"] if threads is not None else []
        commands.append(f'adb shell "cd $place && ./runner {shlex.join(options)}"')
        commands.append(f'adb pull $place/{_dump(method)} "$here/{_dump(method)}"')
    head = _HEAD.format(name=files.program.name, script=SCRIPT)
    pushed = [f'adb push "$here/{name}" $place/{name}' for name in content]
    for name, data_of in {**content, SCRIPT: "\n".join([head.rstrip(), *pushed, *commands, ""]).encode()}.items():
        artifacts.replace(directory / name, data_of)
    return directory / SCRIPT


def text(directory: Path, files: ProgramFiles, methods: Sequence[str], warm_up: int) -> str:
    """What a phone has measured, for people.

    Args:
        directory: The directory of `write`, after its script has run.
        files: The same program.
        methods: The methods.
        warm_up: How many calls at the beginning are left out.

    Raises:
        InputError: The phone has not measured a method, or another program.
    """
    with regular_files.opened(files.program) as file:
        plans = {plan.name: plan for plan in program_file.read_program(file.read()).program.execution_plan}
    lines = []
    for method in methods:
        dump = directory / _dump(method)
        if not dump.exists():
            raise InputError.of(
                f"{dump}: the phone has not measured `{method}`", f"run `sh {directory / SCRIPT} RUNNER`"
            )
        subject = profile.Subject(files.program.name, method, instructions.listed(plans[method]), profile.Origins())
        found = profile.summarize(etdump.read(dump), subject, "ns", warm_up)
        load = "" if found.load is None else f"; {profile.shown(found.load, found.unit)} to load"
        lines.append(f"{profile.heading(found)}{load}")
    return "\n".join(lines)


def _dump(method: str) -> str:
    return f"{method}.etdp"


def _raw(files: ProgramFiles, method: str, values: Sequence[Any]) -> list[bytes]:
    """Inputs as they are in memory. The runner takes tensors in their largest size."""
    facts = files.method(method)["inputs"]
    for number, (value, fact) in enumerate(zip(values, facts, strict=True)):
        if not isinstance(value, torch.Tensor) or "shape" not in fact:
            raise InputError.of(f"input {number} of `{method}` is no tensor, and ExecuTorch's runner takes no others")
        if list(value.shape) != fact["shape"]:
            message = f"input {number} of `{method}` has the shape {list(value.shape)}"
            raise InputError.of(message, f"ExecuTorch's runner calls methods in their largest sizes: {fact['shape']}")
    return [bytes(each.untyped_storage()) for each in laid_out(values, facts)]
