"""executorch_toolchain: what plans and lowers."""

TOOLCHAIN_TYPE = Label("//toolchain:toolchain_type")

def _executorch_toolchain_impl(ctx):
    default = ctx.attr.driver[DefaultInfo]
    return [platform_common.ToolchainInfo(
        driver = default.files_to_run,
        runfiles = default.default_runfiles,
        supports_workers = ctx.attr.supports_workers,
    )]

executorch_toolchain = rule(
    implementation = _executorch_toolchain_impl,
    doc = """Makes an executable the driver of the rules.

    executorch_toolchain(
        name = "with_vendor_sdk",
        driver = "//tools:etbuild",   # any executable with the verbs of `etbuild`
    )

    toolchain(
        name = "toolchain",
        toolchain = ":with_vendor_sdk",
        toolchain_type = "@rules_executorch//toolchain:toolchain_type",
    )

Register it before the default one, with `register_toolchains`.
""",
    attrs = {
        "driver": attr.label(
            doc = "An executable that takes the verbs of `etbuild`. Its bytes and its runfiles are part of every key.",
            cfg = "exec",
            executable = True,
            mandatory = True,
        ),
        "supports_workers": attr.bool(
            doc = "The driver, started with `--persistent_worker` alone, speaks Bazel's worker protocol (`proto`). One " +
                  "that hands all its arguments and its standard streams on to `etbuild` does.",
        ),
    },
)
