"""Lets the program of a language model answer prompts as an application does, and compares its answers with what they
have to contain, and its choices of tokens with those of eager PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from etbuild.errors import DocumentPath, InputError, Problem, printable
from etbuild.exception_text import summary as summary_of
from etbuild.files import json_file, regular_files
from etbuild.inputs.step_context import StepContext
from etbuild.plan.plan import Plan
from etkit.running.generation.chat_tokenizer import ChatTokenizer
from etkit.running.generation.decoder import Decoder
from etplugins.model_tests.parts import PROMPTS, PromptsTest
from etplugins.runtime.program_files import ProgramFiles

_FILE = (*PROMPTS, "file")
_MAX_BYTES = 64 << 20
_SHOWN = 100  # characters of a text in a message
_MOST = 20  # prompts in a message
_FORM = 'for example {"prompt": "Where is the Louvre?", "must_contain": ["Paris"]}'


@dataclass(frozen=True)
class Prompt:
    """One line of a file.

    Attributes:
        place: The file and the line.
        text: What the user says.
        must_contain: What the answer has to contain.
    """

    place: str
    text: str
    must_contain: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {_shown(self.text)}"


@dataclass(frozen=True)
class Answer:
    """What the program says.

    Attributes:
        prompt: The prompt.
        text: The answer.
        equal: How many tokens the program chose before one that eager PyTorch does not choose. None if unknown.
        count: How many tokens it chose, with the one that ends the answer.
    """

    prompt: Prompt
    text: str
    equal: int | None
    count: int


Measured = tuple[dict[str, float], list[tuple[str, DocumentPath, str | None]]]
"""What was measured, and what is wrong: messages, places in the manifest, and hints. A process can return it."""


def measure(plan: Plan, asked: PromptsTest, files: ProgramFiles, context: StepContext) -> Measured:
    """Lets a program answer all prompts. Each begins a conversation. Call it in a process of its own.

    Args:
        plan: What the program was built from.
        asked: The prompts and their limits.
        files: The program.
        context: The declared inputs.

    Returns:
        `prompts`, their number; and `same_choice`, the part for which eager PyTorch chooses all tokens of the program,
        if there is a limit for it. And the limits that the answers break.

    Raises:
        InputError: The prompts or the tokenizer cannot be read, the template refuses a prompt, or the cache is too
            small for it.
        BuildError: The model cannot be made, or the runtime cannot run the program.
    """
    from etplugins.transformers.reference import language_model  # other programs are tested without transformers

    prompts = [*_read(asked, context)]
    compares = asked.min_same_choice is not None
    if not compares and not asked.must_contain and not any(each.must_contain for each in prompts):
        hint = "write `min_same_choice`, or `must_contain` in the manifest or in lines of the file"
        raise InputError.at(PROMPTS, f"nothing says what the answers to `{asked.file}` have to be", hint)
    paths = [context.inputs.find_data(*each) for each in plan.tokenizer_names.items()]
    model = language_model(plan, context) if compares else None
    with tempfile.TemporaryDirectory() as scratch, ChatTokenizer(paths) as tokenizer, torch.no_grad():
        decoder = Decoder(files, Path(scratch))
        answers = [_answer(each, asked.tokens, decoder, tokenizer, model) for each in prompts]
    same = [each.equal == each.count for each in answers if each.equal is not None]
    measured = {"prompts": len(answers), **({"same_choice": sum(same) / len(same)} if same else {})}
    problems = [problem for each in answers for problem in _missing(asked, each)]
    problems += _of_choices(asked, answers, measured.get("same_choice", 1))
    return measured, [(each.message, each.path or PROMPTS, each.hint) for each in problems]


def summary(found: dict[str, float]) -> str:
    """The measurements for people, in one line.

    Args:
        found: What was measured.
    """
    compared = f", the same choices for {found['same_choice']:.1%}" if "same_choice" in found else ""
    return f"{found['prompts']:.0f} prompts{compared}"


def _of_choices(asked: PromptsTest, answers: Sequence[Answer], part: float) -> Iterator[Problem]:
    """The problem if eager PyTorch chooses the same tokens for too small a part of the prompts."""
    if asked.min_same_choice is None or part >= asked.min_same_choice:
        return
    others = [
        f"{each.prompt}: {each.equal} of {each.count} tokens, then another one than in the answer {_shown(each.text)}"
        for each in answers
        if each.equal != each.count
    ]
    others[_MOST:] = [f"and {len(others) - _MOST} more"] if len(others) > _MOST else []
    message = f"eager PyTorch chooses the same tokens for {part:.4g} of the prompts"
    message += f", and the limit is {asked.min_same_choice:g}"
    yield Problem(message, (*PROMPTS, "min_same_choice"), "\n".join(others))


def _missing(asked: PromptsTest, answer: Answer) -> Iterator[Problem]:
    places: list[tuple[DocumentPath, Sequence[str]]] = [
        (_FILE, answer.prompt.must_contain),
        ((*PROMPTS, "must_contain"), asked.must_contain),
    ]
    for path, texts in places:
        for text in (each for each in texts if each not in answer.text):
            yield Problem(f"{answer.prompt}: the answer {_shown(answer.text)} does not contain {_shown(text)}", path)


def _answer(
    prompt: Prompt, most: int, decoder: Decoder, tokenizer: ChatTokenizer, model: torch.nn.Module | None
) -> Answer:
    try:
        given = tokenizer.prompt([{"role": "user", "content": prompt.text}])
    except InputError as error:
        raise InputError.at(_FILE, f"{prompt}: {error.problems[0].message}", error.problems[0].hint) from None
    if not 0 < len(given) <= decoder.context:
        message = f"{prompt}: the prompt has {len(given)} tokens, and the cache of the program {decoder.context}"
        raise InputError.at(_FILE, message, "write a larger `max_length` of the cache, or a shorter prompt")
    ends, chosen = decoder.ends | tokenizer.ends_of_turns(), list[int]()
    for token in decoder.written(given, most):
        chosen.append(token)
        if token in ends:
            break
    equal = None if model is None else _equal(model, given, chosen)
    return Answer(prompt, tokenizer.text([each for each in chosen if each not in ends]), equal, len(chosen))


def _equal(model: torch.nn.Module, given: list[int], chosen: list[int]) -> int:
    """How many tokens a model chooses too before another one: it is given those before each."""
    scores = model(input_ids=torch.tensor([given + chosen[:-1]]))[0][0, len(given) - 1 :]
    pairs = zip(scores.argmax(-1).tolist(), chosen, strict=True)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), len(chosen))


def _read(asked: PromptsTest, context: StepContext) -> Iterator[Prompt]:
    """The prompts of a file, some lines may be empty. Raises InputError for other lines, and for a file without one."""
    try:
        content = regular_files.read(context.inputs.find_data(asked.file, _FILE), _MAX_BYTES)
    except OSError as error:
        raise InputError.at(_FILE, f"{asked.file}: cannot be read: {summary_of(error)}") from None
    if not content.strip():
        raise InputError.at(_FILE, f"{asked.file}: the file has no prompt", _FORM)
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            yield _prompt(f"{asked.file}:{number}", line)


def _prompt(place: str, line: bytes) -> Prompt:
    try:
        found = json_file.parse(line)
    except ValueError as error:
        raise InputError.at(_FILE, f"{place}: not JSON: {error}", _FORM) from None
    known = isinstance(found, dict) and {"prompt"} <= found.keys() <= {"prompt", "must_contain"}
    text, texts = (found["prompt"], found.get("must_contain", [])) if known else (None, None)
    if not isinstance(text, str) or not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise InputError.at(_FILE, f"{place}: not an object with `prompt`, and maybe `must_contain`", _FORM)
    return Prompt(place, text, tuple(texts))


def _shown(text: str) -> str:
    return printable(f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}..."')
