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
    "//rules:kernels.bzl",
    _executorch_kernels_test = "executorch_kernels_test",
    _executorch_selected_ops = "executorch_selected_ops",
)
load(
    "//rules:package.bzl",
    _executorch_package = "executorch_package",
    _executorch_push = "executorch_push",
    _executorch_size_report = "executorch_size_report",
)
load(
    "//rules:program.bzl",
    _executorch_checkpoints = "executorch_checkpoints",
    _executorch_library = "executorch_library",
    _executorch_lock = "executorch_lock",
    _executorch_named_data = "executorch_named_data",
    _executorch_program = "executorch_program",
    _executorch_programs = "executorch_programs",
)
load(
    "//rules:providers.bzl",
    _ExecutorchExportInfo = "ExecutorchExportInfo",
    _ExecutorchLibraryInfo = "ExecutorchLibraryInfo",
    _ExecutorchLoweredInfo = "ExecutorchLoweredInfo",
    _ExecutorchProgramInfo = "ExecutorchProgramInfo",
    _ExecutorchProgramInputsInfo = "ExecutorchProgramInputsInfo",
)
load(
    "//rules:test.bzl",
    _executorch_benchmark = "executorch_benchmark",
    _executorch_program_test = "executorch_program_test",
    _executorch_program_test_suite = "executorch_program_test_suite",
)
load(
    "//rules:toolchain.bzl",
    _executorch_py_toolchain = "executorch_py_toolchain",
    _executorch_toolchain = "executorch_toolchain",
)

ExecutorchExportInfo = _ExecutorchExportInfo
ExecutorchLibraryInfo = _ExecutorchLibraryInfo
ExecutorchLoweredInfo = _ExecutorchLoweredInfo
ExecutorchProgramInfo = _ExecutorchProgramInfo
ExecutorchProgramInputsInfo = _ExecutorchProgramInputsInfo

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
