"""Avoids work of ExecuTorch and PyTorch whose result nobody uses, with switches that replace functions of theirs.

Each switch is a context manager in its own file, which explains what the switch saves and why the result does not
change. All are written for one version of both packages, and stay off for other versions: `etbuild.releases.fitting`.
`docs/upstream.md` describes each as a change to PyTorch or ExecuTorch, and how much time or memory it saves.
"""
