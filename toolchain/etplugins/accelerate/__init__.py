"""Avoids work of ExecuTorch and PyTorch if its result is not used, with switches that replace their functions.

Each switch is a context manager in its own file, which explains what the switch saves and why the result does not
change. All are written for one version of both packages, and stay off for other versions: `etbuild.releases.fitting`.
`docs/upstream.md` describes each as a change to PyTorch or ExecuTorch, and how much time or memory it saves.
"""
