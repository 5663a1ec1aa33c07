"""Lets the program of a language model answer prompts in the chat template of its tokenizer, and compares its answers
with what they have to contain, and its choices of tokens with those of eager PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from etbuild.errors import DocumentPath, InputError, Problem, counted, printable
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
        end: The token that ends the answer. None if the answer was cut.
        note: What an application with ExecuTorch's tokenizer does in another way. None if nothing is known.
    """

    prompt: Prompt
    text: str
    equal: int | None
    count: int
    end: int | None
    note: str | None


Measured = tuple[dict[str, float], list[tuple[str, DocumentPath, str | None]], list[str]]
"""What was measured; what is wrong: messages, places in the manifest, and hints; and notes. A process can return it."""


def measure(plan: Plan, asked: PromptsTest, files: ProgramFiles, context: StepContext) -> Measured:
    """Lets a program answer all prompts. Each begins a conversation. Call it in a process of its own.

    Args:
        plan: What the program was built from.
        asked: The prompts and their limits.
        files: The program.
        context: The declared inputs.

    Returns:
        `prompts`, their number; and `same_choice`, the part for which eager PyTorch chooses all tokens of the program,
        if there is a limit for it. Then the problems of the answers, and notes.

    Raises:
        InputError: The prompts or the tokenizer cannot be read, nothing says what an answer has to be, the template
            refuses a prompt, or the cache is too small for it.
        BuildError: The model cannot be made, or the runtime cannot run the program.
    """
    from etplugins.transformers.reference import language_model  # other programs are tested without transformers

    prompts = [*_read(asked, context)]
    compares = asked.min_same_choice is not None
    _check(asked, prompts)
    paths = [context.inputs.find_data(*each) for each in plan.tokenizer_names.items()]
    model = language_model(plan, context) if compares else None
    with tempfile.TemporaryDirectory() as scratch, ChatTokenizer(paths) as tokenizer, torch.no_grad():
        decoder = Decoder(files, Path(scratch))
        answers = [_answer(each, asked.tokens, decoder, tokenizer, model) for each in prompts]
    same = [each.equal == each.count for each in answers if each.equal is not None]
    measured = {"prompts": len(answers), **({"same_choice": sum(same) / len(same)} if same else {})}
    problems = [problem for each in answers for problem in _missing(asked, each)]
    problems += [*_of_choices(asked, answers, measured.get("same_choice", 1)), *_of_ends(answers, decoder.ends)]
    notes = _listed([f"note: {each.prompt}: {each.note}" for each in answers if each.note])
    return measured, [(each.message, each.path or PROMPTS, each.hint) for each in problems], notes


def summary(found: dict[str, float]) -> str:
    """The measurements for people, in one line.

    Args:
        found: What was measured.
    """
    compared = f", the same choices for {found['same_choice']:.1%}" if "same_choice" in found else ""
    return f"{found['prompts']:.0f} prompt{'' if found['prompts'] == 1 else 's'}{compared}"


def _check(asked: PromptsTest, prompts: Sequence[Prompt]) -> None:
    """Raises InputError if any answer to a prompt would pass: a limit of 0 is always kept."""
    if asked.min_same_choice or asked.must_contain:
        return
    hint = "write `must_contain` in the line or in the manifest, or `min_same_choice`"
    free = [f"{each}: nothing says what the answer has to be" for each in prompts if not each.must_contain]
    if free:
        message = f"any answer to {len(free)} of {counted(len(prompts), 'prompt')} would pass"
        raise InputError.at(_FILE, message, "\n".join([hint, *_listed(free)]))


def _listed(lines: list[str]) -> list[str]:
    """The first lines, and how many more there are."""
    return [*lines[:_MOST], f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else lines


def _of_choices(asked: PromptsTest, answers: Sequence[Answer], part: float) -> Iterator[Problem]:
    """The problem if eager PyTorch chooses the same tokens for too small a part of the prompts."""
    if asked.min_same_choice is None or part >= asked.min_same_choice:
        return
    others = [
        f"{each.prompt}: {each.equal} of {counted(each.count, 'token')}, then another one than in the answer "
        + _shown(each.text)
        for each in answers
        if each.equal != each.count
    ]
    message = f"eager PyTorch chooses the same tokens for {part:.4g} of the prompts"
    message += f", and the limit is {asked.min_same_choice:g}"
    yield Problem(message, (*PROMPTS, "min_same_choice"), "\n".join(_listed(others)))


def _of_ends(answers: Sequence[Answer], ends: set[int]) -> Iterator[Problem]:
    """The problem if ExecuTorch's runner, which knows only `get_eos_ids`, would not stop where answers end."""
    others = [each for each in answers if each.end is not None and each.end not in ends]
    if others:
        listed = _listed([f"{each.prompt}: the answer {_shown(each.text)} ends with {each.end}" for each in others])
        message = f"answers end with a token that is not among `get_eos_ids`, {sorted(ends)}"
        hint = "the runner would not stop there: add it to `eos_token_id` of the settings for generating text"
        yield Problem(message, ("constant_methods",), "\n".join([hint, *listed]))


def _missing(asked: PromptsTest, answer: Answer) -> Iterator[Problem]:
    places: list[tuple[DocumentPath, Sequence[str]]] = [
        (_FILE, answer.prompt.must_contain),
        ((*PROMPTS, "must_contain"), asked.must_contain),
    ]
    cut = f", which was cut after {counted(answer.count, 'token')}," if answer.end is None else ""
    hint = "`tokens` and the cache are the limits of an answer" if cut else None
    for path, texts in places:
        for text in (each for each in texts if each not in answer.text):
            said = f"the answer {_shown(answer.text)}{cut} does not contain {_shown(text)}"
            yield Problem(f"{answer.prompt}: {said}", path, hint)


def _answer(
    prompt: Prompt, most: int, decoder: Decoder, tokenizer: ChatTokenizer, model: torch.nn.Module | None
) -> Answer:
    messages, chosen = [{"role": "user", "content": prompt.text}], list[int]()
    ends = decoder.ends | tokenizer.ends_of_turns()
    try:
        given, note = tokenizer.prompt(messages), tokenizer.note_on_runner(messages)
        for token in decoder.written(given, most):
            chosen.append(token)
            if token in ends:
                break
    except InputError as error:
        raise InputError.at(_FILE, f"{prompt}: {error.problems[0].message}", error.problems[0].hint) from None
    equal = None if model is None else _equal(model, given, chosen)
    text = tokenizer.text([each for each in chosen if each not in ends])
    return Answer(prompt, text, equal, len(chosen), chosen[-1] if chosen[-1] in ends else None, note)


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
        raise InputError.at(_FILE, f"{place}: {error}", _FORM) from None
    known = isinstance(found, dict) and {"prompt"} <= found.keys() <= {"prompt", "must_contain"}
    text, texts = (found["prompt"], found.get("must_contain", [])) if known else (None, None)
    if not isinstance(text, str) or not isinstance(texts, list) or not all(map(_is_text, texts)):
        message = f"{place}: not an object with `prompt`, and maybe `must_contain`, a list of texts that are not empty"
        raise InputError.at(_FILE, message, _FORM)
    return Prompt(place, text, tuple(texts))


def _is_text(value: object) -> bool:
    """Whether it is a text that an answer may lack: each contains the empty one."""
    return isinstance(value, str) and bool(value)


def _shown(text: str) -> str:
    return printable(f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}..."')
