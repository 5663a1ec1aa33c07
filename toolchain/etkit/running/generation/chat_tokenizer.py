"""The tokenizer of a chat. It turns conversations into tokens as transformers does, with the chat template.

A template is a program of somebody else. transformers runs it in the sandbox of jinja2.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from etbuild.errors import BuildError, InputError
from etbuild.exception_text import summary
from etbuild.extras import install_hint
from etkit.running.generation.tokenizer_files import SETTINGS, TEMPLATE, preferred
from etplugins.tokenizer.limited import Limited
from etplugins.tokenizer.runner_tokenizer import of_runner
from etplugins.transformers import offline

Message = Mapping[str, Any]
"""`role` (system, user, assistant or tool) and `content`, and what else the template reads."""

_RENDERING = 10.0  # seconds of processor time; a template takes milliseconds
_MARK = "qzx"  # a text that no template contains; it stands for an answer
_HINT = f"name {TEMPLATE}, or the tokenizer_config.json that has the template, in `tokenizer`"


class ChatTokenizer:
    """The tokenizer of a program, with its chat template. It works in a process of its own: end it with `with`.

    Args:
        files: The files of the tokenizer. Other files beside them are not read.
        tools: The tools that the model may call, in the form that the template takes. With tools, an answer keeps its
            special tokens, since the marks of a call may be special.

    Raises:
        InputError: They are no tokenizer that transformers reads, or they have no chat template.
        BuildError: transformers is not installed, or the process was killed.
    """

    def __init__(self, files: Sequence[Path], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        file, names = preferred(map(str, files)), [each.name for each in files]
        name = Path(file).name if file else ", ".join(names)
        self._fails = f"{name}: the tokenizer fails"
        self._template_fails = f"{TEMPLATE if TEMPLATE in names else SETTINGS[0]}: the chat template fails"
        self._runner_fails = f"{name}: ExecuTorch's tokenizer fails"
        classes = _classes()  # imported before the process starts, so that a failed import is reported as such
        self._reader = Limited(f"{name}: the tokenizer cannot be read", partial(_Reader, classes, files, file, tools))

    def __enter__(self) -> ChatTokenizer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._reader.end()

    def check_tools(self) -> None:
        """Refuses tools that the template leaves out.

        Raises:
            InputError: It does.
        """
        if self._reader.call(self._template_fails, "ignores_tools", seconds=_RENDERING):
            raise InputError.of("`--tools`: the chat template of this model takes no tools")

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, followed by those that begin an answer.

        Raises:
            InputError: The template refuses the conversation, or does not end.
        """
        return self._encoded(self._rendered(messages))

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer, without special tokens unless there are tools."""
        return str(self._reader.call(self._fails, "text", [*tokens]))

    def message(self, prompt: Sequence[int], tokens: Sequence[int]) -> Message:
        """An answer as a message. With tools, transformers splits it into text and `tool_calls`, if the tokenizer has a
        `response_template`. Otherwise, or if a call in it is not whole, `content` is all of its text.

        Args:
            prompt: The tokens before the answer.
            tokens: Those of the answer.
        """
        message: Message = self._reader.call(self._fails, "message", [*prompt], [*tokens], seconds=_RENDERING)
        return message

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yields the text of an answer in pieces of whole characters: a token may be a part of a character."""
        taken, shown = list[int](), ""
        for token in tokens:
            taken.append(token)
            text = self.text(taken)
            if text.startswith(shown) and not text.endswith("\ufffd"):
                yield text[len(shown) :]
                shown = text
        yield self.text(taken)[len(shown) :]

    def ends_of_turns(self) -> set[int]:
        """The token that the template writes after an answer. Empty if it is not an added token of the tokenizer."""
        found: set[int] = self._reader.call(self._template_fails, "ends_of_turns", seconds=_RENDERING)
        return found

    def note_on_runner(self, messages: Sequence[Message]) -> str | None:
        """A note for applications that use ExecuTorch's tokenizer for a conversation. None if it makes the same tokens,
        or if the file is not Hugging Face's."""
        note: str | None = self._reader.call(self._runner_fails, "note_on_runner", self._rendered(messages))
        return note

    def _rendered(self, messages: Sequence[Message]) -> str:
        return str(
            self._reader.call(self._template_fails, "rendered", [*map(dict, messages)], True, seconds=_RENDERING)
        )

    def _encoded(self, text: str) -> list[int]:
        return [*self._reader.call(self._fails, "encoded", text)]


class _Reader:
    """The tokenizer, inside its process.

    Args:
        classes: The classes that read it.
        files: Its files.
        file: The one that ExecuTorch's runner reads; None if there is none.
        tools: The tools that the model may call.
    """

    def __init__(
        self, classes: tuple[Any, Any], files: Sequence[Path], file: str | None, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        auto, basic = classes
        with tempfile.TemporaryDirectory() as directory:
            for each in files:
                shutil.copy(each, directory)
            try:
                made = auto.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
            except (KeyError, OSError, ValueError):  # for example, the settings name no class
                made = basic.from_pretrained(directory, local_files_only=True)
        if not made.chat_template:
            raise InputError.of("the tokenizer has no chat template", _HINT)
        self._tokenizer, self._file, self._tools = made, file, [*tools] or None
        self._knows_calls = bool(tools) and made.response_template is not None
        if self._knows_calls:
            made.get_response_parser(prefix="")  # fails if it is no such template

    def rendered(self, messages: Sequence[Message], goes_on: bool) -> str:
        template = self._tokenizer.apply_chat_template
        return str(template(messages, tools=self._tools, tokenize=False, add_generation_prompt=goes_on))

    def ignores_tools(self) -> bool:
        asked, template = [{"role": "user", "content": _MARK}], self._tokenizer.apply_chat_template
        return self._tools is not None and self.rendered(asked, True) == template(
            asked, tokenize=False, add_generation_prompt=True
        )

    def encoded(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=not self._tools))

    def message(self, prompt: Sequence[int], tokens: Sequence[int]) -> Message:
        message = {"role": "assistant", "content": self.text(tokens)}
        if self._knows_calls:
            with suppress(KeyError, ValueError):  # such as JSON without its end
                before = self._tokenizer.decode(prompt)
                found = self._tokenizer.parse_response(message["content"], prefix=before, tools=self._tools)
                return {**message, "content": "", **found}
        return message

    def ends_of_turns(self) -> set[int]:
        turns = [{"role": "user", "content": _MARK}, {"role": "assistant", "content": _MARK}]
        with suppress(Exception):  # a template may refuse these messages
            after = self.rendered(turns, False).rpartition(_MARK)[2]
            return {*self.encoded(after.lstrip())[:1]} & {*self._tokenizer.added_tokens_decoder}
        return set()

    def note_on_runner(self, text: str) -> str | None:
        if self._file is None or not self._file.endswith(".json"):
            return None
        try:
            tokens = of_runner(self._file).encode(text, 0, 0)
        except RuntimeError as error:
            return f"ExecuTorch's tokenizer cannot read this conversation: {summary(error)}"
        same = list(tokens) == self.encoded(text)
        return None if same else "ExecuTorch's tokenizer makes other tokens of this conversation than transformers"


def _classes() -> tuple[Any, Any]:
    """The two classes of transformers that read a tokenizer: for settings that name a class, and for others."""
    try:
        transformers = offline.transformers()
        return transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast
    except ImportError as error:
        message = f"`--chat` needs transformers, which cannot be imported: {error}"
        raise BuildError.of(message, install_hint("huggingface")) from None
