"""Tests of targets that Bazel only analyses: what a program provides, the files of other rules, and arguments and inputs of actions."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load("//rules:defs.bzl", "ExecutorchProgramInfo")

def _names(files):
    return sorted([file.basename for file in files.to_list()])

def _program_test_impl(ctx):
    env = analysistest.begin(ctx)
    program = analysistest.target_under_test(env)
    info, groups = program[ExecutorchProgramInfo], program[OutputGroupInfo]
    name = program.label.name
    named_data = {tag: "{}.{}.ptd".format(name, tag) for tag in ctx.attr.named_data}

    asserts.equals(env, name + ".pte", info.pte.basename, "pte")
    asserts.equals(env, named_data, {tag: file.basename for tag, file in info.named_data.items()}, "named_data")
    asserts.equals(env, name + ".index.json", info.index.basename, "index")
    asserts.equals(env, name + ".report.json", info.report.basename, "report")
    asserts.equals(env, ctx.attr.methods, info.methods, "methods")
    asserts.equals(env, ctx.attr.backends, info.backends, "backends")

    asserts.equals(env, [name + ".pte"], _names(groups.pte), "group pte")
    asserts.equals(env, sorted(named_data.values()), _names(groups.named_data), "group named_data")
    asserts.equals(env, [name + ".index.json"], _names(groups.index), "group index")
    asserts.equals(env, [name + ".report.json"], _names(groups.report), "group report")

    shipped = sorted([name + ".pte", name + ".index.json"] + named_data.values())
    asserts.equals(env, shipped, _names(program[DefaultInfo].files), "default outputs")
    asserts.equals(env, shipped, _names(program[DefaultInfo].default_runfiles.files), "runfiles")
    return analysistest.end(env)

program_test = analysistest.make(_program_test_impl, attrs = {
    "backends": attr.string_list(),
    "methods": attr.string_list(),
    "named_data": attr.string_list(),
})

def _files_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, ctx.attr.files, _names(analysistest.target_under_test(env)[DefaultInfo].files), "default outputs")
    return analysistest.end(env)

files_test = analysistest.make(_files_test_impl, attrs = {"files": attr.string_list()})

def _steps_test_impl(ctx):
    env = analysistest.begin(ctx)
    found = [action.mnemonic for action in analysistest.target_actions(env)]

    # Bazel 4 copies what has passed its checks.
    steps = [name[len("Executorch"):] for name in found if name.startswith("Executorch") and name != "ExecutorchPublish"]
    asserts.equals(env, ctx.attr.steps, steps, "steps")
    return analysistest.end(env)

steps_test = analysistest.make(_steps_test_impl, attrs = {"steps": attr.string_list()})

def _action_test_impl(ctx):
    env = analysistest.begin(ctx)
    step = "Executorch" + ctx.attr.step
    actions = [action for action in analysistest.target_actions(env) if action.mnemonic == step]
    asserts.true(env, actions, "there is no action " + step)
    for action in actions:
        if ctx.attr.option:
            arguments = sorted([argument for argument in action.argv if argument.startswith(ctx.attr.option)])
            asserts.equals(env, ctx.attr.arguments, arguments, "arguments of " + step)
        names = [file.basename for file in action.inputs.to_list()]
        for name in ctx.attr.inputs:
            asserts.true(env, name in names, "{} does not read {}, but {}".format(step, name, names))
        for name in ctx.attr.other_files:
            asserts.true(env, name not in names, "{} reads {}".format(step, name))
    return analysistest.end(env)

_ACTION_ATTRS = {
    "arguments": attr.string_list(doc = "All arguments that begin with `option`, sorted."),
    "inputs": attr.string_list(doc = "Names of files that each of these actions reads."),
    "option": attr.string(),
    "other_files": attr.string_list(doc = "Names of files that none of them reads."),
    "step": attr.string(doc = "Which actions: `Lower` is `ExecutorchLower`.", mandatory = True),
}

action_test = analysistest.make(_action_test_impl, attrs = _ACTION_ATTRS)

# The same in another compilation mode.
optimized_action_test = analysistest.make(_action_test_impl, attrs = _ACTION_ATTRS, config_settings = {
    "//command_line_option:compilation_mode": "opt",
})
