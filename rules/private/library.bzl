"""The rule executorch_library: Python sources that several programs share."""

load("//rules:providers.bzl", "ExecutorchLibraryInfo")
load(":names.bzl", "check_unique", "relative_to", "repository_path")

def _import_root(ctx):
    root = ctx.attr.import_root
    if root == None or root == "":
        return ""
    if root.startswith("/") or ".." in root.split("/"):
        fail("'{}' is not a path below this package".format(root), attr = "import_root")
    parts = [part for part in ctx.label.package.split("/") + root.split("/") if part not in ("", ".")]
    return "/".join(parts)

def _executorch_library_impl(ctx):
    root = _import_root(ctx)
    sources = []
    for file in ctx.files.srcs:
        name = relative_to(file, root)
        if name == None:
            fail("{} is not below the import root '{}'".format(repository_path(file), root), attr = "srcs")
        sources.append(struct(name = name, file = file))
    check_unique(sources, "srcs")
    libraries = [dep[ExecutorchLibraryInfo] for dep in ctx.attr.deps]
    files = depset(ctx.files.srcs, transitive = [library.files for library in libraries])
    return [
        DefaultInfo(files = depset(ctx.files.srcs), runfiles = ctx.runfiles(transitive_files = files)),
        ExecutorchLibraryInfo(
            files = files,
            sources = depset(sources, transitive = [library.sources for library in libraries]),
        ),
    ]

_LIBRARY_ATTRS = {
    "deps": attr.label_list(
        doc = "Libraries that `srcs` import.",
        providers = [ExecutorchLibraryInfo],
    ),
    "import_root": attr.string(
        doc = "The directory where import paths start, relative to this package. `.` is the package itself: `net.py` is " +
              "`import net`. Default: the root of the repository.",
    ),
    "srcs": attr.label_list(
        doc = "The Python sources. They must be below the import root.",
        allow_files = [".py"],
        mandatory = True,
    ),
}

executorch_library = rule(
    implementation = _executorch_library_impl,
    doc = """Python sources of models that several programs share.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_library", "executorch_program")

executorch_library(
    name = "backbone",
    srcs = ["backbone.py"],
)

executorch_program(
    name = "embedder",
    srcs = ["embedder.py"],
    manifest = "embedder.yaml",
    deps = [":backbone"],
)
```

In the package `models/common`, `embedder.py` imports the library with `import models.common.backbone`.
""",
    attrs = _LIBRARY_ATTRS,
    provides = [ExecutorchLibraryInfo],
)
