"""What the actions of targets read and write, as `bazel aquery` says it: for the driver that only counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .counting_driver import ASKED_FOR, TREE, name_of

QUERY = 'mnemonic("Executorch.*", {})'
_ACTION = re.compile(
    r"^action '.*\n  Mnemonic: (?P<mnemonic>\w+)\n  Target: (?P<target>.+)\n(?:.*\n)*?"
    r"  Inputs: \[(?P<reads>.*)\]\n  Outputs: \[(?P<writes>.*)\]\n",
    re.MULTILINE,
)
_TREE = " (TreeArtifact)"


def actions(text: str) -> Iterator[dict[str, Any]]:
    """Reads what `aquery --output=text` prints.

    Gives for each action `mnemonic`, `target`, `reads` and `writes`. An output that is a directory ends with a slash.
    """
    for block in re.split(r"(?m)^(?=action ')", text)[1:]:
        found = _ACTION.match(block)
        assert found is not None, block[:1000]
        writes = [re.sub(re.escape(_TREE) + "$", TREE, path) for path in found["writes"].split(", ")]
        yield {
            "mnemonic": found["mnemonic"],
            "target": re.sub("^@+(?=//)", "", found["target"]),
            "reads": [path.removesuffix(_TREE) for path in found["reads"].split(", ")],
            "writes": writes,
        }


def write(directory: Path, text: str, driver: str) -> Counter[str]:
    """Tells a counting driver what actions read and write.

    Args:
        directory: The directory of the driver in its workspace.
        text: What `aquery --output=text` prints about them.
        driver: The package of the driver. Its own files are no inputs that outputs depend on.

    Returns:
        How many actions there are of each mnemonic.
    """
    (directory / ASKED_FOR).mkdir(exist_ok=True)
    found = list(actions(text))
    targets: dict[str, list[dict[str, Any]]] = {}
    for action in found:
        own = {"reads": list(_without(action["reads"], driver)), "writes": action["writes"]}
        targets.setdefault(action["target"], []).append(own)
    for target, rows in targets.items():
        (directory / ASKED_FOR / name_of(target)).write_text(json.dumps(rows), "utf-8")
    return Counter(action["mnemonic"] for action in found)


def _without(paths: Iterable[str], driver: str) -> Iterator[str]:
    """Leaves out the files of the driver, and what stands for all of them."""
    for path in paths:
        if f"/{driver}/" not in f"/{path}" and "/_middlemen/" not in path and ".runfiles" not in path:
            yield path
