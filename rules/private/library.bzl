"""The rule executorch_library: Python sources that several programs share. Libraries of Python's own rules work too."""

load("@rules_executorch_host//:host.bzl", "PACKAGES", "PY_INFOS")
load("//rules:providers.bzl", "ExecutorchLibraryInfo")
load("//toolchain:runfiles.bzl", "runfiles_path")
load(":common.bzl", "import_root")
load(":compat.bzl", "label_text")
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

def _place_in_site_packages(file):
    """Returns the path of a file of an installed package below `site-packages`; None for other files."""
    before, _, after = ("/" + file.short_path).rpartition("/site-packages/")
    return after if before else None

def _installed(files):
    """Returns the names of the packages that files belong to, as locks have them."""
    places = [place for place in [_place_in_site_packages(file) for file in files] if place]
    named = [place.split("/")[0].split("-")[0] for place in places if ".dist-info/" in place]

    # Without their metadata, packages are known by what they are imported as.
    named = named or [place.split("/")[0].replace(".py", "") for place in places]
    return {name.lower().replace("_", "-").replace(".", "-"): True for name in named}.keys()

def _note_packages(ctx, target, missing):
    """Tells the user about packages that the toolchain does not have. A toolchain of the user's own may have them."""

    # buildifier: disable=print
    print("{}: `deps` names {}, which needs Python packages that are not in the locks of the toolchain: {}. {}".format(
        label_text(ctx.label),
        label_text(target.label),
        ", ".join(sorted(missing)),
        "A model can import packages of the toolchain only. To add these, write `more_requirements`: see `Packages of " +
        "your own` in docs/getting-started.md.",
    ))

_PythonLibraryInfo = provider(
    doc = "A library of Python's own rules, as programs use it.",
    fields = {
        "library": "ExecutorchLibraryInfo.",
        "missing": "list of string: the packages that it needs and that the locks of the toolchain lack.",
    },
)

def _python_library(ctx, target):
    """Looks at each file of a library of Python's own rules, and returns _PythonLibraryInfo."""
    py = _py_info(target)
    imports = py.imports.to_list()
    sources = {file: True for file in py.transitive_sources.to_list()}
    runfiles = target[DefaultInfo].default_runfiles.files.to_list()
    files = [file for file in sources if file.extension == "py" and _place_in_site_packages(file) == None]
    named = [
        struct(name = name, file = file)
        for file in files
        for name in _names(runfiles_path(ctx, file), imports)
    ]
    return _PythonLibraryInfo(
        library = ExecutorchLibraryInfo(
            data = depset([
                file
                for file in runfiles
                if file not in sources and file.extension != "pyc" and _place_in_site_packages(file) == None
            ]),
            files = depset(files),
            sources = depset(named),
        ),
        missing = [name for name in _installed(sources.keys() + runfiles) if name not in PACKAGES],
    )

def _python_library_impl(target, ctx):
    return [_python_library(ctx, target)] if _py_info(target) and ExecutorchLibraryInfo not in target else []

# For attributes that take `LIBRARIES`: Bazel then looks at the files of a library once, and not for each program that uses it.
python_library = aspect(
    implementation = _python_library_impl,
    doc = "Describes a library of Python's own rules as programs use it.",
)

def library_of(ctx, target):
    """Returns the sources of a library, and its data.

    Args:
      ctx: the context of the rule.
      target: Target with one of the providers in `LIBRARIES`.

    Returns:
      ExecutorchLibraryInfo. It leaves out installed packages (`site-packages`): the toolchain has those. A note names what the
      toolchain lacks.
    """
    if ExecutorchLibraryInfo in target:
        return target[ExecutorchLibraryInfo]

    # Rules of the user's own may not have the aspect.
    found = target[_PythonLibraryInfo] if _PythonLibraryInfo in target else _python_library(ctx, target)
    if found.missing:
        _note_packages(ctx, target, found.missing)
    return found.library

def data_of(libraries):
    """Returns the data of libraries.

    Args:
      libraries: list of ExecutorchLibraryInfo. Rules of the user's own can leave `data` out.

    Returns:
      depset of File.
    """
    return depset(transitive = [library.data for library in libraries if hasattr(library, "data")])

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
    data = depset(ctx.files.data, transitive = [data_of(libraries)])
    return [
        DefaultInfo(
            files = depset(ctx.files.srcs),
            runfiles = ctx.runfiles(transitive_files = depset(transitive = [files, data])),
        ),
        ExecutorchLibraryInfo(
            data = data,
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
    "data": attr.label_list(
        doc = "Files for the programs that use the library: they are among the `data` of each, by the same names.",
        allow_files = True,
    ),
    "deps": attr.label_list(
        doc = "Libraries that `srcs` import: `executorch_library`, or `py_library` and other rules that provide `PyInfo`.",
        aspects = [python_library],
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
