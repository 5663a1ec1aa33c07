"""`etbuild inspect`: shows what is in a `.pte` or `.ptd`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path
from etbuild.errors import InputError, check_current_directory


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "inspect",
        "show what is in a .pte or .ptd",
        "The file may come from any ExecuTorch build. If the build's index and report are beside a .pte, it also shows "
        "why operators were not delegated, what a model can write instead, and which weights are stored more than "
        "once, or left in floats by `quantize`.",
    )
    add_path(parser, "FILE", "a .pte or a .ptd")
    how = parser.add_mutually_exclusive_group()
    add_flag(how, "--json", "print JSON")
    add_path(how, "--html PAGE", "write a page about a .pte, one HTML file, to PAGE")
    add_path(
        parser,
        "--against OTHER",
        "with --html: also show what differs from OTHER, a .pte, an index, or a directory that holds one index",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the facts of a file."""
    from etbuild.surroundings.library_output import library_messages_off

    check_current_directory()
    if options.against is not None and options.html is None:
        raise InputError.of("--against needs --html", "`etbuild diff` prints the differences of two programs")
    with library_messages_off():
        from etbuild.files import program_file
        from etkit import find_index
        from etkit.inspection import blob_names, details, program_text

        if options.html is not None:
            from etbuild.publishing import artifacts
            from etkit.inspection.page import of_file

            artifacts.replace(options.html, of_file.page(options.file, options.against))
            return 0
        facts = program_file.describe(options.file)
        index = find_index.index_beside(options.file, facts["sha256"])
        report = find_index.report_beside(options.file, facts["sha256"])
        found = program_text.NO_DETAILS
        if facts["kind"] == "program" and not options.json:
            found = details.find(options.file, facts, index[1] if index else None, report)
    if options.json:
        known = blob_names.of_report(report)
        named = {} if known is blob_names.NOT_KNOWN else {"blob_weights": known}
        print(json.dumps({**facts, **named}, indent=2, sort_keys=True))
    else:
        print(program_text.text(facts, report, found))
    return 0
