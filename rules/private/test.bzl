"""The rule executorch_program_test: a program against eager PyTorch."""

load("//toolchain:runfiles.bzl", "quoted")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":driver_script.bzl", "DRIVER_SCRIPT_ATTRS", "driver_script", "lines_of")
load(":library.bzl", "LIBRARIES", "python_library")
load(":program_arguments.bzl", "located", "program_arguments")
load(":program_attribute.bzl", "RUNNABLE", "program_attribute", "program_info", "programs_attribute")

_SCRIPT = """\
arguments=(
{arguments}
)
if [ -n "${{TESTBRIDGE_TEST_ONLY:-}}" ]; then arguments+=("--filter=$TESTBRIDGE_TEST_ONLY"); fi
if [ -n "${{XML_OUTPUT_FILE:-}}" ]; then arguments+=("--junit=$XML_OUTPUT_FILE"); fi
if [ -n "${{TEST_UNDECLARED_OUTPUTS_DIR:-}}" ]; then arguments+=("--results=$TEST_UNDECLARED_OUTPUTS_DIR"); fi
if [ -n "${{TEST_TOTAL_SHARDS:-}}" ] && [ "$TEST_TOTAL_SHARDS" != 0 ]; then
  arguments+=("--shard=$((TEST_SHARD_INDEX + 1))/$TEST_TOTAL_SHARDS" --allow-empty-shard)
  if [ -n "${{TEST_SHARD_STATUS_FILE:-}}" ]; then touch "$TEST_SHARD_STATUS_FILE"; fi
fi
exec "$(rlocation {driver})" test "${{arguments[@]}}" "$@"
"""

def _test_impl(ctx):
    given = program_arguments(ctx, ctx.attr.program, ctx.files.srcs, ctx.attr.deps, ctx.files.data)
    arguments = given.arguments + [quoted("--rule-attribute=--skip-unavailable=unavailable = \"skip\"")]
    if ctx.attr.unavailable == "skip":
        arguments.append("--skip-unavailable")
    if not ctx.attr.search:
        arguments.append("--no-search")
    others = [program_info(other, "compared_with") for other in ctx.attr.compared_with]
    arguments += [located(ctx, "--compared-with=", other.pte) for other in others]
    files = [file for other in others for file in [other.pte, other.index, other.report] + other.named_data.values()]
    return driver_script(ctx, _SCRIPT, given.files + files, arguments = lines_of(arguments))

_program_test = rule(
    implementation = _test_impl,
    attrs = dict(DRIVER_SCRIPT_ATTRS, **{
        "compared_with": programs_attribute(
            doc = "For a variant with `qualify`, the programs with which it compares the variant: always that without a variant.",
            providers = RUNNABLE,
        ),
        "data": attr.label_list(
            doc = "Files that the manifest's `tests`, `checks.metric`, `checks.text` and `checks.prompts` name, named as those of the program's `data`.",
            allow_files = True,
        ),
        "deps": attr.label_list(
            doc = "Libraries that `srcs` import.",
            aspects = [python_library],
            providers = LIBRARIES,
        ),
        "program": program_attribute(
            doc = "The program: an `executorch_program`, or another rule with `ExecutorchProgramInputsInfo`.",
            mandatory = True,
            providers = RUNNABLE,
        ),
        "search": attr.bool(
            doc = "Whether a failure is searched for the operator or the layer that causes it.",
            default = True,
        ),
        "srcs": attr.label_list(
            doc = "Python sources with loaders, metrics and factories of test inputs.",
            allow_files = [".py"],
        ),
        "unavailable": attr.string(
            doc = "What happens if the runtime here has none of a backend that the program calls: `fail` or `skip`.",
            default = "fail",
            values = ["fail", "skip"],
        ),
    }),
    test = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)

def executorch_program_test(name, program, data = [], srcs = [], deps = [], **kwargs):
    """Tests a program: compares what it computes in ExecuTorch's runtime with the model in eager PyTorch.

    ```starlark
    load("@rules_executorch//rules:defs.bzl", "executorch_program", "executorch_program_test")

    executorch_program(
        name = "net",
        srcs = ["model.py"],
        manifest = "net.yaml",
    )

    executorch_program_test(
        name = "net_test",
        data = ["cat.png"],
        program = ":net",
        srcs = ["images.py"],
    )
    ```

    The test runs each method on its example inputs, on random inputs over the ranges of its dynamic dimensions, and on the
    cases of the manifest's `tests`; it computes the metrics of `checks`, and repeats the checks of the build.
    `--test_filter='decode/*'` runs only tests with such names, and `shard_count` distributes them. The results are in
    `test.xml`. The same program and the same inputs always have the same result, so the test cannot be `flaky`.

    Args:
      name: string, the name of the test.
      program: label of an `executorch_program`, or of another rule with `ExecutorchProgramInputsInfo`.
      data: list of labels, files that the manifest's `tests`, `checks.metric`, `checks.text` and `checks.prompts` name.
      srcs: list of labels, Python sources with loaders, metrics and factories of test inputs.
      deps: list of labels, libraries that `srcs` import.
      **kwargs: more attributes: `search = False` does not search for the cause of a failure; `unavailable = "skip"` skips a
        program for a backend that the runtime here does not have; `compared_with` lists the other programs that the variant's
        `qualify` names, and then the test fails if the variant does not qualify; and those of every test, such as `size`.
    """
    if kwargs.get("flaky"):
        fail("the test has the same result each time: it cannot be flaky", attr = "flaky")
    size = kwargs.pop("size", "medium")
    _program_test(name = name, program = program, data = data, srcs = srcs, deps = deps, size = size, **kwargs)
