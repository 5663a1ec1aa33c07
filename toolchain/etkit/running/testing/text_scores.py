"""Compares the program of a language model with transformers on a text: perplexity, divergence, and chosen tokens.

Both compute the same tokens. The text is cut into windows, and each window begins a new text at position 0. The program
gets the first quarter of a window in calls of several tokens, and then one token at a time, as ExecuTorch's runner
calls it. transformers computes a window at once, without a cache.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from etbuild.errors import InputError, counted
from etbuild.exception_text import summary as summary_of
from etbuild.files import regular_files
from etbuild.inputs.step_context import StepContext
from etbuild.plan.plan import Plan
from etkit.running.generation.decoder import Decoder
from etkit.running.generation.tokenizer_files import preferred
from etplugins.model_tests.parts import TEXT, TextTest
from etplugins.runtime.program_files import ProgramFiles
from etplugins.tokenizer.runner_tokenizer import with_tokenizer

_WINDOW = 256  # tokens
_CONTINUED = 32  # tokens
_MAX_BYTES = 256 << 20


@dataclass
class _Sums:
    """Sums over the tokens of a text.

    Attributes:
        loss: The negative logarithms of the program's probabilities for the next tokens of the text.
        expected_loss: Those of transformers.
        divergence: The divergences of the program from transformers, in nats.
        same: The number of tokens after which the same next token is the most likely one for both.
    """

    loss: list[float] = field(default_factory=list)
    expected_loss: list[float] = field(default_factory=list)
    divergence: list[float] = field(default_factory=list)
    same: int = 0

    def add(self, scores: torch.Tensor, expected: torch.Tensor, following: int) -> None:
        """Adds the scores of one token, [vocab], and those of transformers."""
        for losses, each in ((self.loss, scores), (self.expected_loss, expected)):
            losses.append(-float(torch.log_softmax(each.double(), -1)[following]))
        self.divergence.append(float(divergences(scores, expected)))
        self.same += int(scores.argmax() == expected.argmax())


def divergences(scores: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How far probabilities of the next token are from the expected ones (Kullback-Leibler).

    Args:
        scores: The scores of each token, [..., vocab], of any floating-point dtype.
        expected: The expected scores, of the same shape.

    Returns:
        The divergences in nats, float64 [...]. A score that is NaN makes its divergence NaN.
    """
    found, exact = (torch.log_softmax(each.double(), -1) for each in (scores, expected))
    terms = exact.exp() * (exact - found)
    return torch.where(exact == -torch.inf, 0.0, terms).sum(-1)  # an impossible token adds nothing


def measure(plan: Plan, text: TextTest, files: ProgramFiles, context: StepContext) -> dict[str, float]:
    """Compares a program with transformers. Call it in a process of its own.

    Args:
        plan: What the program was built from.
        text: The text.
        files: The program.
        context: The declared inputs.

    Returns:
        `perplexity` and `perplexity_transformers`; the mean `divergence` and the `largest_divergence` in nats;
        `same_choices`, from 0 to 1; `equal_tokens`, from 0 to 32; and `tokens`, the number of compared ones.

    Raises:
        InputError: The text or the tokenizer cannot be read, or the text has less than two tokens.
        BuildError: The model cannot be made, or the runtime cannot run the program.
    """
    from etplugins.transformers.reference import language_model  # other programs are tested without transformers

    begin, tokens = _tokens(plan, text, context)
    model, sums = language_model(plan, context), _Sums()
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        decoder = Decoder(files, Path(scratch))
        windows = [*_windows(begin, tokens, min(_WINDOW, decoder.context))]
        for window in windows:
            expected = model(input_ids=torch.tensor([window]))[0][0]
            for index in range(_given(window, len(begin)), len(window)):
                sums.add(decoder.scores(window[:index]), expected[index - 1], window[index])
        room = max(1, decoder.context - _CONTINUED + 1)
        prompt = windows[0][: min(_given(windows[0], len(begin)), room)]
        equal = _equal_tokens(decoder, model, prompt)
    count = len(sums.loss)
    return {
        "perplexity": _perplexity(sums.loss),
        "perplexity_transformers": _perplexity(sums.expected_loss),
        "divergence": math.fsum(sums.divergence) / count,
        "largest_divergence": _largest(sums.divergence),
        "same_choices": sums.same / count,
        "equal_tokens": equal,
        "tokens": count,
    }


