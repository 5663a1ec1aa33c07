"""Build rules that turn PyTorch models into ExecuTorch programs.

    load(
        "@rules_executorch//rules:defs.bzl",
        "executorch_library",
        "executorch_lock",
        "executorch_named_data",
        "executorch_program",
    )

    executorch_library(
        name = "backbone",
        srcs = ["backbone.py"],
    )

    executorch_program(
        name = "classifier",          # the manifest's `name`
        manifest = "classifier.yaml",
        srcs = ["classifier.py"],     # imported as in a script beside the manifest: `import classifier`
        weights = ["weights.safetensors"],
        named_data = ["backbone"],    # the manifest's tags: each is a file of its own
        deps = [":backbone"],
    )

    executorch_named_data(
        name = "backbone_weights",
        program = ":classifier",
        tag = "backbone",
    )

    executorch_lock(                  # `bazel run :update` writes it, `bazel test :update_test` compares
        name = "update",
        lock = "classifier.lock.json",
        program = ":classifier",
    )

`bazel build :classifier` writes `classifier.pte`, `classifier.backbone.ptd` and `classifier.index.json`.
"""

load("//rules:providers.bzl", _ExecutorchLibraryInfo = "ExecutorchLibraryInfo", _ExecutorchProgramInfo = "ExecutorchProgramInfo")
load("//rules/private:library.bzl", _executorch_library = "executorch_library")
load("//rules/private:lock.bzl", _executorch_lock = "executorch_lock")
load("//rules/private:named_data.bzl", _executorch_named_data = "executorch_named_data")
load("//rules/private:program.bzl", _executorch_program = "executorch_program")
load("//toolchain:toolchain.bzl", _executorch_toolchain = "executorch_toolchain")

ExecutorchLibraryInfo = _ExecutorchLibraryInfo
ExecutorchProgramInfo = _ExecutorchProgramInfo
executorch_library = _executorch_library
executorch_lock = _executorch_lock
executorch_named_data = _executorch_named_data
executorch_program = _executorch_program
executorch_toolchain = _executorch_toolchain
