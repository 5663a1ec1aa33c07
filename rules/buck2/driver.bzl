"""Runs one verb of the driver (`etbuild`) as an action, in an environment that is the same on every machine."""

load("//rules/private:common.bzl", "ENVIRONMENT", "hint_arguments")
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
    """Returns the lines of one argument that common.bzl made."""
    if isinstance(item, str):
        return [item]
    if hasattr(item, "named"):
        return [
            cmd_args("{}={}=".format(item.option, entry.name), entry.file, delimiter = "")
            for entry in item.named
        ]
    path = item.file.as_output() if item.file in outputs else item.file
    return [cmd_args(item.prefix, cmd_args(path, parent = 1 if item.parent else 0), delimiter = "")]

def run_driver(
        ctx: AnalysisContext,
        arguments: list,
        outputs: list,
        category: str,
        identifier: str | None = None,
        hidden: list = [],
        torch: bool = False):
    """Declares an action that runs one verb of the driver.

    Args:
      ctx: the context of the rule.
      arguments: the arguments, as common.bzl makes them. Each file of them that is no output is an input.
      outputs: list of Artifact.
      category: the kind of the action.
      identifier: what tells actions of one kind in one target apart.
      hidden: more inputs.
      torch: whether the verb imports torch. Only such verbs run in a worker.
    """
    toolchain = ctx.attrs._toolchain.get(ExecutorchToolchainInfo)
    driver = toolchain.drivers.get(arguments[0], toolchain.driver)
    hints = hint_arguments(str(ctx.label.raw_target()), "etbuild")
    lines = cmd_args([_line(item, outputs) for item in arguments[:1] + hints + arguments[1:]])

    # A worker takes its arguments from a file, and one line can hold any name of a file.
    file = ctx.actions.write(
        ".".join([part for part in [category, identifier, "args"] if part]),
        lines,
        has_content_based_path = ctx.attrs.has_content_based_path,
    )
    ctx.actions.run(
        cmd_args(file, format = "@{}", hidden = [lines, [output.as_output() for output in outputs], hidden]),
        category = category,
        env = ENVIRONMENT,
        exe = WorkerRunInfo(
            exe = driver.args,
            worker = toolchain.worker,
        ) if torch and toolchain.worker else driver,
        identifier = identifier,
        weight = toolchain.weight if torch else 1,
    )
