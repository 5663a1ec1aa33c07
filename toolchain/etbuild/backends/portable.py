"""ExecuTorch's portable operators. They run everything that no backend takes."""

from __future__ import annotations

from etbuild.backends.backend import BuiltInBackend


class Portable(BuiltInBackend):
    """The backend `portable`. It delegates nothing, and has no options."""

    name = "portable"
    separable = True
    takes_the_rest = True
