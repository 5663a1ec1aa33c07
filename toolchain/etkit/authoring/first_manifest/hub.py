"""Downloads a model from a hub, and pins it: the commit, and the sha256 of each file.

The files are in the cache of huggingface_hub, which knows the user's hub and login. A link beside the manifest leads to
them. It has the name that the rule `huggingface_checkpoint` gives the folder, so the same manifest works with Bazel.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etbuild.errors import BuildError, InputError
from etbuild.extras import install_hint
from etbuild.files.digests import file_digest
from etbuild.foreign_errors import wrap_library_errors
from etbuild.processes import forked
from etkit.authoring.targets.starlark import rule_call

PREFIX = "hub:"
_REFERENCE = re.compile(r"hub:(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)
_SETTINGS = re.compile(r"[\w.-]+\.(json|jinja)|tokenizer\.model", re.ASCII)
_WEIGHTS = tuple(
    re.compile(rf"{stem}(-\d+-of-\d+)?\.{suffix}(\.index\.json)?")
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin"))
)
"""The forms of a checkpoint's files. The first form that a model has is taken, as in transformers."""
_MODULE = re.compile(r"(\d+_\w+)/(config\.json|model\.safetensors|pytorch_model\.bin)", re.ASCII)
"""The files of a module of sentence-transformers, whose folder has a number before its name."""


@dataclass(frozen=True)
class Snapshot:
    """A commit of a model on a hub.

    Attributes:
        folder: The folder of the files.
        repo: The name of the model, such as `Qwen/Qwen3-0.6B`.
        revision: The commit.
        hub: The address of the hub.
        digests: The sha256 of each file, by its name.
    """

    folder: Path
    repo: str
    revision: str
    hub: str
    digests: dict[str, str]

    @property
    def name(self) -> str:
        """The name of the folder in a manifest."""
        return self.repo.rpartition("/")[2]

    def rule(self, name: str) -> str:
        """The text of a `.bzl` file whose function pins the files.

        Args:
            name: The name of the repository in Bazel.
        """
        attributes = {
            "name": name,
            "files": self.digests,
            "repo": self.repo,
            "revision": self.revision,
            "url": f"{self.hub}/{{repo}}/resolve/{{revision}}/{{file}}",
        }
        call = rule_call("huggingface_checkpoint", attributes).rstrip().replace("\n", "\n    ")
        return (
            f'"""Pins {self.repo}. Call it in WORKSPACE; in MODULE.bazel, copy the call.\n\n'
            'See the page `Checkpoints of a hub`."""\n\n'
            'load("@rules_executorch//rules:repositories.bzl", "huggingface_checkpoint")\n\n'
            f"def checkpoint():\n    {call}\n"
        )


def download(reference: str) -> Snapshot:
    """Downloads the configuration, the tokenizer and the weights of a model.

    Args:
        reference: The model, as `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION`.

    Raises:
        InputError: The reference has another form.
        BuildError: The hub does not give the files, or huggingface_hub is not installed.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise InputError.of(f"{reference}: expected hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
    repo, revision = found["repo"], found["revision"]
    # In a process of its own: the client starts threads, and this process forks later.
    task = "the download"
    folder, commit, hub, names = forked.run({task: lambda: _downloaded(repo, revision)}, 1)[task]
    digests = {name: file_digest((Path(folder) / name).resolve()) for name in names}
    return Snapshot(Path(folder), repo, commit, hub, digests)


def _downloaded(repo: str, revision: str | None) -> tuple[str, str, str, list[str]]:
    """The folder, the commit, the hub and the names of the downloaded files."""
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as error:
        message = f"a model of a hub needs huggingface_hub, which cannot be imported: {error}"
        raise BuildError.of(message, install_hint("huggingface")) from None
    hint = "`HF_ENDPOINT` names another hub; a gated model needs `hf auth login` or `HF_TOKEN`"
    with wrap_library_errors(BuildError, None, f"{PREFIX}{repo} cannot be downloaded", hint):
        api = HfApi()
        model = api.model_info(repo, revision=revision)
        names = wanted([each.rfilename for each in model.siblings or ()])
        patterns = [glob.escape(name) for name in names]
        folder = snapshot_download(repo, revision=model.sha, allow_patterns=patterns)
    return folder, str(model.sha), str(api.endpoint), names


def wanted(names: Sequence[str]) -> list[str]:
    """The files of a model that a build may need, sorted: settings, tokenizer and one form of the weights."""
    forms = ([name for name in names if form.fullmatch(name)] for form in _WEIGHTS)
    weights = next((found for found in forms if found), [])
    settings = [name for name in names if _SETTINGS.fullmatch(name) and not name.endswith(".index.json")]
    of_modules = {name: found for name in names if (found := _MODULE.fullmatch(name))}
    doubled = {f"{found[1]}/pytorch_model.bin" for name, found in of_modules.items() if name.endswith(".safetensors")}
    return sorted({*settings, *weights, *(of_modules.keys() - doubled)})


def link(snapshot: Snapshot, directory: Path) -> Path:
    """Makes a link to the files in a directory, and returns its path. A link to another snapshot is replaced.

    Raises:
        InputError: There is something else in its place, or it cannot be written.
    """
    path = directory / snapshot.name
    try:
        if path.is_symlink():
            path.unlink()
        directory.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.abspath(snapshot.folder))  # noqa: PTH100 - not through the links in the cache
    except FileExistsError:
        message = f"{path} is in the place of a link to {snapshot.repo}"
        raise InputError.of(message, "remove it, or choose another directory with `-o`") from None
    except OSError as error:
        raise InputError.of(f"{path}: cannot be written: {error.strerror}") from None
    return path
