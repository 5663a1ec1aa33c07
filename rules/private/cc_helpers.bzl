"""A rule that the macros for C++ share."""

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
