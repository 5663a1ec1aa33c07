"""Rules for the kernels that programs need. `defs.bzl` has them too."""

load(
    "//rules/private:selected_ops.bzl",
    _executorch_kernels_test = "executorch_kernels_test",
    _executorch_selected_ops = "executorch_selected_ops",
)

executorch_kernels_test = _executorch_kernels_test
executorch_selected_ops = _executorch_selected_ops
