"""All that only Bazel 4.2 needs, which is what Debian 12 and 13 have. Later versions take the other branch everywhere.

When the rules no longer build with `WORKSPACE` files, this file goes.
"""

load(":compat.bzl", "label_text")
load(":program_actions.bzl", "artifacts")

# Whether Bazel runs the actions of the output group `_validation` for every consumer of a target. Bazel 4 does not, and it has
# neither `toolchain` nor `resource_set` of `ctx.actions.run`.
RUNS_VALIDATIONS = hasattr(config_common, "toolchain_type")

# The options, besides the platform and the processor, that split transitions change for each system that an app is for,
# with their values on the build machine. Bazel 4 lacks some of Apple's and cannot read others.
OPTIONS_OF_PLATFORMS = dict({
    "features": [],
    "minimum_os_version": None,
}, **({
    "apple_platform_type": "macos",
    "apple_platforms": [],
    "apple_split_cpu": "",
    "ios_minimum_os": None,
    "macos_minimum_os": None,
    "tvos_minimum_os": None,
    "watchos_minimum_os": None,
} if RUNS_VALIDATIONS else {}))

def options_to_keep(options):
    """Returns the options whose old values a transition must return if it changes nothing.

    Args:
      options: list of string, the options that the transition can change.

    Returns:
      list of string: all of them in Bazel 4. Later versions take an empty result.
    """
    return [] if RUNS_VALIDATIONS else options

def check_known(attr, names):
    """Fails if an attribute that a transition reads has a `select()`: Bazel 4 leaves it out.

    Args:
      attr: struct, the attributes as the transition has them.
      names: list of string.
    """
    for name in names:
        if not hasattr(attr, name):
            fail("this version of Bazel cannot read a select() for `{}`: write one value".format(name))

def toolchain_kwargs(toolchain_type):
    """Returns the arguments of `ctx.actions.run` that name the toolchain of the tool.

    Args:
      toolchain_type: Label of the toolchain type.

    Returns:
      dict of arguments; empty if this Bazel does not have them.
    """
    return {"toolchain": toolchain_type} if RUNS_VALIDATIONS else {}

# Whether actions can say how much memory they need.
RESERVES_MEMORY = RUNS_VALIDATIONS

def memory_kwargs(resource_set):
    """Returns the arguments of `ctx.actions.run` that say how much memory and how many CPUs an action needs.

    Args:
      resource_set: function, as `ctx.actions.run` takes it.

    Returns:
      dict of arguments; empty if this Bazel does not have them.
    """
    return {"resource_set": resource_set} if RESERVES_MEMORY else {}

def without_spaces(ctx, file, name):
    """Returns a file that can be one of the runfiles: Bazel 4 allows no space in their paths.

    Args:
      ctx: the context of the rule.
      file: File.
      name: string, the name of a link to the file, in case there is a space.

    Returns:
      File.
    """
    if " " not in file.short_path or file.is_directory:
        return file
    link = ctx.actions.declare_file(name)
    ctx.actions.symlink(output = link, target_file = file)
    return link

# Copies files and directories: SOURCE TARGET SOURCE TARGET ... A directory in a sandbox holds links.
_COPY = """\
set -eu
while [ $# -gt 0 ]; do
  if [ -d "$1" ]; then mkdir -p "$2"; cp -RL "$1/." "$2"; else cp -L "$1" "$2"; fi
  shift 2
done
"""

def published(ctx, system, target, export, lowered, reported):
    """Declares ExecutorchPublish, which copies a program and its exported methods when it has passed its checks.

    Bazel 4 runs no validation actions, so that a rule could use a program that fails a check. Other actions read the files that
    are not checked yet.

    Args:
      ctx: the context of the rule.
      system: struct, as `program_actions.bzl` describes it.
      target: struct, what the target says.
      export: ExecutorchExportInfo.
      lowered: struct of `program_actions`.
      reported: struct of `program_actions`.

    Returns:
      (`lowered` with the copies of the program and its named data, list of File with the copies of the export).
    """
    pte, named_data = artifacts(ctx, system, target)
    copies = [(lowered.pte, pte)] + [(lowered.named_data[tag], copy) for tag, copy in named_data.items()]
    _publish(ctx, copies, reported, "program")
    start = target.name + ".export"
    shown = [(export.directory, system.declare(ctx, start, dir = True))] + [
        (file, system.declare(ctx, "{}.{}.pt2".format(start, method)))
        for method, file in export.exported_methods.items()
    ]
    _publish(ctx, shown, reported, "export")
    copied = struct(
        computed = lowered.computed,
        facts = lowered.facts,
        named_data = named_data,
        pte = pte,
        templates = lowered.templates,
    )
    return copied, [copy for _, copy in shown]

def _publish(ctx, copies, reported, what):
    arguments = ctx.actions.args()
    for source, copy in copies:
        arguments.add_all([source, copy], expand_directories = False)
    ctx.actions.run_shell(
        command = _COPY,
        arguments = [arguments],
        inputs = [source for source, _ in copies] + [reported.report],
        outputs = [copy for _, copy in copies],
        mnemonic = "ExecutorchPublish",
        progress_message = "Copying the checked {} of {}".format(what, label_text(ctx.label)),
    )
