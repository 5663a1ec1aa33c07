"""A bzl_library that only collects its files. It lets Bazel 4 build //rules without network."""

def _bzl_library_impl(ctx):
    files = depset(ctx.files.srcs, transitive = [dep[DefaultInfo].files for dep in ctx.attr.deps])
    return [DefaultInfo(files = files)]

bzl_library = rule(
    implementation = _bzl_library_impl,
    attrs = {
        "deps": attr.label_list(),
        "srcs": attr.label_list(allow_files = [".bzl"]),
    },
)
