"""`etbuild server`: shows the warm processes of this user, or ends them."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_parser
from etplugins.warm import messages, place

_SECONDS = 10.0


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
    found = list(asked({"stop": True} if options.action == "stop" else {}))
    for path, answer in found:
        said = "ends" if options.action == "stop" else f"process {answer['pid']}, {answer['builds']} builds"
        print(f"{path}: {said}")
    if not found:
        print("no warm process runs")
    return 0


def asked(message: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Asks each warm process of this user. Yields those that answer, and removes what others have left.

    Args:
        message: The message.
    """
    for path in place.sockets():
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(_SECONDS)
            try:
                channel.connect(str(path))
                messages.send(channel, message)
                yield path, messages.receive(channel)[0]
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except (EOFError, OSError):
                continue
