"""Works around bugs of ExecuTorch and PyTorch, and avoids work of theirs whose result nobody uses.

A file is here if nothing else needs it: it goes when upstream has fixed what it names. A limit has its name in
`tests/conformance/upstream_limits.py`, where a probe meets it without the driver. What only saves time or memory is a
switch, in `accelerate`. `docs/upstream.md` says what upstream could change.
"""
