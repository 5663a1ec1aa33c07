"""The tokenizer: files that travel with a program, in the directory `NAME.tokenizer`."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Any

from etbuild.errors import BuildError, CheckError, DocumentPath, InputError, Problem
from etbuild.files import json_file, regular_files
from etbuild.files.writing import Artifact, write
from etbuild.inputs.checkpoints import check_content
from etbuild.inputs.given import Given
from etbuild.plan.plan import Plan
from etbuild.report.parts import Added, Reported
from etplugins.tokenizer import conformance, ends

RUNNER_FORM = "executorch_tokenizer"
"""The name of a tokenizer's other form, without its suffix."""
_MAX_BYTES = 1 << 30


def check_files(plan: Plan, inputs: Given) -> None:
    """Fails if a file of the tokenizer is missing, or if a download has left something else in its place.

    Args:
        plan: The plan.
        inputs: The declared inputs.

    Raises:
        InputError: A file is not declared, cannot be read, or has other content.
    """
    for name, path in plan.tokenizer_names.items():
        check_content(name, inputs.find_data(name, path), path)


def copy(program: Reported) -> Added:
    """Copies the files of the tokenizer, and checks that they fit the program.

    Returns:
        The copies, and notes about them.

    Raises:
        InputError: A file is not declared or cannot be read.
        CheckError: The tokenizer has words that the model does not know.
        BuildError: A file has changed since its digest was made, or a copy cannot be written.
    """
    plan, inputs = program.plan, program.inputs
    check_files(plan, inputs)
    made, problems, notes = [], list[Problem](), list[Problem]()
    contents: dict[str, bytes] = {}
    vocabulary = program.lowering["constant_methods"].get("get_vocab_size")
    names = plan.tokenizer_names
    for name, path in names.items():
        try:
            content = regular_files.read(inputs.find_data(name, path), _MAX_BYTES)
        except OSError as error:
            raise InputError.at(path, f"cannot read `{name}`: {error.strerror}") from None
        base = PurePosixPath(name).name
        contents[base] = content
        made.append(write(program.directory, f"{plan.name}.tokenizer/{base}", "tokenizer", content))
        if made[-1].sha256 != program.digests[name]:
            raise BuildError.of(f"`{name}` changed during the build", "build again")
        if plan.runner is not None and isinstance(vocabulary, int) and base == "tokenizer.json":
            wrong, noted = unknown_tokens(name, content, vocabulary, path)
            problems += wrong
            others, of_runner = _for_runner(program, str(made[-1].path), {PurePosixPath(each).name for each in names})
            made += others
            notes += [*map(Problem, noted), *of_runner]
    CheckError.raise_if(problems)
    if plan.runner is not None:
        notes += ends.notes(contents, program.lowering["constant_methods"])
    return Added(made, notes)


def _for_runner(program: Reported, file: str, taken: Collection[str]) -> tuple[list[Artifact], list[Problem]]:
    """Another form of a `tokenizer.json` that ExecuTorch's tokenizers read right, if they do not read the file itself
    so; and a note about it. `taken` has the names of the tokenizer's files."""
    differs = conformance.difference(file)
    if differs is None:
        return [], []
    name = f"{RUNNER_FORM}{differs.suffix}"
    if differs.content is None or name in taken:
        return [], [note_on_runner(differs)]
    place = f"{program.plan.name}.tokenizer/{name}"
    return [write(program.directory, place, "tokenizer", differs.content)], [note_on_runner(differs, place)]


def note_on_runner(differs: conformance.Difference, place: str | None = None) -> Problem:
    """What an application with ExecuTorch's tokenizer does wrong with a `tokenizer.json`, and what to do.

    Args:
        differs: The difference.
        place: The name of the other form beside the program; None if there is none.
    """
    if place is not None:
        first = f", {differs.needs}" if differs.needs else ""
        of_file = f"of `tokenizer.json`, it {differs.what}"
        return Problem(f"an application with ExecuTorch's tokenizer reads `{place}`{first}: {of_file}")
    hint = "use Hugging Face's library `tokenizers`, as `etbuild generate` does"
    return Problem(f"an application with ExecuTorch's tokenizer {differs.what}", hint=hint)


def unknown_tokens(name: str, content: bytes, vocabulary: int, path: DocumentPath) -> tuple[list[Problem], list[str]]:
    """Compares the ids in a `tokenizer.json` with the model's vocabulary.

    Args:
        name: The file's name in the manifest.
        content: The file's bytes.
        vocabulary: The number of tokens that the model knows.
        path: The place in the manifest that names the file.

    Returns:
        A problem if a word is outside of the vocabulary, and a note if an added token is. Official checkpoints have
        such tokens: for example for the images of a larger model.
    """
    try:
        # The limits of a manifest do not apply: words may be halves of surrogate pairs.
        tokenizer = json.loads(content, object_pairs_hook=json_file.unique)
    except (ValueError, RecursionError) as error:
        return [Problem(f"`{name}` is not JSON: {error}", path)], []
    words, added = _largest_ids(tokenizer)
    has = f"and the vocabulary of the model has {vocabulary}"
    if words >= vocabulary:
        message = f"`{name}` has a token with the id {words}, {has}"
        return [Problem(message, path, "name the tokenizer of this model")], []
    if added >= vocabulary:
        return [], [f"`{name}` adds a token with the id {added}, {has}; no prompt may contain this token"]
    return [], []


def _largest_ids(tokenizer: Any) -> tuple[int, int]:
    """The largest ids in the content of a `tokenizer.json`: of its words, and of its added tokens; -1 if there are
    none."""
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("model"), dict):
        return -1, -1
    words, added = tokenizer["model"].get("vocab"), tokenizer.get("added_tokens")
    ids = [len(words) - 1] if isinstance(words, list) else words.values() if isinstance(words, dict) else []
    tokens = [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    largest, of_added = (max((each for each in some if isinstance(each, int)), default=-1) for some in (ids, tokens))
    return largest, of_added
