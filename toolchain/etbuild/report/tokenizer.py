"""The tokenizer: files that travel with a program, in the directory `NAME.tokenizer`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from etbuild.errors import BuildError, CheckError, DocumentPath, InputError, Problem
from etbuild.files import artifacts, json_file, regular_files
from etbuild.inputs.declared import Inputs
from etbuild.plan.plan import Plan
from etbuild.results import LoweringFacts

_MAX_BYTES = 1 << 30


def copy(
    plan: Plan, inputs: Inputs, digests: Mapping[str, str], lowering: LoweringFacts, directory: Path
) -> list[artifacts.Artifact]:
    """Copies the files of the tokenizer, and checks that they fit the program.

    Args:
        plan: The plan.
        inputs: The declared inputs.
        digests: The digests of the data in the key of the program, by name.
        lowering: The facts of the lowering.
        directory: The directory for the copies.

    Raises:
        InputError: A file is not declared or cannot be read.
        CheckError: The tokenizer has tokens that the model does not know.
        BuildError: A file has changed since its digest was made, or a copy cannot be written.
    """
    made, problems = [], list[Problem]()
    vocabulary = lowering["constant_methods"].get("get_vocab_size")
    for name, path in plan.tokenizer_names.items():
        try:
            content = regular_files.read(inputs.find_data(name, path), _MAX_BYTES)
        except OSError as error:
            raise InputError.at(path, f"cannot read `{name}`: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != digests[name]:
            raise BuildError.of(f"`{name}` changed during the build", "build again")
        if plan.runner is not None and isinstance(vocabulary, int):
            problems += _unknown_tokens(name, content, vocabulary, path)
        file = f"{plan.name}.tokenizer/{PurePosixPath(name).name}"
        made.append(artifacts.write(directory, file, "tokenizer", partial(_write, content)))
    if problems:
        raise CheckError(problems)
    return made


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _unknown_tokens(name: str, content: bytes, vocabulary: int, path: DocumentPath) -> Iterator[Problem]:
    """Yields a problem if a file of Hugging Face's tokenizers has a token whose id is not in the model's vocabulary."""
    if not name.endswith(".json"):
        return
    try:
        parsed = json_file.parse(content)
    except ValueError as error:
        yield Problem(f"`{name}` is not JSON: {error}", path)
        return
    largest = max(_ids(parsed), default=-1)
    if largest >= vocabulary:
        message = f"`{name}` has a token with the id {largest}, and the vocabulary of the model has {vocabulary}"
        yield Problem(message, path, "name the tokenizer of this model")


def _ids(tokenizer: Any) -> Iterator[int]:
    """The ids of the tokens in the content of a `tokenizer.json`. Empty for other files."""
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("model"), dict):
        return
    words = tokenizer["model"].get("vocab")
    if isinstance(words, dict):
        yield from (number for number in words.values() if isinstance(number, int))
    elif isinstance(words, list):
        yield len(words) - 1
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            yield token["id"]
