"""The module extension of the rules. Only MODULE.bazel files load this one.

    executorch = use_extension("@rules_executorch//rules:extensions.bzl", "executorch")
    executorch.packages(
        extras = ["huggingface"],                    # what a backend or a kind of model needs besides
        pip_args = ["--extra-index-url", "..."],     # an index that has CPU builds of torch
    )

The second call is for who needs it, in the root module alone: without it pip asks the indexes of its own configuration.
The registry's own Linux build of torch works too, and brings CUDA's packages along, which lowering does not use.
"""

load("//rules/private:packages_repository.bzl", "EXTRAS", "packages_repository")

def _executorch_impl(module_ctx):
    tags = [tag for module in module_ctx.modules if module.is_root for tag in module.tags.packages]
    if len(tags) > 1:
        fail("executorch.packages(...) stands {} times in the root module: keep one".format(len(tags)))
    kwargs = {}
    for tag in tags:
        kwargs = {"extras": tag.extras, "pip_args": tag.pip_args, "python": tag.python}
        if tag.requirements:
            kwargs["requirements"] = tag.requirements
    packages_repository(name = "rules_executorch_packages", **kwargs)

_packages = tag_class(
    doc = "How the packages that the driver runs on are built.",
    attrs = {
        "extras": attr.string_list(doc = "Extras of the driver's package: {}.".format(", ".join(EXTRAS))),
        "pip_args": attr.string_list(doc = "Further arguments of pip."),
        "python": attr.string(doc = "Path of a Python 3.11. Default: `python3.11` on the PATH."),
        "requirements": attr.label(doc = "A lock that takes the place of the rules' own."),
    },
)

executorch = module_extension(
    implementation = _executorch_impl,
    doc = "Declares `@rules_executorch_packages`.",
    tag_classes = {"packages": _packages},
)
