"""Works around bugs of ExecuTorch and PyTorch, and avoids their work if its result is not used.

A file is here if nothing else needs it: it is removed when upstream has fixed its limit. The name of a limit is in
`tests/conformance/upstream_limits.py`, where a probe shows the limit without the driver. Code that only saves time or
memory is a switch, in `accelerate`. `docs/upstream.md` says what upstream could change.
"""
