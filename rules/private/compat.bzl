"""What differs between the versions of Bazel, from 4.2 to 9. Nothing else asks for a version.

Debian's Bazel 4.2.3 leaves `native.bazel_version` empty, hence the tests for single members.
"""

def watch(repository_ctx, label):
    """Makes a repository depend on a file, and returns the file's path.

    Args:
      repository_ctx: the context of the repository rule.
      label: the file. Bazel 4 watches what `path` resolves; Bazel 7.1 and later can be asked to.

    Returns:
      The path.
    """
    path = repository_ctx.path(label)
    if hasattr(repository_ctx, "watch"):
        repository_ctx.watch(path)
    return path

def toolchain_kwargs(toolchain_type):
    """Returns the arguments of `ctx.actions.run` that tie an action to the toolchain that its tool is from.

    Args:
      toolchain_type: the label of the toolchain type.

    Returns:
      A dict of arguments, empty where Bazel does not know them.
    """
    return {"toolchain": toolchain_type} if hasattr(config_common, "toolchain_type") else {}

def memory_kwargs(resource_set):
    """Returns the arguments of `ctx.actions.run` that say what an action needs of a machine.

    Args:
      resource_set: a function as `ctx.actions.run` takes it.

    Returns:
      A dict of arguments, empty where Bazel does not know them: all that know `toolchain` know these.
    """
    return {"resource_set": resource_set} if hasattr(config_common, "toolchain_type") else {}

def label_text(label):
    """Returns a label as users write it, for messages only.

    Args:
      label: a Label.

    Returns:
      A string: `//pkg:name`, where later versions of Bazel say `@@//pkg:name`.
    """
    text = str(label)
    return text[2:] if text.startswith("@@//") else text
