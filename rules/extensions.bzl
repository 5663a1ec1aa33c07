"""The module extension of the rules. Only MODULE.bazel files can use it."""

load("//rules/private:compat.bzl", "reproducible")
load("//rules/private:extras.bzl", "check_extras")
load("//rules/private:host_repository.bzl", "host_repository")
load("//rules/private:packages_repository.bzl", "PACKAGES_ATTRS", "packages_repository")
load("//rules/private:platforms.bzl", "check_platform")
load("//rules/private:pythons.bzl", "check_version")
load("//rules/private:toolchains_repository.bzl", "packages_of", "toolchains_repository")

def _extras(module_ctx):
    """Returns the extras that any module asks for. They fit together: an extra adds packages and changes none."""
    extras = {}
    for module in module_ctx.modules:
        for tag in module.tags.toolchain:
            check_extras(tag.extras, "" if module.is_root else module.name)
            if not module.is_root:
                extras.update({extra: True for extra in tag.extras})
    return extras

def _check_name(name):
    wrong = [char for char in name.elems() if not (char.isalnum() or char == "_") or char != char.lower()]
    if wrong or not name:
        fail("executorch.toolchain: `{}` is no name: use lower-case letters, digits and `_`".format(name))

def _toolchains_of_root(module_ctx):
    """Returns the tags of the root module by name. The default toolchain is there without a tag, as the last one."""
    found = {}
    for module in module_ctx.modules:
        for tag in module.tags.toolchain if module.is_root else []:
            _check_name(tag.name)
            if tag.name in found:
                fail("the root module calls executorch.toolchain(name = \"{}\") twice: {}".format(
                    tag.name,
                    "keep one call, or give another `name`",
                ))
            check_platform(tag.platform)
            check_version(tag.python_version)
            found[tag.name] = tag
    found.setdefault("default", None)
    return found

def _py_info(tags):
    """Returns the `py_info` of the tags."""
    found = {tag.py_info: True for tag in tags if tag and tag.py_info}.keys()
    if len(found) > 1:
        fail("the root module names two files as `py_info`: {}".format(", ".join([str(label) for label in found])))
    return found[0] if found else None

def _executorch_impl(module_ctx):
    tags = _toolchains_of_root(module_ctx)
    of_modules = _extras(module_ctx)
    for name, tag in tags.items():
        kwargs = {attribute: getattr(tag, attribute) for attribute in PACKAGES_ATTRS} if tag else {}
        extras = dict(of_modules, **{extra: True for extra in kwargs.get("extras", [])})
        kwargs["extras"] = sorted(extras)
        packages_repository(name = packages_of(name), **kwargs)
    toolchains_repository(
        name = "rules_executorch_toolchains",
        toolchains = {name: tag.platform if tag else "" for name, tag in tags.items()},
    )
    host_repository(
        name = "rules_executorch_host",
        is_module = True,
        platform = "@platforms//host",
        py_info = _py_info(tags.values()),
    )
    return reproducible(module_ctx)

_TOOLCHAIN_ATTRS = dict(PACKAGES_ATTRS, **{
    "name": attr.string(
        doc = "The name of the toolchain: lower-case letters, digits and `_`. `--@rules_executorch//toolchain:name=NAME` builds " +
              "with it. Its packages are in `@rules_executorch_packages_NAME`, and those of the default one in " +
              "`@rules_executorch_packages`.",
        default = "default",
    ),
    "py_info": attr.label(
        doc = "A `.bzl` file with a `PyInfo`, for Python rules that provide neither that of rules_python nor Bazel's own. It " +
              "holds for all toolchains.",
    ),
})

_toolchain = tag_class(
    doc = "A toolchain: torch, ExecuTorch and what they need. The call is optional: without it, there is the toolchain " +
          "`default` with the locks of the rules, which is always the last one if it is not called. The `extras` of other " +
          "modules are in all toolchains; all else counts in the root module only.",
    attrs = _TOOLCHAIN_ATTRS,
)

executorch = module_extension(
    implementation = _executorch_impl,
    doc = """Declares toolchains, each with its Python packages: torch, ExecuTorch and what they need.

```starlark
bazel_dep(name = "rules_executorch", version = "0.1.0")

executorch = use_extension("@rules_executorch//rules:extensions.bzl", "executorch")
executorch.toolchain(extras = ["huggingface"])
executorch.toolchain(
    name = "next",
    python_version = "3.12",
    requirements = "//third_party:next.lock",
)
```

The last lines are optional. Without them there is one toolchain without extra packages.

`rules_executorch` registers the toolchains. Bazel takes the first one whose packages run on the execution platform;
`--@rules_executorch//toolchain:name=next` chooses one by its name. Packages are fetched when a program is built with them.
The extension also declares `@rules_executorch_toolchains`, the hub with the toolchains, and `@rules_executorch_host`, what the
rules have to know about Bazel and this machine.
""",
    tag_classes = {"toolchain": _toolchain},
)
