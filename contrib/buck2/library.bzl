"""The rule executorch_library for Buck2: Python sources that several programs share."""

load("//rules/private:common.bzl", "below", "import_root", "unique_error")
load(":files.bzl", "FILE", "check", "files_of", "place")
load(":providers.bzl", "EXECUTORCH_SOURCES", "ExecutorchLibraryInfo")

def _executorch_library_impl(ctx: AnalysisContext) -> list[Provider]:
    root = import_root(ctx.label.package, ctx.attrs.import_root)
    if root == None:
        check(ctx, ("import_root", "'{}' is not a path below this package".format(ctx.attrs.import_root)))
    sources = []
    for file in [file for item in ctx.attrs.srcs for file in files_of(ctx, item)]:
        name = below(file.path, root)
        if name == None:
            check(ctx, ("srcs", "{} is not below the import root '{}'".format(file.path, root)))
        sources.append(struct(file = file.file, name = name))
    error = unique_error(sources, place)
    check(ctx, ("srcs", error) if error else None)
    return [
        DefaultInfo(default_outputs = [source.file for source in sources]),
        ExecutorchLibraryInfo(sources = ctx.actions.tset(
            EXECUTORCH_SOURCES,
            children = [dep.get(ExecutorchLibraryInfo).sources for dep in ctx.attrs.deps],
            value = sources,
        )),
    ]

executorch_library = rule(
    impl = _executorch_library_impl,
    doc = "Python sources of models that several programs share. They are imported by their paths in the cell.",
    attrs = {
        "deps": attrs.list(
            attrs.dep(providers = [ExecutorchLibraryInfo]),
            default = [],
            doc = "Libraries that `srcs` import.",
        ),
        "import_root": attrs.string(
            default = "",
            doc = "The directory where import paths start, relative to this package. `.` is the package itself. Default: " +
                  "the root of the cell.",
        ),
        "srcs": attrs.list(FILE, doc = "The Python sources. They must be below the import root."),
    },
)
