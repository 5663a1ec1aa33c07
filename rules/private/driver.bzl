"""Runs one verb of the driver (`etbuild`) as an action, in an environment that is the same on every machine."""

load("@rules_executorch_host//:host.bzl", "EXEC_GROUP")
load("//toolchain:steps.bzl", "STEPS")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":common.bzl", "ENVIRONMENT")
load(":compat.bzl", "label_text", "memory_kwargs", "toolchain_kwargs")

# The driver can be a persistent worker, and one process can run several actions at the same time.
_WORKER = {
    "requires-worker-protocol": "proto",
    "supports-multiplex-sandboxing": "1",
    "supports-multiplex-workers": "1",
    "supports-worker-cancellation": "1",
    "supports-workers": "1",
}

# More arguments of a rule whose actions are steps: a group of actions for each step, so that `exec_properties` can name it.
EXEC_GROUPS = {
    "exec_groups": {step: EXEC_GROUP(toolchains = [str(TOOLCHAIN_TYPE)]) for step in STEPS},
} if EXEC_GROUP else {}

def _with_torch(_os, _inputs):
    """Resources of an action that imports torch.

    It needs about 400 MB for a small model and 3 GB for a large one. Bazel would assume 250 MB.

    Args:
      _os: string, the operating system. Not used.
      _inputs: int, the number of inputs. Not used.

    Returns:
      dict of resources: a number of CPUs, and memory in MB.
    """
    return {"cpu": 1, "memory": 1500}

def driver_arguments(ctx, verb):
    """Returns the first arguments of an action. The caller adds more and passes them to `run_driver`.

    Args:
      ctx: the context of the rule.
      verb: string, a verb of the driver, such as `lower`.

    Returns:
      Args. Bazel writes them to a file with one argument a line, which the driver reads as `@FILE`. The verb is in the file
      too, because Bazel uses all other arguments to start a worker.
    """
    arguments = ctx.actions.args()
    arguments.set_param_file_format("multiline")
    arguments.use_param_file("@%s", use_always = True)
    arguments.add(verb)
    return arguments

def run_driver(ctx, arguments, progress, verb = None, torch = False, worker = False, **kwargs):
    """Declares an action that runs one verb of the driver. The rule must require the toolchain.

    Args:
      ctx: the context of the rule.
      arguments: Args, the result of `driver_arguments`.
      progress: string, what Bazel shows while the action runs, before the label of the target.
      verb: string, the verb, if it is a step: the toolchain may have a driver of its own for it, and the rule a group of
        actions.
      torch: bool, whether the verb imports torch.
      worker: bool, whether the verb may run in a persistent worker.
      **kwargs: more arguments of `ctx.actions.run`: `inputs`, `outputs`, `mnemonic`.
    """
    toolchain = ctx.toolchains[TOOLCHAIN_TYPE]
    if verb and verb in getattr(ctx, "exec_groups", {}):
        toolchain = ctx.exec_groups[verb].toolchains[TOOLCHAIN_TYPE]
        kwargs["exec_group"] = verb
    requirements = {"block-network": "", "supports-path-mapping": ""}
    if worker and toolchain.supports_workers:
        requirements.update(_WORKER)
    kwargs.update(toolchain_kwargs(TOOLCHAIN_TYPE))
    if torch:
        kwargs.update(memory_kwargs(_with_torch))
    ctx.actions.run(
        executable = toolchain.drivers[verb] if verb else toolchain.driver,
        arguments = [arguments],
        env = ENVIRONMENT,
        execution_requirements = requirements,
        progress_message = "{} {}".format(progress, label_text(ctx.label)),
        **kwargs
    )
