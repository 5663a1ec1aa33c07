"""Works around bugs of ExecuTorch and PyTorch.

A file goes when upstream has fixed what it names. A limit has its name in `tests/conformance/upstream_limits.py`, where
a probe meets it without the driver. `docs/upstream.md` says what upstream could change.
"""
