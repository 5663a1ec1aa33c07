"""Speeds up lowering without changing its bytes, with switches that replace functions of PyTorch and ExecuTorch.

Each switch is a context manager in its own file, which says what the switch saves and why the result stays the same.
All switches are written for one version of both packages, and stay off for other versions: `releases.fitting`.
`docs/upstream.md` describes each switch as a change to PyTorch or ExecuTorch, and how much time or memory it saves.
"""
