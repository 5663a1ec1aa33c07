"""Runs programs in ExecuTorch's runtime, each in its own process, since a program can crash the runtime.

`python -m tests.helpers.run_sessions` reads one request a line, which is a JSON list of four paths. It answers each
with the exit code of the process that ran it. The processes are forks, so PyTorch is imported only once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from run_program import load, named_data


def run(program: Path, sessions: Path, outputs: Path) -> None:
    """Runs the calls of each session on a freshly loaded program.

    Args:
        program: The `.pte`. Its `.ptd` files are those that the index beside it lists.
        sessions: A file that `torch.save` wrote, with a list of sessions. A session is a list of calls: a method and
            its inputs.
        outputs: The file for the outputs of each call. `torch.save` writes it.
    """
    results: list[list[list[object]]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for calls in torch.load(sessions):
            loaded = load(program, named_data(program), Path(scratch))
            results.append([])
            for method, inputs in calls:
                values = loaded.load_method(method).execute(inputs)
                results[-1].append([value.clone() if isinstance(value, torch.Tensor) else value for value in values])
    torch.save(results, outputs)


def main() -> None:
    """Answers requests until standard input ends."""
    for line in sys.stdin:
        program, sessions, outputs, messages = map(Path, json.loads(line))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                descriptor = os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                run(program, sessions, outputs)
                code = 0
            except BaseException:  # printed with the messages
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
