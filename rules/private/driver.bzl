"""What every action has in common: the driver, one verb of it, and surroundings that are the same everywhere."""

load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":compat.bzl", "label_text", "memory_kwargs", "toolchain_kwargs")

# All that an action sees of its surroundings: nothing of the user's, and no home directory to read from.
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}

# Bazel may keep the driver running between actions. One process can work on several at a time.
_WORKER = {
    "requires-worker-protocol": "proto",
    "supports-multiplex-sandboxing": "1",
    "supports-multiplex-workers": "1",
    "supports-worker-cancellation": "1",
    "supports-workers": "1",
}

def _with_torch(_os, _inputs):
    """What an action takes that imports torch: some 400 MB for small models, 3 GB for large ones. Bazel assumes 250 MB.

    Args:
      _os: the system it runs on.
      _inputs: how many inputs it has.

    Returns:
      A dict of resources; memory in MB.
    """
    return {"cpu": 1, "memory": 1500}

def driver_arguments(ctx, verb):
    """Returns the arguments of a verb, to be filled and given to `run_driver`.

    Args:
      ctx: the rule's context.
      verb: such as `lower`.

    Returns:
      An Args that becomes a file of one argument a line, as `etbuild` reads it with `@FILE`. The verb is in it too: what
      is not, Bazel takes for options that start a worker.
    """
    arguments = ctx.actions.args()
    arguments.set_param_file_format("multiline")
    arguments.use_param_file("@%s", use_always = True)
    arguments.add(verb)
    return arguments

def run_driver(ctx, arguments, progress, torch = False, worker = False, **kwargs):
    """Declares an action that runs one verb of the driver. The rule must have the toolchain.

    Args:
      ctx: the rule's context.
      arguments: of `driver_arguments`.
      progress: what Bazel shows meanwhile, in front of the target's label.
      torch: the verb imports torch.
      worker: the verb gains by a process that has imported torch already.
      **kwargs: of `ctx.actions.run`: inputs, outputs, mnemonic.
    """
    toolchain = ctx.toolchains[TOOLCHAIN_TYPE]
    requirements = {"block-network": ""}
    if worker and toolchain.supports_workers:
        requirements.update(_WORKER)
    kwargs.update(toolchain_kwargs(TOOLCHAIN_TYPE))
    if torch:
        kwargs.update(memory_kwargs(_with_torch))
    ctx.actions.run(
        executable = toolchain.driver,
        arguments = [arguments],
        env = _ENVIRONMENT,
        execution_requirements = requirements,
        progress_message = "{} {}".format(progress, label_text(ctx.label)),
        **kwargs
    )
