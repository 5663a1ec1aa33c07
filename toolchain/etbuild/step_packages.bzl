"""Which packages of the driver each step runs. A step's key holds their code; `toolchain/steps.bzl` says what actions have.

A package without a row surrounds the steps: it can make a step fail, and gives no value to what a step writes. It is in no
key. `""` are the modules beside the packages. A test holds that steps import no other packages. Plug-ins have no rows: a step
runs those that the program uses, and `rules/private/facts.bzl` has those that all programs use. Two of them surround the steps:
what watches models, and the worker of Bazel.
"""

STEP_PACKAGES = {
    "": ["compare", "export", "lower", "plan", "report"],
    "backends": ["compare", "export", "lower", "plan", "report"],
    "emit": ["lower"],
    "export": ["compare", "export", "lower"],
    "files": ["compare", "export", "lower", "plan", "report"],
    "inputs": ["compare", "export", "lower", "plan", "report"],
    "lower": ["lower"],
    "manifest": ["plan", "report"],
    "model": ["compare", "export", "lower"],
    "plan": ["compare", "export", "lower", "plan", "report"],
    "report": ["report"],
    "steps": ["compare", "export", "lower", "plan", "report"],
    "surroundings": ["compare", "export", "lower", "plan", "report"],
    "version": ["report"],
}

# Directories of the core that no action has: files for CMake.
COMMAND_LINE_PACKAGES = ["cmake"]
