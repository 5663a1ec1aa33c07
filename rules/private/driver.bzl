"""What every action has in common: the driver, one verb of it, and surroundings that are the same everywhere."""

load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":compat.bzl", "label_text", "toolchain_kwargs")

# All that an action sees of its surroundings: nothing of the user's, and no home directory to read from.
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}

def driver_arguments(ctx):
    """Returns the arguments of a verb, to be filled and given to `run_driver`.

    Args:
      ctx: the rule's context.

    Returns:
      An Args that becomes a file of one argument a line, as `etbuild` reads it with `@FILE`.
    """
    arguments = ctx.actions.args()
    arguments.set_param_file_format("multiline")
    arguments.use_param_file("@%s", use_always = True)
    return arguments

def run_driver(ctx, verb, arguments, progress, **kwargs):
    """Declares an action that runs one verb of the driver. The rule must have the toolchain.

    Args:
      ctx: the rule's context.
      verb: such as `lower`.
      arguments: of `driver_arguments`.
      progress: what Bazel shows meanwhile, in front of the target's label.
      **kwargs: of `ctx.actions.run`: inputs, outputs, mnemonic.
    """
    kwargs.update(toolchain_kwargs(TOOLCHAIN_TYPE))
    ctx.actions.run(
        executable = ctx.toolchains[TOOLCHAIN_TYPE].driver,
        arguments = [verb, arguments],
        env = _ENVIRONMENT,
        execution_requirements = {"block-network": ""},
        progress_message = "{} {}".format(progress, label_text(ctx.label)),
        **kwargs
    )
