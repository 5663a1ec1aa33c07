"""The module extension of the rules. Only MODULE.bazel files can use it."""

load("//rules/private:compat.bzl", "reproducible")
load("//rules/private:host_repository.bzl", "host_repository")
load("//rules/private:packages_repository.bzl", "EXTRAS", "check_extras", "packages_repository")

def _extras(module_ctx):
    """Returns the extras that any module asks for. They fit together: an extra adds packages and changes none."""
    extras = {}
    for module in module_ctx.modules:
        for tag in module.tags.packages:
            check_extras(tag.extras, module.name or "of the root")
            extras.update({extra: True for extra in tag.extras})
    return sorted(extras)

def _executorch_impl(module_ctx):
    tags = [tag for module in module_ctx.modules if module.is_root for tag in module.tags.packages]
    if len(tags) > 1:
        fail("the root module calls executorch.packages(...) {} times: keep one call".format(len(tags)))
    locks = {"extras": _extras(module_ctx)}
    kwargs = {}
    py_info = None
    for tag in tags:
        py_info = tag.py_info
        kwargs.update({"packages": tag.packages, "pip_args": tag.pip_args, "python": tag.python})
        locks["more_requirements"] = tag.more_requirements
        if tag.requirements:
            locks["requirements"] = tag.requirements
    host_repository(name = "rules_executorch_host", platform = "@platforms//host", py_info = py_info, **locks)
    packages_repository(name = "rules_executorch_packages", **dict(kwargs, **locks))
    return reproducible(module_ctx)

_PACKAGES_ATTRS = {
    "extras": attr.string_list(
        doc = "Extra packages that some backends and kinds of models need: {}.".format(
            ", ".join(["`{}`".format(extra) for extra in EXTRAS]),
        ) + " The toolchain has the extras of all modules.",
    ),
    "more_requirements": attr.label_list(
        doc = "Locks in pip's format with packages of your own, which the toolchain has in addition.",
    ),
    "packages": attr.string_dict(
        doc = "A `packages.pex` that was built before, such as by CI: `{\"url\": \"https://...\", \"sha256\": \"...\"}`. Then " +
              "pip does not run.",
    ),
    "pip_args": attr.string_list(
        doc = "More arguments for pip, such as `[\"--extra-index-url\", ...]` with an index of CPU builds of torch.",
    ),
    "py_info": attr.label(
        doc = "A `.bzl` file with a `PyInfo`, for Python libraries that do not provide Bazel's own. Bazel 9 has none: with " +
              "rules_python, write `\"@rules_python//python:py_info.bzl\"`.",
    ),
    "python": attr.string(
        doc = "The path of a Python 3.11. Default: `python3.11` on the PATH.",
    ),
    "requirements": attr.label(
        doc = "A lock in pip's format that replaces the lock of the rules. To add packages, use `more_requirements`.",
    ),
}

_packages = tag_class(
    doc = "How the packages are built. The call is optional. The `extras` of every module count, and all else of the root " +
          "module only.",
    attrs = _PACKAGES_ATTRS,
)

executorch = module_extension(
    implementation = _executorch_impl,
    doc = """Declares `@rules_executorch_packages`: torch, ExecuTorch and what they need. Also declares
`@rules_executorch_host`, which downloads nothing: what the rules have to know about Bazel and this machine.

```starlark
bazel_dep(name = "rules_executorch", version = "0.1.0")

executorch = use_extension("@rules_executorch//rules:extensions.bzl", "executorch")
executorch.packages(extras = ["huggingface"])
```

The last two lines are optional. Without them, there are no extra packages, and pip uses the indexes of its own
configuration. The Linux build of torch from the default index also works, but it installs CUDA packages that lowering does
not use.
""",
    tag_classes = {"packages": _packages},
)
