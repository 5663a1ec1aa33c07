"""Where files are when a target runs."""

def runfiles_path(ctx, file):
    """Returns a file's path in the tree of runfiles.

    Args:
      ctx: the rule's context.
      file: a File among the runfiles.

    Returns:
      A string that starts with the name of a repository.
    """
    path = file.short_path
    return path[len("../"):] if path.startswith("../") else ctx.workspace_name + "/" + path
