"""`etbuild card`: writes a model card about built programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser, add_path, add_repeatable, add_value


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "card",
        "write a model card about programs, as Hugging Face shows it",
        "Writes README.md into the directory: variants, sizes, what was measured, inputs and outputs, licenses.",
    )
    add_path(parser, "DIR", "a directory of builds, with those in its folders, or an index")
    add_path(parser, "-o, --out FILE", "write it to this file instead; `-` prints it")
    add_value(parser, "--base-model ID", "the model that it comes from, as Hugging Face calls it: OWNER/NAME")
    add_value(parser, "--pipeline-tag TAG", "the task, as Hugging Face calls it (default: that of the manifest)")
    add_repeatable(parser, "--language CODE", "a language of the model, such as en", dest="languages")
    add_repeatable(parser, "--tag TAG", "one more tag", dest="tags")


def run(options: argparse.Namespace) -> int:
    """Writes the card."""
    from etbuild.errors import InputError
    from etbuild.publishing import artifacts
    from etkit.publishing import builds, card

    asked = card.Asked(options.base_model, options.pipeline_tag, tuple(options.languages), tuple(options.tags))
    found = builds.read(options.dir)
    text = card.text(found, builds.left_out(options.dir, found), asked)
    if options.out == Path("-"):
        print(text, end="")
        return 0
    folder = options.dir if options.dir.is_dir() else options.dir.parent
    path = folder / card.FILE if options.out is None else options.out
    if card.is_foreign(path):
        raise InputError.of(f"{path}: `etbuild card` has not written this file", "name another one with -o")
    artifacts.replace(path, text.encode())
    print(path)
    return 0
