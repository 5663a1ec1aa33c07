"""Pushes builds to a repository of models on Hugging Face, in one commit.

`huggingface_hub` does the transfers and finds the login. `HF_ENDPOINT` names another server.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from etbuild.errors import BuildError, InputError
from etbuild.files import json_file, regular_files
from etbuild.files.scratch import temporary
from etkit import kept_results
from etkit.publishing import builds
from etkit.registry.oci.attempts import Broken, Count, attempts

_ENDPOINT_HINT = "leave it out, or write an address such as https://hub.example.com"

try:
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.utils
except ImportError:
    message = "a push to Hugging Face needs the package `huggingface_hub`"
    raise InputError.of(message, "pip install huggingface_hub (the extra `huggingface` has it)") from None
except ValueError as error:  # it reads the address when it is imported
    raise InputError.of(f"HF_ENDPOINT: {error}", _ENDPOINT_HINT) from None

_hub: Any = huggingface_hub  # its types leave out names that its documentation has
errors = _hub.errors

PREFIX = "hf:"
_ID = re.compile(r"(?P<owner>[\w.-]{1,96})/(?P<name>[\w.-]{1,96})(@(?P<branch>[\w./-]{1,200}))?", re.ASCII)
_BESIDE = ("README.md", "catalog.json")
"""Files of the directory that travel with the builds."""
_AGAIN = frozenset((408, 409, 412, 425, 429, 500, 502, 503, 504))
"""Answers after which the same push may succeed. 412: the branch has moved since it was read."""
_NO_LOGIN = frozenset((401, 403))
_INDEX = json_file.Format("an index", "index")


@dataclass(frozen=True)
class Target:
    """A repository of models.

    Attributes:
        repository: OWNER/NAME.
        branch: A branch of it.
    """

    repository: str
    branch: str = "main"

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + ("" if self.branch == "main" else f"@{self.branch}")


@dataclass(frozen=True)
class Pushed:
    """What a push has done.

    Attributes:
        url: The address of the commit.
        commit: Its digest.
        files: The files that the repository has of the builds.
        removed: The files that it has no more.
    """

    url: str
    commit: str
    files: list[str]
    removed: list[str]


def target(text: str) -> Target:
    """Reads hf:OWNER/NAME or hf:OWNER/NAME@BRANCH.

    Raises:
        InputError: It has another form.
    """
    found = _ID.fullmatch(text.removeprefix(PREFIX))
    if found is None:
        raise InputError.of(f"{text[:200]}: is not hf:OWNER/NAME", "for example hf:acme/shapes, or hf:acme/shapes@next")
    return Target(f"{found['owner']}/{found['name']}", found["branch"] or "main")


def push(directory: Path, to: Target, message: str, private: bool = False) -> Pushed:
    """Pushes all builds below a directory in one commit, and removes what they supersede.

    Superseded are files of earlier pushes of the same manifests: those that the indexes in the repository list, of
    programs with the name of a manifest that is pushed now. Other files stay.

    Args:
        directory: The directory.
        to: The repository. It is made if it is missing.
        message: The message of the commit.
        private: Whether a new repository is private.

    Raises:
        InputError: There are no builds, or the login is missing or refused.
        BuildError: The server does not answer, or refuses the commit.
    """
    found = builds.read(directory)
    files = dict(_files(directory, found))
    _check_endpoint()
    _hub.utils.disable_progress_bars()
    hint = "the commit was not made: push again"
    for attempt in attempts(threading.Event(), Count(), f"{to}: the push failed", hint):
        with attempt, _told(to):
            api = huggingface_hub.HfApi()
            head, there = _state(api, to, private)
            old = _of_earlier(api, to, head, there, {build.base for build in found})
            removed = sorted((old & there) - files.keys())
            made = _commit(api, to, files, removed, message, head)
            return Pushed(made.commit_url, made.oid, sorted(files), removed)
    raise AssertionError("attempts end with a result or an error")


def _check_endpoint() -> None:
    """Checks the address of the server, which HF_ENDPOINT may name."""
    address = _hub.constants.ENDPOINT
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise InputError.of(f"HF_ENDPOINT: {address[:200]!r} is not an address of a server", _ENDPOINT_HINT)


def _files(directory: Path, found: Sequence[builds.Build]) -> Iterator[tuple[str, Path]]:
    """The files to push, by their names in the repository."""
    root = directory if directory.is_dir() else directory.parent
    for build in found:
        index = root / build.folder / build.index_file["file"]
        names = [index.name, *(artifact["file"] for artifact in build.index["artifacts"])]
        results = index.with_name(f"{build.name}{kept_results.SUFFIX}")
        if build.results or (results.is_symlink() and regular_files.beside(index, results.name) is None):
            names.append(results.name)
        if build.picture is not None:
            names.append(build.picture)
        for name in names:
            file = regular_files.beside(index, name)
            if file is None:
                raise _is_elsewhere(index.with_name(name))
            yield f"{build.folder}/{name}" if build.folder else name, file
    for name in _BESIDE:
        path = root / name
        if not os.path.lexists(path):
            continue
        file = Path(os.path.realpath(path))
        if not file.is_relative_to(root.resolve()) or not file.is_file():
            raise _is_elsewhere(path)
        yield name, file


def _is_elsewhere(path: Path) -> InputError:
    message = f"{path}: is no file, or a link to a file that is not in its directory"
    return InputError.of(message, "put the file in place of the link")


def _state(api: Any, to: Target, private: bool) -> tuple[str | None, set[str]]:
    """The last commit of the branch, and its files. Makes the repository or the branch if it is missing."""
    try:
        info = api.model_info(to.repository, revision=to.branch)
    except errors.RevisionNotFoundError:
        api.create_branch(to.repository, branch=to.branch, exist_ok=True)
        info = api.model_info(to.repository, revision=to.branch)
    except errors.RepositoryNotFoundError:  # the server says so too if the login may not see it
        api.create_repo(to.repository, private=private, exist_ok=True)
        if to.branch != "main":
            api.create_branch(to.repository, branch=to.branch, exist_ok=True)
        info = api.model_info(to.repository, revision=to.branch)
    return info.sha, {each.rfilename for each in info.siblings or ()}


def _of_earlier(api: Any, to: Target, head: str | None, there: set[str], bases: set[str]) -> set[str]:
    """The files that indexes in the repository list, of programs of these manifests."""
    old: set[str] = set()
    with temporary("hub") as scratch:
        for path in sorted(path for path in there if path.endswith(".index.json")):
            folder, _, file = path.rpartition("/")
            if file.partition(".")[0] not in bases:
                continue
            local = api.hf_hub_download(to.repository, path, revision=head, local_dir=scratch.path)
            with suppress(InputError):  # something else with such a name stays
                index: Mapping[str, Any] = json_file.read(Path(local), _INDEX)
                names = [artifact["file"] for artifact in index["artifacts"]]
                listed = (*names, file, f"{index['name']}{kept_results.SUFFIX}")
                old |= {f"{folder}/{name}" if folder else name for name in listed}
    return old


def _commit(
    api: Any, to: Target, files: Mapping[str, Path], removed: Sequence[str], message: str, head: str | None
) -> Any:
    operations: list[Any] = [
        huggingface_hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path))
        for name, path in sorted(files.items())
    ]
    operations += [huggingface_hub.CommitOperationDelete(path_in_repo=name) for name in removed]
    return api.create_commit(to.repository, operations, commit_message=message, revision=to.branch, parent_commit=head)


class _told:  # noqa: N801 - it is used as a function
    """A context that turns the errors of the library into ours, and into `Broken` if another attempt may succeed."""

    def __init__(self, to: Target) -> None:
        self._to = to

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, errors.LocalEntryNotFoundError):  # a download has failed
            error = error.__cause__ or error
        if isinstance(error, errors.OfflineModeIsEnabled):
            raise InputError.of(f"{self._to}: HF_HUB_OFFLINE is set", "unset it to push") from None
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if status in _NO_LOGIN:
            hint = "set HF_TOKEN to a token that may write there, or run `hf auth login`"
            raise InputError.of(f"{self._to}: the server refuses the login ({status})", hint) from None
        if isinstance(error, errors.HTTPError) and (status is None or status in _AGAIN):
            raise Broken(_first_line(error)) from None
        if isinstance(error, (errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)):
            raise Broken(_first_line(error)) from None
        if isinstance(error, (errors.HTTPError, ValueError, OSError)):
            raise BuildError.of(f"{self._to}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
