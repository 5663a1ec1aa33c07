"""The rules executorch_selected_ops and executorch_kernels_test: the kernels that programs need."""

load("//rules:providers.bzl", "ExecutorchExportInfo", "ExecutorchProgramInfo")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":driver.bzl", "driver_arguments", "run_driver")
load(":driver_script.bzl", "DRIVER_SCRIPT_ATTRS", "driver_script", "lines_of")
load(":program_arguments.bzl", "located")
load(":program_attribute.bzl", "program_info", "programs_attribute")

def _programs(ctx):
    """Returns the programs of a target, and for each the lines of its sources."""
    return (
        [program_info(program, "programs").pte for program in ctx.attr.programs],
        [program[ExecutorchExportInfo].lines for program in ctx.attr.programs],
    )

def _list_kernels(ctx):
    """Declares ExecutorchSelectedOps, which fails if a program needs a kernel that `kernels` and `runtime` lack.

    Args:
      ctx: the context of the rule.

    Returns:
      File: `NAME.yaml`, in the form of `selected_operators.yaml`.
    """
    output = ctx.actions.declare_file(ctx.label.name + ".yaml")
    programs, lines = _programs(ctx)
    arguments = driver_arguments(ctx, "selected-ops")
    arguments.add_all(programs)
    arguments.add_all(lines, format_each = "--lines=%s")
    arguments.add_all(ctx.files.kernels, format_each = "--kernels=%s")
    if ctx.attr.runtime:
        arguments.add("--runtime")
    arguments.add(output, format = "--out=%s")
    run_driver(
        ctx,
        arguments,
        inputs = programs + lines + ctx.files.kernels,
        outputs = [output],
        mnemonic = "ExecutorchSelectedOps",
        progress = "Listing kernels of",
    )
    return output

_ATTRS = {
    "kernels": attr.label_list(
        doc = "The kernels that the application has: files of the form `selected_operators.yaml` or `functions.yaml`. The " +
              "build, or the test, fails if a program needs a kernel, or a kernel for a dtype, that none of them has. It " +
              "names the operator, the methods and the lines of the model.",
        allow_files = [".yaml", ".yml"],
    ),
    "programs": programs_attribute(
        doc = "The programs (`executorch_program`).",
        allow_empty = False,
        mandatory = True,
        providers = [[ExecutorchProgramInfo, ExecutorchExportInfo]],
    ),
    "runtime": attr.bool(
        doc = "The application also has the kernels of the runtime in the wheel of ExecuTorch. Without `kernels`, " +
              "it fails if that runtime lacks a kernel.",
    ),
}

def _executorch_selected_ops_impl(ctx):
    return [DefaultInfo(files = depset([_list_kernels(ctx)]))]

executorch_selected_ops = rule(
    implementation = _executorch_selected_ops_impl,
    doc = """Lists the operators and dtypes that programs need, as `NAME.yaml`, which ExecuTorch's selective build reads.

```starlark
load(
    "@rules_executorch//rules:defs.bzl",
    "executorch_kernels_test",
    "executorch_program",
    "executorch_selected_ops",
)

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
)

executorch_selected_ops(
    name = "selected_operators",
    programs = [":net"],  # all programs of one application
)

executorch_kernels_test(
    name = "kernels_test",
    kernels = ["functions.yaml"],  # what the application links
    programs = [":net"],
)
```
""",
    attrs = _ATTRS,
    toolchains = [str(TOOLCHAIN_TYPE)],
)

_TEST = """\
arguments=(
{arguments}
)
exec "$(rlocation {driver})" selected-ops "${{arguments[@]}}"
"""

def _executorch_kernels_test_impl(ctx):
    if not ctx.files.kernels and not ctx.attr.runtime:
        fail("name files in `kernels`, or write `runtime = True`", attr = "kernels")
    programs, lines = _programs(ctx)
    arguments = [located(ctx, "", program) for program in programs]
    arguments += [located(ctx, "--lines=", file) for file in lines]
    arguments += [located(ctx, "--kernels=", file) for file in ctx.files.kernels]
    if ctx.attr.runtime:
        arguments.append("--runtime")
    return driver_script(ctx, _TEST, programs + lines + ctx.files.kernels, arguments = lines_of(arguments))

executorch_kernels_test = rule(
    implementation = _executorch_kernels_test_impl,
    doc = """Tests that an application has each kernel that its programs need.

The test takes a second and does not run the programs. If a kernel is missing, it fails and names the operator, the methods
and the lines of the model.
""",
    attrs = dict(_ATTRS, **DRIVER_SCRIPT_ATTRS),
    test = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)
