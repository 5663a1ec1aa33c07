"""The workloads that are measured: methods on their inputs, and texts of a decoder with a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from etbuild.errors import InputError
from etplugins.runtime.program_files import ProgramFiles

if TYPE_CHECKING:
    from etbuild.results import ProgramMethod, TensorValue

_PROMPT, _NEW = 64, 32  # tokens, if the cache has room for them
_ENCODED = 3  # the number of dimensions of an encoder's output
_LENGTHS = ("get_max_context_len", "get_max_seq_len")


@dataclass(frozen=True)
class Decoder:
    """A decoder with a cache, from the program's own facts.

    Attributes:
        prefill: The method that takes a whole prompt; None if there is none.
        decode: The method that takes one token.
        length: The number of tokens for which the cache has room.
        vocabulary: The number of different tokens; None if the program does not say it.
        prompt: The number of tokens of a prompt; 0 without `prefill`.
        new: The number of tokens after the prompt, one in each call.
        positions: By method, the number of the input with positions, and whether it has a position for each token.
    """

    prefill: str | None
    decode: str
    length: int
    vocabulary: int | None
    prompt: int
    new: int
    positions: Mapping[str, tuple[int, bool]]

    @property
    def methods(self) -> list[str]:
        """The methods that it calls."""
        return list(dict.fromkeys(each for each in (self.prefill, self.decode) if each is not None))


@dataclass(frozen=True)
class Workload:
    """What one process measures.

    Attributes:
        inputs: The inputs of each method that it calls.
        source: Where they come from: `manifest`, `sizes`, `options` or `random`.
        decoder: The decoder, if calls continue a text; otherwise None, and the same call is repeated.
    """

    inputs: Mapping[str, list[Any]]
    source: str
    decoder: Decoder | None = field(default=None)

    @property
    def name(self) -> str:
        """The methods, for messages."""
        return " and ".join(f"`{name}`" for name in self.inputs)

    @cached_property
    def calls(self) -> list[TimedCall]:
        """The calls of one pass: one call of the method, or the calls of a text from the start of the cache."""
        if self.decoder is None:
            return [TimedCall(method, method, inputs) for method, inputs in self.inputs.items()]
        return [*_text(self.decoder, self.inputs)]


@dataclass(frozen=True)
class TimedCall:
    """A call.

    Attributes:
        phase: The phase it belongs to: the method, or `prefill` or `decode` of a decoder.
        method: The method.
        inputs: Its inputs.
        tokens: The number of its tokens if it is a call of a decoder; otherwise 0.
    """

    phase: str
    method: str
    inputs: list[Any]
    tokens: int = 0


# Decoders


def find_decoder(files: ProgramFiles, prompt: int | None, new: int | None) -> Decoder | None:
    """Finds out whether a program is a decoder with a cache.

    It is one if its constant methods say that it uses a cache, and the length of the cache, under the names that
    ExecuTorch's runners use, and if a method takes a token and its position.

    Args:
        files: The program.
        prompt: The wished number of tokens of a prompt.
        new: The wished number of tokens after it.

    Raises:
        InputError: The cache or the method has no room for so many tokens.
    """
    methods = files.facts["methods"]
    constants = {name: each["outputs"][0].get("value") for name, each in methods.items() if is_constant(each)}
    length = next((constants[name] for name in _LENGTHS if name in constants), None)
    if constants.get("use_kv_cache") is not True or not isinstance(length, int) or length < 2:
        return None
    positioned = [name for name, each in methods.items() if _position(each) is not None and _tokens(each) is not None]
    one = [name for name in positioned if _widths(methods[name])[0] == 1]
    if not one:
        return None
    decode = min(one, key=lambda name: _widths(methods[name])[1])  # preferably one that takes only one token
    prefill = _prefill(files, decode, length)
    prompt, new = _lengths(methods, prefill, length, (prompt, new))
    size = constants.get("get_vocab_size")
    vocabulary = size if isinstance(size, int) and size > 0 else None
    called = [name for name in (prefill, decode) if name is not None]
    positions = {name: found for name in called if (found := _position(methods[name])) is not None}
    return Decoder(prefill, decode, length, vocabulary, prompt, new, positions)


def is_constant(method: ProgramMethod) -> bool:
    """Whether a method only returns constants."""
    return not (method["inputs"] or method["operators"] or method["delegates"]) and bool(method["outputs"])


def _prefill(files: ProgramFiles, decode: str, length: int) -> str | None:
    """The method that takes a whole prompt, and shares its cache with `decode`."""
    methods = files.facts["methods"]
    if _widths(methods[decode])[1] > 1:
        return decode
    others = [
        name
        for name, each in methods.items()
        if files.shares_state and _tokens(each) is not None and _widths(each)[1] > 1 and _widths(each)[0] < length
    ]
    with_position = [name for name in others if _position(methods[name]) is not None]
    return next(iter([*with_position, *(name for name in others if len(methods[name]["inputs"]) == 1)]), None)


def _lengths(
    methods: Mapping[str, ProgramMethod], prefill: str | None, length: int, wanted: tuple[int | None, int | None]
) -> tuple[int, int]:
    """The number of tokens in the prompt, and the number after it."""
    prompt, new = wanted
    if prefill is None:
        if prompt:
            raise InputError.of("--prompt-tokens: the program has no method that takes a prompt")
        prompt = 0
    else:
        least, most = _widths(methods[prefill])
        most = min(most, length - 1)
        if prompt is None:
            prompt = max(min(_PROMPT, length // 2, most), least)
        if not least <= prompt <= most:
            raise InputError.of(f"--prompt-tokens {prompt}: `{prefill}` and its cache take {least} to {most} tokens")
    if new is None:
        new = min(_NEW, length - prompt)
    if not 1 <= new <= length - prompt:
        message = f"--new-tokens {new}: the cache has {length} places, so 1 to {length - prompt} follow the prompt"
        raise InputError.of(message)
    return prompt, new


def _tokens(method: ProgramMethod) -> TensorValue | None:
    """The first input of a method if it holds tokens or their embeddings; else None."""
    first = next(iter(method["inputs"]), None)
    if first is None or "dtype" not in first:
        return None
    whole = first["dtype"] in ("int64", "int32")
    return first if len(first["shape"]) == (2 if whole else 3) and first["shape"][0] == 1 else None


def _widths(method: ProgramMethod) -> tuple[int, int]:
    """The smallest and the largest number of tokens that a method takes. The program says only the largest one."""
    first = _tokens(method)
    assert first is not None
    largest: int = first["shape"][1]
    return (1 if first["dynamic"] else largest), largest


def _position(method: ProgramMethod) -> tuple[int, bool] | None:
    """The number of the input with positions, and whether it has one for each token; None if there is no such input."""
    found: list[tuple[int, bool]] = []
    for number, each in enumerate(method["inputs"]):
        if number == 0 or "dtype" not in each:
            continue
        if each["dtype"] == "int64" and len(each["shape"]) == 1 and (each["shape"] == [1] or each["dynamic"]):
            found.append((number, each["dynamic"]))
        elif each["dynamic"] and len(each["shape"]) != _ENCODED:  # its size may be the number of tokens
            return None
    return found[0] if len(found) == 1 else None


def _text(decoder: Decoder, inputs: Mapping[str, list[Any]]) -> Iterator[TimedCall]:
    """The calls of one text."""
    if decoder.prefill is not None:
        given = _at(decoder, decoder.prefill, inputs[decoder.prefill], 0, decoder.prompt)
        yield TimedCall("prefill", decoder.prefill, given, decoder.prompt)
    for position in range(decoder.prompt, decoder.prompt + decoder.new):
        yield TimedCall("decode", decoder.decode, _at(decoder, decoder.decode, inputs[decoder.decode], position, 1), 1)


def _at(decoder: Decoder, method: str, inputs: Sequence[Any], position: int, count: int) -> list[Any]:
    """The inputs of a decoder's method for tokens at a position."""
    given = [_drawn(decoder, inputs[0], position, count), *inputs[1:]]
    if method in decoder.positions:
        number, of_each = decoder.positions[method]
        given[number] = torch.arange(position, position + (count if of_each else 1))
    return given


def _drawn(decoder: Decoder, example: torch.Tensor, position: int, count: int) -> torch.Tensor:
    """Random tokens or embeddings. Without the size of the vocabulary, the tokens are those of the example."""
    generator = torch.Generator().manual_seed(position)
    if example.is_floating_point():
        return torch.randn((1, count, example.shape[2]), generator=generator).to(example.dtype)
    known = example.flatten()
    drawn = torch.randint(0, decoder.vocabulary or len(known), (1, count), generator=generator)
    return drawn.to(example.dtype) if decoder.vocabulary else known[drawn]
