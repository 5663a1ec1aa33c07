"""The macro executorch_kernels_library: a C++ library that registers just the kernels that programs need."""

load("@rules_executorch_host//:cc.bzl", "CC_LIBRARY")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":cc_helpers.bzl", "group")
load(":common.bzl", "attribute_options")
load(":driver.bzl", "driver_arguments", "run_driver")
load(":macros.bzl", "helper_attributes")

# The names of the files in toolchain/etkit/native/kernels/registration.py.
_SOURCE = "RegisterCodegenUnboxedKernelsEverything.cpp"
_HEADERS = ["NativeFunctions.h", "selected_op_variants.h"]

def _kernels_files_impl(ctx):
    source, declarations, dtypes = [
        ctx.actions.declare_file("{}/{}".format(ctx.label.name, name))
        for name in [_SOURCE] + _HEADERS
    ]
    arguments = driver_arguments(ctx, "kernels")
    arguments.add(ctx.file.selected_ops)
    arguments.add("-o", source.dirname)
    arguments.add_all(attribute_options("functions", "--functions", []))
    arguments.add_all(ctx.files.functions, format_each = "--functions=%s")
    run_driver(
        ctx,
        arguments,
        inputs = [ctx.file.selected_ops] + ctx.files.functions,
        outputs = [source, declarations, dtypes],
        mnemonic = "ExecutorchKernels",
        progress = "Writing C++ that registers kernels for",
    )
    return [
        DefaultInfo(files = depset([source, declarations, dtypes])),
        OutputGroupInfo(headers = depset([declarations, dtypes]), sources = depset([source])),
    ]

_kernels_files = rule(
    implementation = _kernels_files_impl,
    attrs = {
        "functions": attr.label_list(allow_files = [".yaml", ".yml"]),
        "selected_ops": attr.label(allow_single_file = [".yaml", ".yml"], mandatory = True),
    },
    toolchains = [str(TOOLCHAIN_TYPE)],
)

def executorch_kernels_library(
        name,
        selected_ops,
        runtime,
        functions = [],
        srcs = [],
        dtypes = True,
        deps = [],
        copts = [],
        **kwargs):
    """A C++ library that registers the kernels that programs need, for the platform that is built for.

    ```starlark
    load("@rules_executorch//rules:cc.bzl", "executorch_kernels_library", "executorch_runtime")
    load("@rules_executorch//rules:defs.bzl", "executorch_program", "executorch_selected_ops")

    executorch_program(
        name = "net",
        srcs = ["model.py"],
        manifest = "net.yaml",
    )

    executorch_selected_ops(
        name = "selected_operators",
        programs = [":net"],
    )

    executorch_runtime(
        name = "runtime",
        kernels = False,
    )

    executorch_kernels_library(
        name = "kernels",
        srcs = glob(["kernels/*.cpp"]),
        runtime = ":runtime",
        selected_ops = ":selected_operators",
    )
    ```

    The kernels come from `srcs`, which are compiled with code for the selected dtypes only, or from libraries in `deps` that
    are built already. They must not register themselves, as ExecuTorch's `portable_ops_lib` and the wheel's kernels do. The
    linker takes those that are registered. [Kernels](../kernels.md#register-only-these-kernels) shows the
    targets around it for Android, iOS and Linux on arm.

    Args:
      name: string, the name of the `cc_library`.
      selected_ops: label of an `executorch_selected_ops`, or of a `selected_operators.yaml`.
      runtime: label of a `cc_library` with ExecuTorch's runtime and headers, without kernels. For this machine, that is
        an `executorch_runtime` with `kernels = False`.
      functions: list of labels, the kernels that there are, as YAML in the form of ExecuTorch's `functions.yaml`. Of several
        kernels for one operator, the one in the first file is taken. Default: ExecuTorch's portable and quantized kernels.
      srcs: list of labels, C++ sources of kernels, with more than the selected ones.
      dtypes: bool, whether `srcs` are compiled for the selected dtypes only. A kernel that meets another dtype then ends the
        process with an error in its log.
      deps: list of labels, more libraries for `srcs`: their headers, or kernels that are built already.
      copts: list of strings, more options for the compiler.
      **kwargs: more attributes of the `cc_library`.
    """
    helper = helper_attributes(kwargs)
    files, headers, kernels = name + "_files", name + "_headers", name + "_kernels"
    _kernels_files(name = files, functions = functions, selected_ops = selected_ops, **helper)
    for part in ["headers", "sources"]:
        group(name = "{}_{}".format(files, part), group = part, target = files, **helper)
    CC_LIBRARY(
        name = headers,
        hdrs = [":{}_headers".format(files)],
        includes = [files],
        **helper
    )
    options = {"copts": ["-std=c++17"] + copts}
    used = [":" + headers, runtime] + deps
    if srcs:
        CC_LIBRARY(
            name = kernels,
            srcs = srcs,
            local_defines = ["EXECUTORCH_SELECTIVE_BUILD_DTYPE"] if dtypes else [],
            deps = used,
            **dict(options, **helper)
        )
    CC_LIBRARY(
        name = name,
        srcs = [":{}_sources".format(files)],
        alwayslink = True,  # nothing refers to the object that registers kernels
        deps = used + ([":" + kernels] if srcs else []),
        **dict(options, **kwargs)
    )
