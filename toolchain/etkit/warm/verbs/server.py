"""`etbuild server`: shows the warm processes of this user, or ends them."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from typing import Any

from etbuild.cli.options import add_parser
from etkit.warm import client, place


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "server",
        "show or end the processes that builds leave behind to start faster",
        "A build leaves a warm process behind, unless `CI` or `ETBUILD_NO_SERVER` is set. It ends after ten minutes "
        "without a build.",
    )
    parser.add_argument("action", choices=("status", "stop"), help="show them, or end them when their builds are done")


def run(options: argparse.Namespace) -> int:
    """Prints a line for each warm process."""
    stop = options.action == "stop"
    beginning = place.beginning()  # first: meanwhile it may begin to listen
    for path, process in beginning.items():
        if stop:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        print(f"{path}: process {process} {'ends' if stop else 'begins'}")
    sockets = [path for path in place.sockets() if path not in beginning]
    found = [(path, answer) for path in sockets if (answer := client.ask(path, {"stop": True} if stop else {}))]
    for path, answer in found:
        print(f"{path}: process {answer['pid']}, builds now: {answer['builds']}{', and ends then' if stop else ''}")
    if not found and not beginning:
        print("no warm process runs")
    return 0
