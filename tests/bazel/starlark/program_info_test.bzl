"""program_info_test: the provider and the output groups of a program, checked while targets are analysed."""

load("//rules:defs.bzl", "ExecutorchProgramInfo")

def _equal(what, found, expected):
    if found != expected:
        fail("{} is {}, not {}".format(what, found, expected))

def _names(files):
    return sorted([file.basename for file in files.to_list()])

def _program_info_test_impl(ctx):
    program = ctx.attr.program
    info = program[ExecutorchProgramInfo]
    name = program.label.name
    named_data = {tag: "{}.{}.ptd".format(name, tag) for tag in ctx.attr.tags_expected}

    _equal("pte", info.pte.basename, name + ".pte")
    _equal("named_data", {tag: file.basename for tag, file in info.named_data.items()}, named_data)
    _equal("index", info.index.basename, name + ".index.json")
    _equal("report", info.report.basename, name + ".report.json")
    _equal("methods", info.methods, ctx.attr.methods_expected)
    _equal("backends", info.backends, ctx.attr.backends_expected)

    groups = program[OutputGroupInfo]
    _equal("group pte", _names(groups.pte), [name + ".pte"])
    _equal("group named_data", _names(groups.named_data), sorted(named_data.values()))
    _equal("group index", _names(groups.index), [name + ".index.json"])
    _equal("group report", _names(groups.report), [name + ".report.json"])

    shipped = sorted([name + ".pte", name + ".index.json"] + named_data.values())
    _equal("default outputs", _names(program[DefaultInfo].files), shipped)
    _equal("runfiles", _names(program[DefaultInfo].default_runfiles.files), shipped)

    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(script, "#!/bin/sh\n", is_executable = True)
    return [DefaultInfo(executable = script)]

program_info_test = rule(
    implementation = _program_info_test_impl,
    attrs = {
        "backends_expected": attr.string_list(),
        "methods_expected": attr.string_list(),
        "program": attr.label(mandatory = True),
        "tags_expected": attr.string_list(),
    },
    test = True,
)
