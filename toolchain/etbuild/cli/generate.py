"""`etbuild generate`: builds a language model, and lets ExecuTorch's runner continue a text."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from etbuild.cli import build
from etbuild.cli.options import add_manifest, add_parser, settings
from etbuild.errors import BuildError, InputError, printable
from etbuild.processes.process_state import stream_to

if TYPE_CHECKING:
    from etbuild.files.artifacts import Artifact


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "generate",
        "continue a text with a language model",
        "Builds the program, unless the cache has it, and runs it with ExecuTorch's runner for language models. "
        "The text goes to standard output.",
    )
    add_manifest(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    parser.add_argument("--tokens", type=_count, default=50, metavar="N", help="write at most N tokens (default: 50)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="draw tokens at random, more freely with a higher T (default: 0, always the most likely token)",
    )
    build.add_options(parser)
    parser.set_defaults(run=run, stop_after=None, verify_reproducible=False)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Builds the program and prints the text that it generates."""
    from etbuild.manifest import validate

    loaded = validate.load_each(options.manifest, None, build.wanted(options), settings(options))
    if len(loaded) > 1:
        raise InputError.of("--variant: `generate` runs one program: name one variant")
    for key, example in (("runner", "executorch-llm/v1"), ("tokenizer", "tokenizer.json")):
        if key not in loaded[0].data:
            raise InputError.of(f"{options.manifest}: the manifest has no `{key}`", f"add `{key}: {example}`")
    options.restart()  # a crash of the runner's native code is then an error that says so
    built = build.build_program(options, loaded[0], several=False)
    assert built is not None
    _, result = built
    _generate(result.artifacts, options)
    return 0


def _generate(artifacts: list[Artifact], options: argparse.Namespace) -> None:
    """Runs ExecuTorch's runner, which prints each token when it is there.

    Raises:
        InputError: The program has more files than the runner takes, or no tokenizer that it reads.
        BuildError: The runner failed.
    """
    [program] = [str(each.path) for each in artifacts if each.kind == "program"]
    data = [str(each.path) for each in artifacts if each.kind == "named_data"]
    tokenizers = [str(each.path) for each in artifacts if each.kind == "tokenizer"]
    if len(data) > 1:
        raise InputError.of("the runner takes one file of named data", "use one tag in `named_data`, without shards")
    tokenizer = next((each for each in tokenizers if not each.endswith("config.json")), None)
    if tokenizer is None:
        raise InputError.of("`tokenizer` names no tokenizer", "for example tokenizer.json")
    with _only_tokens() as write:
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - registers kernels
        from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

        how = GenerationConfig(echo=False, max_new_tokens=options.tokens, temperature=options.temperature)
        runner = TextLLMRunner(program, tokenizer, *data)
        runner.generate(options.prompt, how, write)
    print()


@contextmanager
def _only_tokens() -> Iterator[Callable[[str], None]]:
    """Within this context, only what the yielded function gets is printed: the runner prints tokens and logs itself.

    Raises:
        BuildError: The code inside failed. The last line of the log says why.
    """
    from etbuild.exception_text import summary

    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as results, tempfile.TemporaryFile() as log:

        def write(token: str) -> None:
            results.write(token)
            results.flush()

        try:
            with stream_to(1, log.fileno()), stream_to(2, log.fileno()):
                yield write
        except Exception as error:  # the runner's native code raises RuntimeError, its imports anything
            log.seek(0)
            said = [
                re.sub(r"^\[[\w.]+:\d+\] ", "", line) for line in log.read().decode("utf-8", "replace").splitlines()
            ]
            message = f"ExecuTorch's runner failed: {summary(error)}"
            raise BuildError.of(message, printable(said[-1]) if said else None) from error
