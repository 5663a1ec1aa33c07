"""`etbuild generate`: builds a language model, and lets ExecuTorch's runner continue a text."""

from __future__ import annotations

import argparse
import codecs
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import add_flag, add_manifest, add_parser, add_value, count, settings
from etbuild.errors import BuildError, EtbuildError, InputError, printable
from etbuild.files import json_file, regular_files
from etbuild.surroundings.process_state import stream_to
from etkit.building.sources import given_inputs
from etkit.building.verbs import build
from etkit.local.progress import speak
from etkit.running.generation.tokenizer_files import TEMPLATE, have_template, preferred

if TYPE_CHECKING:
    from etbuild.files.writing import Artifact
    from etbuild.key.declared import Inputs

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters, except tab and newline
_RESULT = re.compile(r'\s*(\[\s*)?\{\s*"role"')  # how a line with results of tools begins
_RESULT_EXAMPLE = '{"role": "tool", "name": "weather", "content": "sunny"}'
_TEXT, _ANSWER = 50, 512  # the default numbers of tokens


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "generate",
        "continue a text with a language model",
        "Builds the program, unless the cache has it, and runs it with ExecuTorch's runner for language models. "
        "The text goes to standard output. With --chat, each line of standard input is a turn. A program with the "
        "methods `draft` and `verify` uses them, unless there is a --temperature.",
    )
    add_manifest(parser)
    add_value(parser, "PROMPT", "the text to continue; with --chat, the first turn", nargs="?")
    add_flag(parser, "--chat", "answer turns of a user, with the chat template of the tokenizer")
    add_value(parser, "--system TEXT", "with --chat: what the model should know before the first turn")
    add_value(parser, "--tools FILE", "with --chat: a JSON list of the tools that the model may call", type=Path)
    add_flag(parser, "--shorten", "with --chat: leave out the oldest turns that the cache cannot hold")
    add_value(parser, "--tokens N", "write at most N tokens (default: 50; with --chat 512)", type=count)
    add_value(
        parser,
        "--temperature T",
        "draw tokens at random, more freely with a higher T (default: 0, always the most likely token)",
        type=_temperature,
        default=0.0,
    )
    build.add_options(parser)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or a larger number")
    return value


def run(options: argparse.Namespace) -> int:
    """Builds the program and prints the text that it generates."""
    from etbuild.manifest import validate
    from etbuild.manifest.sections import Model
    from etbuild.processes import forked
    from etkit.building.programs import build_each, programs_of
    from etplugins.transformers.sections import HuggingFace
    from etplugins.transformers.tasks import has_external_cache

    _check_prompt(options)
    tools = _tools(options.tools)
    loaded = validate.load_each(options.manifest, None, build.wanted(options), settings(options))
    if len(loaded) > 1:
        raise InputError.of("--variant: `generate` runs one program: name one variant")
    huggingface = loaded[0].data.get("model", Model()).get("huggingface") or HuggingFace()
    is_called_here = has_external_cache(huggingface) or "draft_layers" in huggingface
    for key, example in (("runner", "executorch-llm/v1"), ("tokenizer", "tokenizer.json")):
        if key not in loaded[0].data and not (key == "runner" and is_called_here):
            raise InputError.of(f"{options.manifest}: the manifest has no `{key}`", f"add `{key}: {example}`")
    runner = loaded[0].data.get("runner")
    if runner not in (None, "executorch-llm/v1"):
        hint = "run it in your application: see the page `Speech and translation` or the page `Images and text`"
        raise InputError.of(f"{options.manifest}: `generate` does not run programs for `{runner}`", hint)
    given = given_inputs(options, options.manifest.parent)
    tokenizer = _with_template(loaded[0].data["tokenizer"], given) if options.chat else []
    speak()
    options.restart()  # then a crash of the runner's native code is reported as an error
    if tools:
        what = "the check of `--tools`"  # in a child, since the processes of a build should not import transformers
        forked.run({what: partial(_check_tools, tokenizer, tools)}, 1)
    how = build.how_to_build(options)
    names, values = build.wanted(options), settings(options)
    programs = programs_of(loaded, (options.manifest, None), names, values, given)
    [(_, result)] = build_each(programs, options.directory, how, go_on=False).built
    adapters = loaded[0].data["model"].get("adapters", {})  # the runner calls `forward`, which does not use adapters
    artifacts = [each for each in result.artifacts if each.tag not in adapters]
    if options.chat:
        _chat(artifacts, tools, options)
    else:
        _generate(artifacts, options, is_called_here)
    return 0


