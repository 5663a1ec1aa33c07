"""Checks the names of the tokenizer's files in a manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from etbuild.errors import DocumentPath, Problem
from etbuild.manifest import file_names
from etbuild.manifest.plugin_sections import Section
from etbuild.manifest.sections import Manifest


class TokenizerSection(Section):
    """The files of the tokenizer."""

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Yields the problems of their names."""
        names = manifest.get("tokenizer", [])
        seen: dict[str, str] = {}
        for index, name in enumerate(names if isinstance(names, list) else [names]):
            path: DocumentPath = ("tokenizer", index) if isinstance(names, list) else ("tokenizer",)
            yield from file_names.check_input(name, path)
            base = PurePosixPath(name).name
            if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", base, re.ASCII):
                hint = "give it a name of letters, digits, `_`, `-` and `.`"
                yield Problem(f"`{base}` cannot be the name of an artifact", path, hint)
            if seen.setdefault(base, name) != name:
                yield Problem(f"`{seen[base]}` has the same file name", path, "the files travel in one directory")
        if names and "shard_size" in manifest.get("named_data", {}).get("tokenizer", {}):
            hint = "choose another name for the tag"
            message = "the shards of this tag would go to the directory of the tokenizer"
            yield Problem(message, ("named_data", "tokenizer"), hint, at_key=True)
