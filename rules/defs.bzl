"""The rules: they build ExecuTorch programs from PyTorch models.

```starlark
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
    name = "classifier",         # the `name` in the manifest
    srcs = ["classifier.py"],    # next to the manifest: `import classifier`
    manifest = "classifier.yaml",
    named_data = ["backbone"],   # the tags in the manifest
    weights = ["weights.safetensors"],
    deps = [":backbone"],
)

executorch_named_data(
    name = "backbone_weights",
    program = ":classifier",
    tag = "backbone",
)

executorch_lock(
    name = "update",
    lock = "classifier.lock.json",
    program = ":classifier",
)
```

`bazel build :classifier` writes `classifier.pte`, `classifier.backbone.ptd` and `classifier.index.json`.
`bazel run :update` writes the lockfile, and `bazel test :update_test` fails if the program is not the one of the lockfile.
"""

load(
    "//rules:providers.bzl",
    _ExecutorchExportInfo = "ExecutorchExportInfo",
    _ExecutorchLibraryInfo = "ExecutorchLibraryInfo",
    _ExecutorchLoweredInfo = "ExecutorchLoweredInfo",
    _ExecutorchProgramInfo = "ExecutorchProgramInfo",
    _ExecutorchProgramInputsInfo = "ExecutorchProgramInputsInfo",
)
load("//rules/private:benchmark.bzl", _executorch_benchmark = "executorch_benchmark")
load("//rules/private:checkpoints.bzl", _executorch_checkpoints = "executorch_checkpoints")
load("//rules/private:library.bzl", _executorch_library = "executorch_library")
load("//rules/private:lock.bzl", _executorch_lock = "executorch_lock")
load("//rules/private:named_data.bzl", _executorch_named_data = "executorch_named_data")
load("//rules/private:package.bzl", _executorch_package = "executorch_package")
load("//rules/private:program.bzl", _PROGRAM_ATTRS = "PROGRAM_ATTRS")
load("//rules/private:programs.bzl", _executorch_program = "executorch_program", _executorch_programs = "executorch_programs")
load("//rules/private:push.bzl", _executorch_push = "executorch_push")
load(
    "//rules/private:selected_ops.bzl",
    _executorch_kernels_test = "executorch_kernels_test",
    _executorch_selected_ops = "executorch_selected_ops",
)
load("//rules/private:size_report.bzl", _executorch_size_report = "executorch_size_report")
load("//rules/private:test.bzl", _executorch_program_test = "executorch_program_test")
load("//rules/private:test_suite.bzl", _executorch_program_test_suite = "executorch_program_test_suite")
load("//toolchain:py_toolchain.bzl", _executorch_py_toolchain = "executorch_py_toolchain")
load("//toolchain:toolchain.bzl", _executorch_toolchain = "executorch_toolchain")

ExecutorchExportInfo = _ExecutorchExportInfo
ExecutorchLibraryInfo = _ExecutorchLibraryInfo
ExecutorchLoweredInfo = _ExecutorchLoweredInfo
ExecutorchProgramInfo = _ExecutorchProgramInfo
ExecutorchProgramInputsInfo = _ExecutorchProgramInputsInfo

# The attributes of executorch_program, for rules of your own that call the functions of actions.bzl.
PROGRAM_ATTRS = _PROGRAM_ATTRS

executorch_benchmark = _executorch_benchmark
executorch_checkpoints = _executorch_checkpoints
executorch_kernels_test = _executorch_kernels_test
executorch_library = _executorch_library
executorch_lock = _executorch_lock
executorch_named_data = _executorch_named_data
executorch_package = _executorch_package
executorch_program = _executorch_program
executorch_program_test = _executorch_program_test
executorch_program_test_suite = _executorch_program_test_suite
executorch_programs = _executorch_programs
executorch_push = _executorch_push
executorch_py_toolchain = _executorch_py_toolchain
executorch_selected_ops = _executorch_selected_ops
executorch_size_report = _executorch_size_report
executorch_toolchain = _executorch_toolchain
