"""A rule of the user: it adds a file to a program, and passes the program on."""

load("@rules_executorch//rules:providers.bzl", "ExecutorchProgramInfo", "ExecutorchProgramInputsInfo")

def _team_program_impl(ctx):
    program = ctx.attr.program
    return [
        DefaultInfo(files = depset([ctx.file.card], transitive = [program[DefaultInfo].files])),
        program[ExecutorchProgramInfo],
        program[ExecutorchProgramInputsInfo],
    ]

team_program = rule(
    implementation = _team_program_impl,
    attrs = {
        "card": attr.label(allow_single_file = True),
        "program": attr.label(providers = [ExecutorchProgramInfo, ExecutorchProgramInputsInfo]),
    },
)
