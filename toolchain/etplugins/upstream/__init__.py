"""Works around bugs of ExecuTorch and PyTorch.

A file is removed when upstream has fixed its limit. The name of a limit is in `tests/conformance/upstream_limits.py`,
where a probe shows the limit without the driver. `docs/upstream.md` says what upstream could change.
"""
