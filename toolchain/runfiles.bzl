"""Paths of runfiles."""

def runfiles_path(ctx, file):
    """Returns the path of a file relative to the directory of runfiles.

    Args:
      ctx: the context of the rule.
      file: File, one of the runfiles.

    Returns:
      string, which starts with the name of a repository.
    """
    path = file.short_path
    return path[len("../"):] if path.startswith("../") else ctx.workspace_name + "/" + path