def broken(text: TextTest, measured: dict[str, float]) -> list[str]:
    """The limits that measurements break. A number that is not finite breaks each limit.

    Args:
        text: The limits.
        measured: What `measure` returned.
    """
    change = measured["perplexity"] / measured["perplexity_transformers"] - 1
    most = [
        ("max_perplexity", measured["perplexity"], text.max_perplexity),
        ("max_perplexity_change", change, text.max_perplexity_change),
        ("max_divergence", measured["divergence"], text.max_divergence),
    ]
    least = [
        ("min_same_choices", measured["same_choices"], text.min_same_choices),
        ("min_equal_tokens", measured["equal_tokens"], text.min_equal_tokens),
    ]
    wrong = [each for each in most if each[2] is not None and not each[1] <= each[2]]
    wrong += [each for each in least if each[2] is not None and not each[1] >= each[2]]
    return [f"{name}: {actual:.4g}, and the limit is {limit:g}" for name, actual, limit in wrong]


def summary(measured: dict[str, float]) -> str:
    """The measurements for people, in one line.

    Args:
        measured: What `measure` returned.
    """
    return (
        f"perplexity {measured['perplexity']:.5g} (transformers {measured['perplexity_transformers']:.5g}), "
        f"divergence {measured['divergence']:.3g} (largest {measured['largest_divergence']:.3g}), "
        f"same choice after {measured['same_choices']:.1%} of {measured['tokens']:.0f} tokens, "
        f"{measured['equal_tokens']:.0f} of {_CONTINUED} tokens equal"
    )


def _perplexity(losses: Sequence[float]) -> float:
    mean = math.fsum(losses) / len(losses)
    return math.exp(mean) if mean < 700 else mean if math.isnan(mean) else math.inf


def _largest(divergences: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, divergences)) else max(divergences)


def _given(window: Sequence[int], begin: int) -> int:
    """How many tokens of a window are given, and not predicted: at least those that begin each text."""
    return max(1, begin, len(window) // 4)


def _windows(begin: list[int], tokens: list[int], size: int) -> Iterator[list[int]]:
    """Cuts tokens into windows, each after the tokens that begin a text. A single token at the end is left out."""
    step = size - len(begin)
    if step < 2:
        message = f"the cache of the program has space for {size} tokens, which are too few to compare a text"
        raise InputError.at(TEXT, message, "write a larger `max_length` of the cache")
    for first in range(0, len(tokens), step):
        part = tokens[first : first + step]
        if len(part) > 1:
            yield begin + part


def _equal_tokens(decoder: Decoder, model: torch.nn.Module, prompt: list[int]) -> int:
    """How many tokens the program and transformers add to a text before they differ."""
    text = list(prompt)
    for count in range(_CONTINUED):
        if len(text) > decoder.context:
            return count
        found = int(decoder.scores(text).argmax())
        if found != int(model(input_ids=torch.tensor([text]))[0][0, -1].argmax()):
            return count
        text.append(found)
    return _CONTINUED


def _tokens(plan: Plan, text: TextTest, context: StepContext) -> tuple[list[int], list[int]]:
    """The tokens that begin a text, and those of the text.

    The tokenizer is that of ExecuTorch's runner.
    """
    path = (*TEXT, "file")
    file = context.inputs.find_data(text.file, path)
    try:
        content = regular_files.read(file, _MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.at(path, f"{text.file}: cannot be read as a text: {summary_of(error)}") from None
    files = [str(context.inputs.find_data(*each)) for each in plan.tokenizer_names.items()]
    marked, plain = _encoded(files, content[: text.tokens * _LONGEST])
    begin = marked[: len(marked) - len(plain)] if marked[len(marked) - len(plain) :] == plain else []
    tokens = plain[: text.tokens]
    if len(tokens) < 2:
        message = f"{text.file}: the text has {counted(len(tokens), 'token')}, and a comparison needs 2"
        raise InputError.at(path, message, "name a longer text")
    return begin, tokens


_LONGEST = 64  # a text is cut after this many characters for each token that is compared


def _encoded(files: Sequence[str], text: str) -> list[list[int]]:
    """The tokens of a text, with those that begin a text and without them."""
    file = preferred(files)
    if file is None:
        raise InputError.at(("tokenizer",), "`tokenizer` names no tokenizer", "for example tokenizer.json")
    try:
        return with_tokenizer(file, lambda made: [list(made.encode(text, begins, 0)) for begins in (1, 0)])
    except InputError as error:
        raise InputError([replace(each, path=("tokenizer",)) for each in error.problems]) from None
