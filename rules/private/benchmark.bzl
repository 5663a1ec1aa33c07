"""The rule executorch_benchmark: measures a program when it is run."""

load("//toolchain:runfiles.bzl", "quoted")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":driver_script.bzl", "DRIVER_SCRIPT_ATTRS", "driver_script", "lines_of")
load(":program_arguments.bzl", "located", "program_arguments")
load(":program_attribute.bzl", "RUNNABLE", "program_attribute", "program_info")

# `bazel run` starts the script in its runfiles. Paths of the user are relative to another directory.
_SCRIPT = """\
driver="$(rlocation {driver})"
arguments=(
{arguments}
)
if [ -n "${{BUILD_WORKING_DIRECTORY:-}}" ]; then cd "$BUILD_WORKING_DIRECTORY"; fi
exec "$driver" bench "${{arguments[@]}}" "$@"
"""

def _benchmark_impl(ctx):
    given = program_arguments(ctx, ctx.attr.program)
    arguments, files = list(given.arguments), list(given.files)
    if ctx.attr.against:
        other = program_info(ctx.attr.against, "against")
        arguments.append(located(ctx, "--against=", other.pte))
        files += [other.pte, other.index] + other.named_data.values()
    arguments += [quoted(option) for option in ctx.attr.options]
    return driver_script(ctx, _SCRIPT, files, arguments = lines_of(arguments))

_BENCHMARK_ATTRS = dict(DRIVER_SCRIPT_ATTRS, **{
    "against": program_attribute(
        doc = "Another program that is measured in turns with `program`. It has methods with the same inputs.",
    ),
    "options": attr.string_list(
        doc = "Options of `etbuild bench`, such as `--threads=1`.",
    ),
    "program": program_attribute(
        doc = "The program: an `executorch_program`, or another rule with `ExecutorchProgramInputsInfo`.",
        mandatory = True,
        providers = RUNNABLE,
    ),
})

executorch_benchmark = rule(
    implementation = _benchmark_impl,
    doc = """Measures a program in ExecuTorch's runtime, when it is run.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_benchmark", "executorch_program")

[executorch_program(
    name = name,
    srcs = ["model.py"],
    manifest = name + ".yaml",
) for name in [
    "float",
    "int8",
]]

executorch_benchmark(
    name = "bench",
    against = ":float",
    program = ":int8",
)
```

`bazel run :bench` prints the times of calls, the times of loading, and the memory. With `against` it says which program is
faster. More options of `etbuild bench` can follow: `bazel run :bench -- --seconds 5 --json results.json --svg plot.svg`.
The inputs are the manifest's examples. A path is relative to the directory in which `bazel run` is called.
""",
    attrs = _BENCHMARK_ATTRS,
    executable = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)
