"""What the rule of the packages has to know about versions of Bazel.

It is not in `compat.bzl`: Bazel fetches the packages again after an edit to any file that their rule loads.
"""

def watch(repository_ctx, file):
    """Makes a repository depend on a file, so that Bazel builds it again when the file changes.

    Bazel 4 watches every label that `path` resolves, and no absolute path. Bazel 7.1 and later have `watch` for both.

    Args:
      repository_ctx: the context of the repository rule.
      file: Label of the file, or its absolute path.

    Returns:
      path of the file.
    """
    path = repository_ctx.path(file)
    if hasattr(repository_ctx, "watch"):
        repository_ctx.watch(path)
    return path
