#!/usr/bin/env python3
"""A driver that builds nothing: each output holds the digest of what the action reads.

So all actions of 1,000 programs run in minutes, and an edit reaches the same actions as with the real driver: an output
changes if and only if what it is made of changes. What an action reads and writes is what Bazel says about it
(`asked_for.py`), so this driver knows no verb, no option and no name of an output.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

ASKED_FOR = "asked_for"
"""The directory beside this file with a file for each target: `[{"reads": [...], "writes": [...]}, ...]`."""
TREE = "/"
"""The end of an output that is a directory."""
UNUSED = ".unused_inputs"
"""The end of an output that lists inputs for Bazel. It lists none here, because every input is digested."""
TARGET = "--rule-target="


def name_of(target: str) -> str:
    """Returns the name of the file with the actions of a target."""
    return hashlib.sha256(target.encode()).hexdigest()


def main(arguments: list[str]) -> None:
    """Runs the action whose arguments are in a file: Bazel calls it after one of the action's outputs."""
    parameters = Path(arguments[0][1:])
    [target] = [line for line in parameters.read_text("utf-8").splitlines() if line.startswith(TARGET)]
    known = Path(__file__).resolve().parent / ASKED_FOR / name_of(target[len(TARGET) :])
    output = str(parameters).rpartition("-")[0]
    [action] = [each for each in json.loads(known.read_text("utf-8")) if output in map(plain, each["writes"])]
    text = digest([Path(path) for path in action["reads"]])
    for path in action["writes"]:
        write(path, "" if path.endswith(UNUSED) else text)


def plain(path: str) -> str:
    """Returns the path of an output without the mark of a directory."""
    return path.removesuffix(TREE)


def write(path: str, text: str) -> None:
    """Writes an output; into a directory, a file of one name."""
    file = Path(path, "digest") if path.endswith(TREE) else Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def digest(files: list[Path]) -> str:
    """Returns a digest of the contents of files, and of the files in directories."""
    found = hashlib.sha256()
    for file in files:
        for path in sorted(file.rglob("*")) if file.is_dir() else [file]:
            found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
