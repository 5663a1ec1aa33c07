"""The rule executorch_library: Python sources that several programs share. Libraries of Python's own rules work too."""

load("@rules_executorch_host//:host.bzl", "PY_INFOS")
load("//rules:providers.bzl", "ExecutorchLibraryInfo")
load("//toolchain:runfiles.bzl", "runfiles_path")
load(":common.bzl", "import_root")
load(":names.bzl", "check_unique", "relative_to", "repository_path")

# The providers of targets that can be in `deps`: any one of these.
LIBRARIES = [[ExecutorchLibraryInfo]] + [[py_info] for py_info in PY_INFOS]

def _py_info(target):
    """Returns the PyInfo of a target, or None."""
    found = [target[py_info] for py_info in PY_INFOS if py_info in target]
    return found[0] if found else None

def _names(path, imports):
    """Returns the import paths of a file, by its path in the runfiles and the import roots of its library.

    It can be imported from the root of its repository, and from each of these import roots.
    """
    names = [path.partition("/")[2]]
    for root in imports:
        if path.startswith(root + "/"):
            names.append(path[len(root) + 1:])
    return {name: True for name in names}.keys()

def library_of(ctx, target):
    """Returns the sources of a library.

    Args:
      ctx: the context of the rule.
      target: Target with one of the providers in `LIBRARIES`.

    Returns:
      ExecutorchLibraryInfo. It leaves out installed packages (`site-packages`): the toolchain has those.
    """
    if ExecutorchLibraryInfo in target:
        return target[ExecutorchLibraryInfo]
    py = _py_info(target)
    imports = py.imports.to_list()
    files = [
        file
        for file in py.transitive_sources.to_list()
        if file.extension == "py" and "site-packages" not in file.short_path.split("/")
    ]
    return ExecutorchLibraryInfo(
        files = depset(files),
        sources = depset([
            struct(name = name, file = file)
            for file in files
            for name in _names(runfiles_path(ctx, file), imports)
        ]),
    )

def _import_root(ctx):
    root = import_root(ctx.label.package, ctx.attr.import_root)
    if root == None:
        fail("'{}' is not a path below this package".format(ctx.attr.import_root), attr = "import_root")
    return root

def _executorch_library_impl(ctx):
    root = _import_root(ctx)
    sources = []
    for file in ctx.files.srcs:
        name = relative_to(file, root)
        if name == None:
            fail("{} is not below the import root '{}'".format(repository_path(file), root), attr = "srcs")
        sources.append(struct(name = name, file = file))
    check_unique(sources, "srcs")
    libraries = [library_of(ctx, dep) for dep in ctx.attr.deps]
    files = depset(ctx.files.srcs, transitive = [library.files for library in libraries])
    return [
        DefaultInfo(files = depset(ctx.files.srcs), runfiles = ctx.runfiles(transitive_files = files)),
        ExecutorchLibraryInfo(
            files = files,
            sources = depset(sources, transitive = [library.sources for library in libraries]),
        ),
    ] + _py_infos(ctx, root)

def _py_infos(ctx, root):
    """Returns each known kind of PyInfo, so that Python's own rules can use the library."""
    repository = ctx.label.workspace_name or ctx.workspace_name
    infos = []
    for py_info in PY_INFOS:
        deps = [dep[py_info] for dep in ctx.attr.deps if py_info in dep]
        infos.append(py_info(
            imports = depset([repository + "/" + root] if root else [], transitive = [dep.imports for dep in deps]),
            transitive_sources = depset(
                ctx.files.srcs,
                transitive = [dep.transitive_sources for dep in deps],
                order = "postorder",
            ),
        ))
    return infos

_LIBRARY_ATTRS = {
    "deps": attr.label_list(
        doc = "Libraries that `srcs` import: `executorch_library`, or `py_library` and other rules that provide `PyInfo`.",
        providers = LIBRARIES,
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

In the package `models/common`, `embedder.py` imports the library with `import models.common.backbone`. The rules of Python,
such as `py_test`, can depend on `:backbone` too: it provides `PyInfo`.
""",
    attrs = _LIBRARY_ATTRS,
    provides = [ExecutorchLibraryInfo],
)
