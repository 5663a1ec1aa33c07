"""Runs one verb of the driver (`etbuild`) as an action, in an environment that is the same on every machine."""

load("//rules/private:common.bzl", "ENVIRONMENT", "hint_arguments")
load("//rules/private:program_actions.bzl", "path_argument")
load(":providers.bzl", "ExecutorchToolchainInfo")

# The attributes of rules that run the driver.
DRIVER_ATTRS = {
    "has_content_based_path": attrs.bool(
        default = True,
        doc = "Whether the paths of the outputs depend on their content and not on the configuration. Then all " +
              "configurations share the actions.",
    ),
    "_toolchain": attrs.toolchain_dep(
        default = "toolchains//:executorch",
        providers = [ExecutorchToolchainInfo],
    ),
}

def declare(ctx: AnalysisContext, name: str, dir: bool = False) -> Artifact:
    """Declares an output.

    Args:
      ctx: the context of the rule.
      name: the name of the file.
      dir: whether it is a directory.

    Returns:
      the file.
    """
    return ctx.actions.declare_output(name, dir = dir, has_content_based_path = ctx.attrs.has_content_based_path)

def _line(item, outputs: list) -> list:
    """Returns the lines of one argument of an action."""
    if isinstance(item, str):
        return [item]
    if hasattr(item, "named"):
        return [
            cmd_args("{}={}=".format(item.option, entry.name), entry.file, delimiter = "")
            for entry in item.named
        ]
    path = item.file.as_output() if item.file in outputs else item.file
    prefix = item.format.removesuffix("%s").replace("%%", "%")
    return [cmd_args(prefix, cmd_args(path, parent = 1 if item.parent else 0), delimiter = "")]

def run_action(ctx: AnalysisContext, action, plugins: list, more: dict = {}):
    """Declares an action of `program_actions.bzl`: it runs one verb of the driver.

    Args:
      ctx: the context of the rule.
      action: struct.
      plugins: list of string, the plug-ins that the target names. Planning hands those that the program uses on to the others.
      more: dict of format to Artifact, more outputs, each as `path_argument` takes it.
    """
    toolchain = ctx.attrs._toolchain.get(ExecutorchToolchainInfo)
    driver = toolchain.drivers.get(action.arguments[0], toolchain.driver)
    hints = hint_arguments(str(ctx.label.raw_target()), "etbuild")
    outputs = action.outputs + more.values()
    arguments = action.arguments[:1] + hints + action.arguments[1:]
    named = plugins if action.kind == "plan" and action.kind in toolchain.drivers else []
    files = [file for name in named for file in toolchain.plugins.get(name, [])]
    arguments += [path_argument("--plugin=%s", file, parent = True) for file in files if file.short_path.endswith("/plugin.json")]
    arguments += [path_argument(format, file) for format, file in more.items()]
    lines = cmd_args([_line(item, outputs) for item in arguments])
    category = "executorch_" + action.kind

    # A worker takes its arguments from a file, and one line can hold any name of a file.
    file = ctx.actions.write(
        ".".join([part for part in [category, action.name, "args"] if part]),
        lines,
        has_content_based_path = ctx.attrs.has_content_based_path,
    )
    ctx.actions.run(
        cmd_args(file, format = "@{}", hidden = [lines, [output.as_output() for output in outputs], action.more_inputs, files]),
        category = category,
        env = ENVIRONMENT,
        exe = WorkerRunInfo(
            exe = driver.args,
            worker = toolchain.worker,
        ) if action.torch and action.worker and toolchain.worker else driver,
        identifier = action.name or None,
        weight = toolchain.weight if action.torch else 1,
    )
