"""A conversation with a language model. Its text stays in the cache of the program from one turn to the next."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.errors import InputError
from etkit.running.generation.chat_tokenizer import ChatTokenizer, Message
from etkit.running.generation.decoder import Decoder


class Conversation:
    """A conversation.

    Args:
        decoder: The program.
        tokenizer: Its tokenizer.
        system: The instructions for the model before the first turn; None for none.
        temperature: How freely tokens are drawn; 0 for the most likely one.

    Attributes:
        messages: All turns.
        answers: The tokens of each answer.
        notes: What the user should know.
    """

    def __init__(self, decoder: Decoder, tokenizer: ChatTokenizer, system: str | None, temperature: float) -> None:
        self._decoder, self._tokenizer, self._temperature = decoder, tokenizer, temperature
        self._ends = decoder.ends | tokenizer.ends_of_turns()
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.answers: list[list[int]] = []
        self.notes: list[str] = []

    def answer(self, text: str, most: int) -> Iterator[str]:
        """Adds a turn of the user, and yields the answer in pieces. The answer becomes a turn when it ends.

        Args:
            text: What the user says.
            most: The largest number of tokens in the answer.

        Raises:
            InputError: The template refuses the conversation, or the conversation does not fit into the cache.
            BuildError: The runtime cannot run the program.
        """
        self.messages.append({"role": "user", "content": text})
        prompt = self._tokenizer.prompt(self.messages)
        if not 0 < len(prompt) <= self._decoder.context:
            message = f"the conversation has {len(prompt)} tokens, and the cache of the program {self._decoder.context}"
            raise InputError.of(message, "write a larger `max_length` of the cache, or begin a new conversation")
        self._note(self._tokenizer.note_on_runner(self.messages))
        tokens: list[int] = []
        self.answers.append(tokens)
        yield from self._tokenizer.pieces(self._tokens(prompt, tokens, most))
        self.messages.append({"role": "assistant", "content": self._tokenizer.text(tokens)})

    def _tokens(self, prompt: list[int], tokens: list[int], most: int) -> Iterator[int]:
        """Yields the tokens of an answer, and appends them to `tokens`."""
        for token in self._decoder.written(prompt, most, self._temperature):
            if token in self._ends:
                return
            tokens.append(token)
            yield token
        self._note(f"an answer was cut after {len(tokens)} tokens: `--tokens` and the cache are the limits")

    def _note(self, text: str | None) -> None:
        if text is not None and text not in self.notes:
            self.notes.append(text)
