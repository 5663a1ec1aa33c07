"""The rule executorch_toolchain: it chooses the driver that plans, exports and lowers programs."""

load(":configuration.bzl", "FlagInfo", "PackagesInfo")
load(":driver_sources.bzl", "DriverPluginsInfo")
load(":steps.bzl", "STEPS")

TOOLCHAIN_TYPE = Label("//toolchain:toolchain_type")

def _executorch_toolchain_impl(ctx):
    default = ctx.attr.driver[DefaultInfo]
    steps = {step: getattr(ctx.attr, step) for step in STEPS}
    return [platform_common.ToolchainInfo(
        driver = default.files_to_run,
        drivers = {step: (driver or ctx.attr.driver)[DefaultInfo].files_to_run for step, driver in steps.items()},
        lines = ctx.attr._lines[FlagInfo].value,
        # The names of the driver's Python packages. None: unknown.
        packages = ctx.attr.driver[PackagesInfo].names if PackagesInfo in ctx.attr.driver else None,
        # The directories of plug-ins that the drivers of steps do not have. None of them: they have all.
        plugins = ctx.attr.plugins[DriverPluginsInfo].directories if ctx.attr.plugins else {},
        runfiles = default.default_runfiles,
        supports_workers = ctx.attr.supports_workers,
    )]

_STEP_DOC = "Like `driver`, for the actions of this verb only, with the files that they run. Without it they run `driver`."

_TOOLCHAIN_ATTRS = dict({
    step: attr.label(doc = _STEP_DOC, cfg = "exec", executable = True)
    for step in STEPS
}, **{
    "driver": attr.label(
        doc = "An executable with the verbs of `etbuild`. Each verb may also get `--rule-target=LABEL`, `--rule-command=WORDS` and " +
              "`--rule-attribute=OPTION=ATTRIBUTE`, which only change words of its errors. A change to the driver or to its runfiles runs its actions again.",
        cfg = "exec",
        executable = True,
        mandatory = True,
    ),
    "plugins": attr.label(
        doc = "Plug-ins that the drivers of steps do not have. Actions get those that their targets name. Without it they have all.",
        cfg = "exec",
        providers = [DriverPluginsInfo],
    ),
    "supports_workers": attr.bool(
        doc = "Whether the driver is a persistent worker when its only argument is `--persistent_worker`. It then speaks " +
              "Bazel's worker protocol (`proto`). A script that passes all arguments and the standard streams to " +
              "`etbuild` is such a driver.",
    ),
    "_lines": attr.label(
        default = Label("//toolchain:lines"),
    ),
})

executorch_toolchain = rule(
    implementation = _executorch_toolchain_impl,
    doc = """A toolchain that runs a driver of your own, for example one with a vendor's SDK.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_toolchain")

executorch_toolchain(
    name = "with_vendor_sdk",
    driver = "@rules_executorch//toolchain:etbuild",
    supports_workers = True,
)

toolchain(
    name = "toolchain",
    toolchain = ":with_vendor_sdk",
    toolchain_type = "@rules_executorch//toolchain:toolchain_type",
)
```

Replace the driver of the example with your executable. Then register the toolchain: call `register_toolchains` with the
label of `:toolchain` in your WORKSPACE or MODULE.bazel file. Bazel uses it instead of the default one.
""",
    attrs = _TOOLCHAIN_ATTRS,
)
