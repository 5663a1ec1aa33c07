"""Finds the declared inputs of a build, in a list or below directories. Says what to declare if one is missing."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etbuild.errors import DocumentPath, InputError, did_you_mean
from etbuild.exception_text import hints
from etbuild.files.weights_suffixes import WEIGHTS_SUFFIXES
from etbuild.inputs.given import Given, is_file

_WORKSPACE_FILES = ("MODULE.bazel", "REPO.bazel", "WORKSPACE", "WORKSPACE.bazel")
_COMPARED = 1000  # this many files of a folder are compared with a missing name
_LONGEST = 255  # bytes of the name of a file, in any file system in use


@dataclass
class Inputs(Given):
    """The files that a build may read.

    Attributes:
        roots: Directories to search for files that are not in `sources` or `data`. On the command line, these are the
            manifest's directory and each `--root`. In a build system there are none, because it declares every file.
    """

    roots: list[Path] = field(default_factory=list)

    @classmethod
    def named(cls, sources: Mapping[str, Path], data: Mapping[str, Path], roots: Iterable[Path]) -> Inputs:
        """The inputs that a user names. Of a data directory, these are its files, as `NAME/FILE`, and links to files.

        Raises:
            InputError: A root is not a directory.
        """
        inputs = cls(dict(sources), roots=list(roots))
        for root in inputs.roots:
            if not root.is_dir():
                raise InputError.of(f"--root {root}: not a directory")
        for name, path in data.items():
            if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises if it has no permission to look
                files = [file for file in sorted(path.rglob("*")) if file.is_file()]
                inputs.data.update({f"{name}/{file.relative_to(path).as_posix()}": file for file in files})
            else:
                inputs.data[name] = path
        return inputs

    def source(self, name: str) -> Path | None:
        """The source with this import path; None if there is none. A link has to stay in its root: sources are code."""
        found = ((root, root / name) for root in self.roots if is_file(root / name))
        inside = (file for root, file in found if file.resolve().is_relative_to(root.resolve()))
        return self.sources.get(name) or next(inside, None)

    def find(self, name: str) -> Path | None:
        """The data file with this name; None if it is not declared. It may be a link to a file anywhere: caches of
        checkpoints hold such links, and only the content counts."""
        return super().find(name) or next((root / name for root in self.roots if is_file(root / name)), None)

    def is_folder(self, name: str) -> bool:
        """Whether this is the name of a directory of data files."""
        return super().is_folder(name) or any(
            os.path.isdir(root / name)  # noqa: PTH112 - Path.is_dir raises if it has no permission to look
            for root in self.roots
        )

    def _of_same_stem(self, name: str) -> str | None:
        """The name of a file with weights in another format that is there, such as `net.bin` for `net.safetensors`."""
        stem = next((name.removesuffix(suffix) for suffix in WEIGHTS_SUFFIXES if name.endswith(suffix)), None)
        others = (f"{stem}{suffix}" for suffix in WEIGHTS_SUFFIXES) if stem else ()
        return next((other for other in others if self.find(other) is not None), None)

    def _near(self, name: str) -> str | None:
        """A hint that names the file of a root whose name is most like this one; None if there is none. Looks at the
        first files of a large folder only, and proposes no name that messages cannot show."""
        folder, _, file = name.rpartition("/")
        if len(file) > _LONGEST:
            return None
        found: set[str] = set()
        for root in self.roots:
            # a name may be none of a folder
            with contextlib.suppress(OSError, ValueError), os.scandir(root / folder) as files:
                first = itertools.islice(files, _COMPARED)
                found.update(each.name for each in first if each.name.isprintable() and each.is_file())
        near = difflib.get_close_matches(file, found, n=1)
        return f"did you mean `{'/'.join(filter(None, (folder, near[0])))}`?" if near else None

    def _in_workspace(self, name: str) -> str | None:
        """A hint for a root in a workspace of Bazel: which other root has the file, or where the files are that Bazel
        makes. None outside of a workspace, and for a target, which lists its files."""
        for root in self.roots[:1]:
            folder = root.absolute()
            if any(part.endswith(".runfiles") for part in folder.parts):
                return None
            for workspace in (folder, *folder.parents):
                if not any(is_file(workspace / each) for each in _WORKSPACE_FILES):
                    continue
                made = workspace / "bazel-bin"
                for place in (workspace, made, made / folder.relative_to(workspace)):
                    if is_file(place / name):
                        return f"there is {place / name}: add `--root {place}`"
                return f"if Bazel makes the file, build it first, and add `--root {made}`"
        return None

    def find_data(self, name: str, path: DocumentPath) -> Path:
        """The data file with this name.

        Args:
            name: The name.
            path: The place in the manifest that names the file, for errors.

        Raises:
            InputError: The file is not declared, or does not exist.
        """
        if self.find(name) is not None:
            return super().find_data(name, path)
        looked = f"looked in: {', '.join(str(root.absolute()) for root in self.roots)}"
        where = hints(self._near(name), looked, self._in_workspace(name))
        hint = did_you_mean(name, self.data) or (where if self.roots else None)
        other = self._of_same_stem(name)
        if other is not None:
            hint = f"there is `{other}`"
        broken = next((root / name for root in self.roots if os.path.islink(root / name)), None)  # noqa: PTH114
        if broken is not None:
            hint = f"{broken} is a link to {os.readlink(broken)}, which is not a file"  # noqa: PTH115
        if "=" in name:
            hint = "`--data NAME=FILE` takes no name with `=`: rename the file, or name its directory with `--root`"
        if self.is_folder(name):
            message = f"`{name}` is a folder, and this needs a file"
            raise InputError.at(path, message, hint if broken is not None else "name the file")
        missing = f"there is no file `{name}`" if self.roots else f"`{name}` is not a declared input"
        raise InputError.at(path, missing, hint, attributes=("data",))

    def only(self, names: Mapping[str, DocumentPath]) -> Given:
        """The same sources with only some of the data. A step reads only the data that is in its key.

        Args:
            names: The names of the data, each with the place in the manifest that names it.

        Raises:
            InputError: A file is not declared, or does not exist.
        """
        return Given(self.sources, {name: self.find_data(name, path) for name, path in names.items()})