def _check_prompt(options: argparse.Namespace) -> None:
    for option in ("system", "tools", "shorten"):
        if getattr(options, option) and not options.chat:
            raise InputError.of(f"`--{option}` goes with `--chat`")
    if options.prompt is None and not options.chat:
        raise InputError.of(
            "there is no PROMPT", "write the text to continue; `--chat` reads turns from standard input"
        )


def _tools(file: Path | None) -> list[dict[str, Any]]:
    """The tools of `--tools`."""
    try:
        tools = [] if file is None else json_file.parse(regular_files.read(file, json_file.MAX_BYTES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError.of(f"--tools: {file} cannot be read: {reason}") from None
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise InputError.of(f"--tools: {file} is not a list of objects", "write it as transformers' `tools` takes it")
    if file is not None and not tools:
        raise InputError.of(f"--tools: {file} has no tool", "name a tool, or leave out `--tools`")
    return tools


def _with_template(tokenizer: str | list[str], given: Inputs) -> list[Path]:
    """The files of a tokenizer. Refuses one without a chat template before the build."""
    names = [tokenizer] if isinstance(tokenizer, str) else tokenizer
    files = [given.find_data(name, ("tokenizer",)) for name in names]
    if not have_template(files):
        hint = f"add {TEMPLATE}, or the tokenizer_config.json that has the template, to `tokenizer`"
        raise InputError.of("`tokenizer` names no file with a chat template", hint)
    return files


def _check_tools(tokenizer: list[Path], tools: list[dict[str, Any]]) -> None:
    """Refuses tools that the chat template leaves out, before the build."""
    from etkit.running.generation.chat_tokenizer import ChatTokenizer

    with ChatTokenizer(tokenizer, tools) as reader:
        reader.check_tools()


def _chat(artifacts: list[Artifact], tools: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Answers the turns of a user. Prints each token as soon as it is there, and notes even after an error."""
    conversation: Conversation | None = None
    paths = {kind: [each.path for each in artifacts if each.kind == kind] for kind in ("named_data", "tokenizer")}
    [program] = [each.path for each in artifacts if each.kind == "program"]
    try:
        with tempfile.TemporaryDirectory() as scratch, _only_tokens() as write:
            from etkit.running.generation.chat_tokenizer import ChatTokenizer
            from etkit.running.generation.conversation import Conversation
            from etkit.running.generation.decoder import Decoder
            from etplugins.runtime import program_files

            with ChatTokenizer(paths["tokenizer"], tools) as tokenizer:
                decoder = Decoder(program_files.read(program, paths["named_data"]), Path(scratch))
                conversation = Conversation(decoder, tokenizer, options.system, options.temperature, options.shorten)
                for turn in _turns(options.prompt, write):
                    new = (_results(turn) if tools else None) or turn
                    for piece in conversation.answer(new, options.tokens or _ANSWER):
                        write(piece)
                    write("\n")
    finally:
        for note in conversation.notes if conversation is not None else []:
            print(f"note: {note}", file=sys.stderr)


def _results(line: str) -> list[dict[str, Any]] | None:
    """The messages of a line in JSON with results of tools: one object or a list. None for what a user says.

    Raises:
        InputError: The line begins as results do, or has one, and is not valid.
    """
    reason = "each object needs the role `tool`"
    try:
        found = json_file.parse(line.encode())
    except ValueError as error:
        found, reason = None, str(error)
    messages = found if isinstance(found, list) else [found]
    are_results = [isinstance(each, dict) and each.get("role") == "tool" for each in messages]
    if not any(are_results) and _RESULT.match(line) is None:
        return None
    if all(are_results):
        if all(isinstance(each.get("content"), str) for each in messages):
            return messages
        reason = "`content` is not text"
    hint = f"write such an object, or a list of them: {_RESULT_EXAMPLE}"
    raise InputError.of(f"a line is not a valid result of a tool: {reason}", hint)


def _turns(first: str | None, write: Callable[[str], None]) -> Iterator[str]:
    """Yields the turns of the user: the first one, and the lines of standard input that are not empty."""
    if first is not None:
        yield first
    with open(0, encoding="utf-8", errors="replace", closefd=False) as lines:
        asks = lines.isatty()
        while True:
            if asks:
                write("> ")
            line = lines.readline()
            if not line:
                write("\n" if asks else "")
                return
            if line.strip():
                yield line.rstrip("\r\n")


def _generate(artifacts: list[Artifact], options: argparse.Namespace, is_called_here: bool) -> None:
    """Runs ExecuTorch's runner, or only the program if the runner does not read the tokenizer right, or does not call
    the methods of the program."""
    from etplugins.tokenizer.conformance import difference

    [program] = [str(each.path) for each in artifacts if each.kind == "program"]
    data = [str(each.path) for each in artifacts if each.kind == "named_data"]
    tokenizers = [str(each.path) for each in artifacts if each.kind == "tokenizer"]
    if len(data) > 1:
        raise InputError.of("the runner takes one file of named data", "use one tag in `named_data`, without shards")
    tokenizer = preferred(tokenizers)
    if tokenizer is None:
        raise InputError.of("`tokenizer` names no tokenizer", "for example tokenizer.json")
    notes: list[str] = []
    if not is_called_here and difference(tokenizer) is None:
        _by_runner([program, tokenizer, *data], options)
    else:  # the build has noted it
        notes = _by_reference(program, data, tokenizer, options)
    print()
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _by_runner(files: list[str], options: argparse.Namespace) -> None:
    """Runs ExecuTorch's runner, which prints each token immediately."""
    program, tokenizer, *data = files
    if not options.prompt:
        raise InputError.of("the prompt is empty, and ExecuTorch's runner takes no such prompt", "write a text")
    with _only_tokens() as write:
        import executorch.kernels.quantized  # noqa: F401 - registers kernels, as the next line does
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
        from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

        from etplugins.tokenizer.runner_tokenizer import bytes_as_text, check

        check(tokenizer, options.prompt)
        # Hugging Face's tokenizers add all tokens that begin a text if `num_bos` is not 0.
        most = options.tokens or _TEXT
        how = GenerationConfig(echo=False, max_new_tokens=most, temperature=options.temperature, num_bos=1)
        runner = TextLLMRunner(program, tokenizer, *data)
        with bytes_as_text():
            runner.generate(options.prompt, how, write)


def _by_reference(program: str, data: list[str], tokenizer: str, options: argparse.Namespace) -> list[str]:
    """Runs the program with Hugging Face's tokenizer, and prints each token immediately. Returns notes on drafts."""
    with tempfile.TemporaryDirectory() as scratch, _only_tokens() as write:
        from etkit.running.generation.continuation import continuation
        from etkit.running.generation.decoder import Decoder
        from etplugins.runtime import program_files

        decoder = Decoder(program_files.read(Path(program), [*map(Path, data)]), Path(scratch))
        for piece in continuation(decoder, tokenizer, options.prompt, options.tokens or _TEXT, options.temperature):
            write(piece)
        return decoder.drafts.notes if decoder.drafts else []


class Text:
    """Turns the tokens of a text into whole characters. A token may be a part of a character.

    Attributes:
        terminal: Whether a terminal shows the text. Control characters are then escaped.
    """

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: str, last: bool = False) -> str:
        """Takes a token, and returns the characters that it completes.

        Args:
            token: The text of the token. Bytes that are not UTF-8 are surrogates.
            last: Whether the text ends here.
        """
        text = self._decoder.decode(token.encode("utf-8", "surrogateescape"), last)
        return _CONTROL.sub(lambda found: printable(found[0]), text) if self.terminal else text


@contextmanager
def _only_tokens() -> Iterator[Callable[[str], None]]:
    """Within this context, only what the yielded function gets is printed, and not the runner's tokens and logs."""
    from etbuild.exception_text import summary

    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as results, tempfile.TemporaryFile() as log:
        text = Text(results.isatty())

        def write(token: str, last: bool = False) -> None:
            results.write(text.add(token, last))
            results.flush()

        try:
            with stream_to(1, log.fileno()), stream_to(2, log.fileno()):
                yield write
            write("", last=True)
        except EtbuildError:
            raise
        except Exception as error:  # native code raises RuntimeError; its imports may raise any exception
            log.seek(0)
            lines = [
                re.sub(r"^\[[\w.]+:\d+\] ", "", line) for line in log.read().decode("utf-8", "replace").splitlines()
            ]
            message = f"ExecuTorch's runner failed: {summary(error)}"
            raise BuildError.of(message, printable(lines[-1]) if lines else None) from error
