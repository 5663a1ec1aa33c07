"""The rule executorch_library: Python sources that several programs share. Libraries of Python's own rules work too."""

load("@rules_executorch_host//:host.bzl", "PY_INFOS")
load("//rules:providers.bzl", "ExecutorchLibraryInfo")
load("//toolchain:runfiles.bzl", "runfiles_path")
load("//toolchain:split_packages.bzl", "name_in_indexes")
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

def _installed(target, files):
    """Returns the installed packages that files belong to, as `ExecutorchLibraryInfo` has them."""
    places = [place for place in [_place_in_site_packages(file) for file in files] if place]
    named = [place.split("/")[0].split("-")[0] for place in places if ".dist-info/" in place]

    # Without metadata, a package is known only by its import name.
    names = named or [place.split("/")[0].replace(".py", "") for place in places]
    unique = {name_in_indexes(name): True for name in names}.keys()
    return [struct(name = name, library = label_text(target.label), is_certain = bool(named)) for name in unique]

def check_packages(label, installed, toolchain):
    """Fails if libraries need packages that the toolchain does not have: the model could not import them.

    A package without metadata is known only by its import name. That may not be its own name, so it causes only a note.

    Args:
      label: Label of the target, for the message.
      installed: depset of struct(name, library, is_certain), the result of `installed_of`.
      toolchain: ToolchainInfo. A toolchain of the user's own need not tell which packages it has.
    """
    known = getattr(toolchain, "packages", None)
    if known == None:
        return
    has = {name: True for name in known}
    missing = [package for package in installed.to_list() if package.name not in has]
    if not missing:
        return
    message = "{}: `deps` names {}, which needs Python packages that the toolchain does not have: {}. {}".format(
        label_text(label),
        " and ".join(sorted({package.library: True for package in missing})),
        ", ".join(sorted({package.name: True for package in missing})),
        "A model can import packages of the toolchain only. To add these, write `extra_requirements`: see `Packages of " +
        "your own` in docs/toolchains.md.",
    )
    if [package for package in missing if package.is_certain]:
        fail(message)

    # buildifier: disable=print
    print(message)

def installed_of(libraries):
    """Returns the installed packages of libraries.

    Args:
      libraries: list of ExecutorchLibraryInfo. Rules of the user's own can leave `installed` out.

    Returns:
      depset of struct(name, library, is_certain).
    """
    return depset(transitive = [library.installed for library in libraries if hasattr(library, "installed")])

_PythonLibraryInfo = provider(
    doc = "A library of Python's own rules, as programs use it.",
    fields = {"library": "ExecutorchLibraryInfo."},
)

def _python_library(ctx, target):
    """Looks at each file of a library of Python's own rules, and returns ExecutorchLibraryInfo."""
    py = _py_info(target)
    imports = py.imports.to_list()
    sources = {file: True for file in py.transitive_sources.to_list()}
    runfiles = target[DefaultInfo].default_runfiles.files.to_list()
    files = [file for file in sources if file.extension == "py" and _place_in_site_packages(file) == None]
    return ExecutorchLibraryInfo(
        data = depset([
            file
            for file in runfiles
            if file not in sources and file.extension != "pyc" and _place_in_site_packages(file) == None
        ]),
        files = depset(files),
        installed = depset(_installed(target, sources.keys() + runfiles)),
        sources = depset([
            struct(name = name, file = file)
            for file in files
            for name in _names(runfiles_path(ctx, file), imports)
        ]),
    )

def _python_library_impl(target, ctx):
    if ExecutorchLibraryInfo in target or not _py_info(target):
        return []
    return [_PythonLibraryInfo(library = _python_library(ctx, target))]

# For attributes that take `LIBRARIES`: the aspect looks at the files of a library once, and not for each program.
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
      ExecutorchLibraryInfo. It leaves out installed packages (`site-packages`): the toolchain has those.
      `check_packages` checks this.
    """
    if ExecutorchLibraryInfo in target:
        return target[ExecutorchLibraryInfo]

    # Rules of the user's own may not have the aspect.
    return target[_PythonLibraryInfo].library if _PythonLibraryInfo in target else _python_library(ctx, target)

def data_of(libraries):
    """Returns the data of libraries.

    Args:
      libraries: list of ExecutorchLibraryInfo. Rules of the user's own can leave `data` out.

    Returns:
      depset of File.
    """
    return depset(transitive = [library.data for library in libraries if hasattr(library, "data")])

def covered_sources(ctx):
    """Returns the provider by which `bazel coverage` finds the Python sources of a target.

    Args:
      ctx: the context of the rule. It has the attributes `srcs` and `deps`.

    Returns:
      InstrumentedFilesInfo.
    """
    return coverage_common.instrumented_files_info(
        ctx,
        dependency_attributes = ["deps"],
        extensions = ["py"],
        source_attributes = ["srcs"],
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
    data = depset(ctx.files.data, transitive = [data_of(libraries)])
    return [
        DefaultInfo(
            files = depset(ctx.files.srcs),
            runfiles = ctx.runfiles(transitive_files = depset(transitive = [files, data])),
        ),
        ExecutorchLibraryInfo(
            data = data,
            files = files,
            installed = installed_of(libraries),
            sources = depset(sources, transitive = [library.sources for library in libraries]),
        ),
        covered_sources(ctx),
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
