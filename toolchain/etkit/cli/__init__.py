"""The verbs that people use, one in each module, with the functions `add` and `run` of `etbuild.cli`."""

VERBS = (
    "init",
    "gen",
    "validate",  # in `etbuild.cli`, as `plan`
    "plan",
    "build",
    "watch",
    "generate",
    "test",
    "run",
    "bench",
    "profile",
    "bundle",
    "explain",
    "inspect",
    "diff",
    "lock",
    "cache",
    "package",
    "push",
    "pull",
    "verify",
    "delta",
    "apply",
    "history",
    "sbom",
    "affected",
    "selected-ops",
    "kernels",
    "cpp",
    "ci-summary",
    "sizes",
)
"""The verbs that `etbuild --help` lists first, in its order."""
STEPS = ("page", "reproduce")
"""The verbs here that build rules run."""
HIDDEN = ("answer",)
"""The verbs that no help lists: the Python interface runs them."""
