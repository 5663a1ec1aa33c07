"""Messages of libraries are hidden for a while, and shown again afterwards, also with several threads."""

from __future__ import annotations

import logging
import warnings
from contextlib import ExitStack

from etbuild.processes.library_output import library_messages_off


def test_uses_that_overlap_leave_the_settings_as_they_were() -> None:
    """Two threads can end in the order in which they began."""
    level, filters = logging.root.manager.disable, [*warnings.filters]
    first, second = ExitStack(), ExitStack()
    first.enter_context(library_messages_off())
    second.enter_context(library_messages_off(["models/net.py"]))
    first.close()
    assert logging.root.manager.disable == logging.ERROR
    second.close()
    assert logging.root.manager.disable == level
    assert warnings.filters == filters
