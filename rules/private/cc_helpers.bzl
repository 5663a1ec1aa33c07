"""Functions and a rule that the macros for C++ share."""

def cc_library_rule(instead):
    """Returns Bazel's own rule `cc_library`.

    Args:
      instead: string, the command that does the work of the macro, for the error of a Bazel without this rule.

    Returns:
      a rule.
    """
    library = getattr(native, "cc_library", None)
    if not library:
        fail("this Bazel has no C++ rules of its own; call the command `{}` in a genrule".format(instead))
    return library

def _group_impl(ctx):
    return [DefaultInfo(files = getattr(ctx.attr.target[OutputGroupInfo], ctx.attr.group))]

# Bazel's `filegroup` does the same, but lacks some of the attributes that other targets have.
group = rule(
    implementation = _group_impl,
    doc = "One output group of a target, as a target.",
    attrs = {
        "group": attr.string(mandatory = True),
        "target": attr.label(mandatory = True),
    },
)
