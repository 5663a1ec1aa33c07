#!/usr/bin/env python3
"""A driver that builds nothing: each output holds the digest of what the action reads.

So all actions of 1,000 programs run in minutes, and an edit reaches the same actions as with the real driver: an output
changes if and only if what it is made of changes. As with the real driver, an export does not change with the weights.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Runs one verb of the driver, with its arguments in a file."""
    verb, *words = Path(arguments[0][1:]).read_text("utf-8").splitlines()
    options = [word[2:].partition("=")[::2] for word in words if word.startswith("--")]
    one = dict(options)
    last = Path(words[-1])
    words = [word for word in words if not word.startswith("-")]
    read = [Path(word) for word in words if word != str(last) and Path(word).exists()]
    read += [
        Path(value.rpartition("=")[2]) for name, value in options if name in ("data", "source", "inputs", "lowering")
    ]
    if verb == "plan":
        about = {"name": one["expect-name"], "tags": [tag for tag in one["expect-named-data"].split(",") if tag]}
        text = json.dumps({**about, "digest": digest([Path(words[0])])})
        for name in ("plan", "export-plan", "lower-plan", "positions"):
            Path(one[name]).write_text(text, "utf-8")
    elif verb == "export":
        text = digest([Path(words[0]), *(path for path in read if path.suffix == ".py")])
        last.mkdir(parents=True, exist_ok=True)
        (last / "exported").write_text(text, "utf-8")
        for name in ("inputs", "lines"):
            Path(one[name]).write_text(text, "utf-8")
    else:
        about = json.loads(Path(words[0]).read_text("utf-8"))
        kinds = {"lower": ["pte", *(f"{tag}.ptd" for tag in about["tags"]), "lowering.json"]}
        for kind in kinds.get(verb, ["index.json", "report.json"]):
            (last / f"{about['name']}.{kind}").write_text(digest([Path(words[0]), *read]), "utf-8")


def digest(files: list[Path]) -> str:
    """Returns a digest of the contents of files, and of the files in directories."""
    found = hashlib.sha256()
    for file in files:
        for path in sorted(file.rglob("*")) if file.is_dir() else [file]:
            found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
