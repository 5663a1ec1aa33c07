"""executorch_named_data: one named-data file of a program."""

load("//rules:providers.bzl", "ExecutorchProgramInfo")
load(":compat.bzl", "label_text")

def _executorch_named_data_impl(ctx):
    named_data = ctx.attr.program[ExecutorchProgramInfo].named_data
    if ctx.attr.tag not in named_data:
        fail("{} has no named data '{}'. It has {}".format(
            label_text(ctx.attr.program.label),
            ctx.attr.tag,
            ", ".join(["'{}'".format(tag) for tag in sorted(named_data)]) or "none: list its tags in `named_data`",
        ), attr = "tag")
    file = named_data[ctx.attr.tag]
    return [DefaultInfo(files = depset([file]), runfiles = ctx.runfiles([file]))]

executorch_named_data = rule(
    implementation = _executorch_named_data_impl,
    doc = """One `.ptd` of a program, to be shipped or tested apart from it.

    executorch_named_data(
        name = "weights",
        program = ":tiny_lm",
        tag = "weights",
    )
""",
    attrs = {
        "program": attr.label(
            doc = "The program.",
            mandatory = True,
            providers = [ExecutorchProgramInfo],
        ),
        "tag": attr.string(
            doc = "A tag of the program's `named_data`.",
            mandatory = True,
        ),
    },
)
