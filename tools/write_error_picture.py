"""Draws what a build says about a mistake, for the README: `python -m tools.write_error_picture`.

The text is that of a real build. The same text gives the same bytes. A test compares the picture with the messages of
today.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/images/error.svg"
MODEL = """\
import torch


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = torch.nn.Linear(16, 4), torch.nn.Linear(16, 4)

    def forward(self, x):
        if x.mean() > 0:
            return self.high(x)
        return self.low(x)


def create():
    return Gate()
"""
MANIFEST = """\
schema: executorch-model/v1
name: gate
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  forward:
    example_inputs: [{shape: [1, 16]}]
"""
COMMAND = ("build", "gate.yaml", "-o", "out", "--no-cache", "--no-server")
SHOWN = "etbuild build gate.yaml -o out"
_COLUMNS, _LINE, _LEFT, _TOP, _CHARACTER = 100, 18, 16, 44, 7.25
_BACK, _FRONT, _RED, _DIM = "#1e1e2e", "#e4e4ef", "#ff7b86", "#a6adc8"


def message(directory: Path) -> list[str]:
    """What a build of the model says, in lines. The model and the manifest are written into a directory."""
    (directory / "model.py").write_text(MODEL)
    (directory / "gate.yaml").write_text(MANIFEST)
    command = [sys.executable, "-m", "etbuild", *COMMAND]
    environment = {**os.environ, "NO_COLOR": "1", "ETBUILD_NO_PROGRESS": "1"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 1 or "Traceback" in done.stderr:
        raise SystemExit(f"the build ended with {done.returncode}: {done.stderr}")
    lines = done.stderr.replace(f"{directory}/", "").rstrip().split("\n")
    return [line for line in lines if not line.startswith("    the whole error: ")]  # a path of this machine


def draw(lines: Sequence[str]) -> str:
    """A terminal with a command and what it prints, as SVG."""
    shown = [part for line in lines for part in _wrapped(line)]
    height = _TOP + _LINE * (len(shown) + 1) + 14
    width = round(2 * _LEFT + _CHARACTER * _COLUMNS)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="12" role="img" '
        'aria-labelledby="title"><title id="title">What a build says about a branch that depends on data</title>'
    )
    buttons = "".join(f'<circle cx="{20 + 18 * each}" cy="18" r="5" fill="#585b70"/>' for each in range(3))
    body = [f'<rect width="{width}" height="{height}" rx="8" fill="{_BACK}"/>', buttons]
    body.append(_text(0, f"$ {SHOWN}", _DIM))
    for number, line in enumerate(shown, 1):
        first, found, rest = line.partition("error:")
        marked = f'{escape(first)}<tspan fill="{_RED}" font-weight="bold">error:</tspan>{escape(rest)}'
        body.append(_text(number, line, _FRONT, marked if found and not first else None))
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _wrapped(line: str) -> Iterator[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    yield from textwrap.wrap(line, _COLUMNS, subsequent_indent=indent, break_long_words=False) or [""]


def _text(row: int, line: str, colour: str, marked: str | None = None) -> str:
    place = f'x="{_LEFT}" y="{_TOP + _LINE * row}" fill="{colour}" xml:space="preserve"'
    return f"<text {place}>{escape(line) if marked is None else marked}</text>"


def main() -> None:
    """Writes the picture."""
    with tempfile.TemporaryDirectory() as scratch:
        PICTURE.write_text(draw(message(Path(scratch))), "utf-8")


if __name__ == "__main__":
    main()
