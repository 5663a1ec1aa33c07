"""A conversation with a language model. Its text stays in the cache of the program from one turn to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etbuild.errors import InputError, counted
from etkit.running.generation.chat_tokenizer import ChatTokenizer, Message
from etkit.running.generation.decoder import Decoder

_AS_TEXT = (
    "results of tools follow an answer in which no call was found, so the chat template has all of it as text: "
    "`response_template` in tokenizer_config.json says how transformers finds calls"
)


class Conversation:
    """A conversation.

    Args:
        decoder: The program.
        tokenizer: Its tokenizer.
        system: The instructions for the model before the first turn; None for none.
        temperature: How freely tokens are drawn; 0 for the most likely one.
        shorten: Whether a conversation that the cache cannot hold loses its oldest turns. A turn is a message of the
            user and all messages until the next one of the user.

    Attributes:
        messages: The messages of the turns that are left, and those before the first turn.
        answers: The tokens of each answer.
        left_out: How many turns were left out.
    """

    def __init__(
        self, decoder: Decoder, tokenizer: ChatTokenizer, system: str | None, temperature: float, shorten: bool = False
    ) -> None:
        self._shorten, self.left_out = shorten, 0
        self._decoder, self._tokenizer, self._temperature = decoder, tokenizer, temperature
        self._ends = decoder.ends | tokenizer.ends_of_turns()
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.answers: list[list[int]] = []
        self._notes: list[str] = []

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        turns = "oldest turn was" if self.left_out == 1 else f"{self.left_out} oldest turns were"
        gone = f"the {turns} left out, because the conversation is longer than the cache of the program"
        drafts = self._decoder.drafts
        return [*self._notes, *([gone] if self.left_out else []), *(drafts.notes if drafts else [])]

    def answer(self, new: str | Sequence[Message], most: int) -> Iterator[str]:
        """Adds a turn of the user, and yields the answer in pieces. The answer becomes a message when it ends.

        Args:
            new: What the user says, or messages such as the results of tools.
            most: The largest number of tokens in the answer.

        Raises:
            InputError: The template refuses the conversation, or the conversation does not fit into the cache.
            BuildError: The runtime cannot run the program.
        """
        if not isinstance(new, str) and self.answers and "tool_calls" not in self.messages[-1]:
            self._note(_AS_TEXT)
        self.messages += [{"role": "user", "content": new}] if isinstance(new, str) else new
        prompt = self._prompt(most)
        self._note(self._tokenizer.note_on_runner(self.messages))
        tokens: list[int] = []
        self.answers.append(tokens)
        yield from self._tokenizer.pieces(self._tokens(prompt, tokens, most))
        self.messages.append(self._tokenizer.message(prompt, tokens))

    def _prompt(self, most: int) -> list[int]:
        """The tokens of the conversation, which loses its oldest turns if it may and has to.

        An answer of `most` tokens should fit too, or one of a quarter of the cache if that is less. If not even the
        newest turn leaves so much, it has the whole cache.
        """
        context = self._decoder.context
        prompt = self._tokenizer.prompt(self.messages)
        while self._shorten and len(prompt) + min(most, context // 4) > context:
            users = [at for at, each in enumerate(self.messages) if each["role"] == "user"]
            if len(users) < 2:
                break
            del self.messages[users[0] : users[1]]
            self.left_out += 1
            prompt = self._tokenizer.prompt(self.messages)
        if len(prompt) > context:
            what = "newest turn" if self._shorten else "conversation"
            other = "a shorter turn" if self._shorten else "`--shorten` to leave out the oldest turns"
            message = f"the {what} has {len(prompt)} tokens, and the cache of the program {context}"
            raise InputError.of(message, f"write a larger `max_length` of the cache, or {other}")
        return prompt

    def _tokens(self, prompt: list[int], tokens: list[int], most: int) -> Iterator[int]:
        """Yields the tokens of an answer, and appends them to `tokens`."""
        for token in self._decoder.written(prompt, most, self._temperature):
            if token in self._ends:
                return
            tokens.append(token)
            yield token
        cut = counted(len(tokens), "token")
        self._note(f"an answer was cut after {cut}: `--tokens` and the cache are the limits")

    def _note(self, text: str | None) -> None:
        if text is not None and text not in self._notes:
            self._notes.append(text)
