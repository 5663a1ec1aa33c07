"""The rule sized_files: files whose sizes a repository rule has seen, such as a checkpoint's."""

load("//rules:providers.bzl", "ExecutorchFilesInfo")

def _sized_files_impl(ctx):
    files = depset(ctx.files.srcs)
    return [
        DefaultInfo(files = files, runfiles = ctx.runfiles(ctx.files.srcs)),
        ExecutorchFilesInfo(megabytes = ctx.attr.megabytes),
    ]

sized_files = rule(
    implementation = _sized_files_impl,
    doc = "Files with their size.",
    attrs = {
        "megabytes": attr.int(doc = "Their size."),  # in bytes it would not fit: an int has 32 bits
        "srcs": attr.label_list(allow_files = True),
    },
    provides = [ExecutorchFilesInfo],
)

def load_statement(rule_file):
    """Returns the statement by which the BUILD file of another repository loads `sized_files`.

    Args:
      rule_file: Label of this file.

    Returns:
      string.
    """
    text = str(rule_file)
    return "load(\"{}\", \"sized_files\")\n".format(text if text.startswith("@") else "@rules_executorch" + text)

def megabytes_of(repository_ctx, paths):
    """Returns the size of files, rounded up; 0 if it is not known.

    Args:
      repository_ctx: the context of a repository rule.
      paths: list of string, paths of files in the repository.

    Returns:
      int.
    """
    if not paths:
        return 0
    counted = repository_ctx.execute(["wc", "-c"] + paths)
    sizes = [line.strip().partition(" ") for line in counted.stdout.strip().split("\n")]
    if counted.return_code or [size for size, _, _ in sizes if not size.isdigit()]:
        return 0
    return (sum_of([int(size) for size, _, path in sizes if path.strip() in paths]) + 1048575) // 1048576

def sum_of(numbers):
    """Returns the sum of numbers, for which Starlark has no function.

    Args:
      numbers: list of int.

    Returns:
      int.
    """
    total = 0
    for number in numbers:
        total += number
    return total
