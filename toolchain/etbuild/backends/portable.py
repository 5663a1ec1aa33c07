"""ExecuTorch's portable operators: what runs all that no backend took."""

from __future__ import annotations

from etbuild.backends.backend import BuiltInBackend


class Portable(BuiltInBackend):
    """The backend `portable`. It delegates nothing, and has no options."""

    name = "portable"
    separable = True
    takes_the_rest = True
