"""Looks for linear layers in a delegate without printing it. XNNPACK's pass formats the whole delegate twice for debug
messages, even if debug messages are off."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from executorch.backends.xnnpack._passes import convert_to_linear
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.exir.pass_base import PassResult
from torch.fx import GraphModule

from etbuild.patching import replaced


def _unread(module: GraphModule, *arguments: Any, **options: Any) -> str:
    return ""


@contextlib.contextmanager
def convert_without_printing() -> Iterator[None]:
    """Returns a context manager in which the pass prints delegates only for a debug message that is shown."""
    convert = ConvertToLinearPass.call

    def call(self: ConvertToLinearPass, module: GraphModule) -> PassResult:
        if convert_to_linear.logger.isEnabledFor(logging.DEBUG):
            return convert(self, module)
        with replaced(GraphModule, "print_readable", _unread):
            return convert(self, module)

    with replaced(ConvertToLinearPass, "call", call):
        yield
