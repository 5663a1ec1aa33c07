"""Runs one verb of the driver (`etbuild`) as an action, in an environment that is the same on every machine."""

load("@rules_executorch_host//:host.bzl", "EXEC_GROUP")
load("//rules:providers.bzl", "ExecutorchFilesInfo")
load("//toolchain:steps.bzl", "STEPS")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":bazel4.bzl", "RESERVES_MEMORY", "memory_kwargs", "toolchain_kwargs")
load(":common.bzl", "DEFAULT_MEMORY", "ENVIRONMENT", "hint_arguments", "resource_set_for")
load(":compat.bzl", "ETBUILD", "label_text")
load(":facts.bzl", "INPUTS", "RESOURCE_SETS")

_REQUIREMENTS = {"block-network": "", "supports-path-mapping": ""}

# The driver can be a persistent worker, and one process can run several actions at the same time.
_WORKER = dict(_REQUIREMENTS, **{
    "requires-worker-protocol": "proto",
    "supports-multiplex-sandboxing": "1",
    "supports-multiplex-workers": "1",
    "supports-worker-cancellation": "1",
    "supports-workers": "1",
})

# More arguments of a rule whose actions are steps. `exec_properties` can name the execution group of each step.
EXEC_GROUPS = {
    "exec_groups": {step: EXEC_GROUP(toolchains = [str(TOOLCHAIN_TYPE)]) for step in STEPS},
} if EXEC_GROUP else {}

# The memory that Bazel reserves for an action that imports torch, in MB, by the values of the attribute `resource_set`. The names
# are those of bazel-lib. The default is for small models, which need about 400 MB; Bazel would assume 250 MB.
MEMORY = dict({"default": DEFAULT_MEMORY}, **RESOURCE_SETS)

# Bazel takes only top-level functions. It gives them the number of inputs of the action, and nothing else about it.
def _default(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["default"]}

def _mem_512m(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["mem_512m"]}

def _mem_1g(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["mem_1g"]}

def _mem_2g(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["mem_2g"]}

def _mem_4g(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["mem_4g"]}

def _mem_8g(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["mem_8g"]}

def _mem_16g(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["mem_16g"]}

def _mem_32g(_os, _inputs):
    return {"cpu": 1, "memory": MEMORY["mem_32g"]}

# buildifier: disable=unsorted-dict-items
_RESERVES = {
    "default": _default,
    "mem_512m": _mem_512m,
    "mem_1g": _mem_1g,
    "mem_2g": _mem_2g,
    "mem_4g": _mem_4g,
    "mem_8g": _mem_8g,
    "mem_16g": _mem_16g,
    "mem_32g": _mem_32g,
}

# The steps that say when they took more memory than was reserved for them.
_MEASURED = ["export", "lower", "compare"]

def actions_of(ctx):
    """Returns what the actions of a program have in common, so that a target with many of them keeps it once.

    Args:
      ctx: the context of the rule.

    Returns:
      struct of `hints`, the words that hints need; `label`, for people; `resource_set`, the memory to reserve.
    """
    label = label_text(ctx.label)
    return struct(
        hints = hint_arguments(label, ETBUILD),
        label = label,
        resource_set = _resource_set(ctx) if RESERVES_MEMORY else "default",
    )

def driver_arguments(ctx, verb, of_target = None):
    """Returns the first arguments of an action. The caller adds more and passes them to `run_driver`.

    Args:
      ctx: the context of the rule.
      verb: string, a verb of the driver, such as `lower`.
      of_target: the result of `actions_of`, if the rule has it.

    Returns:
      Args. Bazel writes them to a file with one argument a line, which the driver reads as `@FILE`. The verb is in the file
      too, because Bazel uses all other arguments to start a worker.
    """
    arguments = ctx.actions.args()
    arguments.set_param_file_format("multiline")
    arguments.use_param_file("@%s", use_always = True)
    arguments.add(verb)
    for hint in of_target.hints if of_target else hint_arguments(label_text(ctx.label), ETBUILD):
        arguments.add(hint)
    if verb in _MEASURED and RESERVES_MEMORY:
        arguments.add(MEMORY[of_target.resource_set if of_target else _resource_set(ctx)], format = "--reserved-memory=%s")
    return arguments

def _resource_set(ctx):
    """Returns the attribute `resource_set` of a target, or what the known sizes of its inputs need."""
    chosen = getattr(ctx.attr, "resource_set", "default")
    if chosen != "default":
        return chosen
    targets = [each for name in INPUTS for each in getattr(ctx.attr, name, [])]
    targets += [each for name in INPUTS for each in getattr(ctx.attr, name + "_as", {})]
    known, megabytes = {each.label: each[ExecutorchFilesInfo] for each in targets if ExecutorchFilesInfo in each}, 0
    for files in known.values():
        megabytes += files.megabytes
    return resource_set_for(megabytes)

def _has_group(ctx, verb):
    """Whether the actions of a verb have an execution group.

    A target with `exec_compatible_with` uses no groups: it must hold for all actions, but Bazel ignores it in groups.
    """
    if not verb or verb not in getattr(ctx, "exec_groups", {}):
        return False
    return not ctx.attr.exec_compatible_with

def toolchain_of(ctx, verb):
    """Returns the toolchain of a verb's actions. An execution group may run on another platform than other actions.

    Args:
      ctx: the context of the rule. The rule must require the toolchain.
      verb: string, as `run_driver` takes it.

    Returns:
      ToolchainInfo.
    """
    return (ctx.exec_groups[verb] if _has_group(ctx, verb) else ctx).toolchains[TOOLCHAIN_TYPE]

def plugins_for(ctx, verb, names):
    """Returns the directories of plug-ins that an action needs in addition to its driver.

    Args:
      ctx: the context of the rule.
      verb: string, the verb, as `run_driver` takes it.
      names: list of string, the plug-ins of a program.

    Returns:
      list of File. Each is an input, and the driver gets `--plugin=PATH`.
    """
    return [file for name, file in toolchain_of(ctx, verb).plugins.items() if name in names] if verb else []

def run_driver(ctx, arguments, progress, verb = None, torch = False, worker = False, of_target = None, **kwargs):
    """Declares an action that runs one verb of the driver. The rule must require the toolchain.

    Args:
      ctx: the context of the rule.
      arguments: Args, the result of `driver_arguments`.
      progress: string, what Bazel shows while the action runs, before the label of the target.
      verb: string, the verb, if it is a step: the toolchain may have a driver of its own for it, and the rule a group of
        actions.
      torch: bool, whether the verb imports torch.
      worker: bool, whether the verb may run in a persistent worker.
      of_target: the result of `actions_of`, if the rule has it.
      **kwargs: more arguments of `ctx.actions.run`: `inputs`, `outputs`, `mnemonic`.
    """
    toolchain = toolchain_of(ctx, verb)
    if _has_group(ctx, verb):
        kwargs["exec_group"] = verb
    kwargs.update(toolchain_kwargs(TOOLCHAIN_TYPE))
    if torch:
        kwargs.update(memory_kwargs(_RESERVES[of_target.resource_set if of_target else _resource_set(ctx)]))
    ctx.actions.run(
        executable = toolchain.drivers[verb] if verb else toolchain.driver,
        arguments = [arguments],
        env = ENVIRONMENT,
        execution_requirements = _WORKER if worker and toolchain.supports_workers else _REQUIREMENTS,
        progress_message = "{} {}".format(progress, of_target.label if of_target else label_text(ctx.label)),
        **kwargs
    )
