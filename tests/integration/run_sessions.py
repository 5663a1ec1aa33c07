"""Runs a program in ExecuTorch's runtime, for tests: `python run_sessions.py PROGRAM SESSIONS OUTPUTS`.

A process of its own, since a program can take the runtime down. A session is a list of calls (method, inputs) of one
freshly loaded program, so that state lasts within a session and no longer. Both files are torch.save's.
"""

import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from run_program import load, named_data


def main(program: Path, sessions: Path, outputs: Path) -> None:
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for calls in torch.load(sessions):
            loaded = load(program, named_data(program), Path(scratch))
            results.append([])
            for method, inputs in calls:
                values = loaded.load_method(method).execute(inputs)
                results[-1].append([value.clone() if isinstance(value, torch.Tensor) else value for value in values])
    torch.save(results, outputs)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
