"""The rules for a lockfile under Buck2: one target writes it, the other is a test that compares the program with it."""

load("//rules/private:common.bzl", "ENVIRONMENT")
load(":driver.bzl", "DRIVER_ATTRS")
load(":providers.bzl", "ExecutorchProgramInfo", "ExecutorchToolchainInfo")

def _command(ctx: AnalysisContext, arguments: list):
    return cmd_args(
        ctx.attrs._toolchain.get(ExecutorchToolchainInfo).driver,
        "lock",
        ctx.attrs.program.get(ExecutorchProgramInfo).index,
        arguments,
    )

def _executorch_lock_update_impl(ctx: AnalysisContext) -> list[Provider]:
    path = "/".join([part for part in [ctx.label.package, ctx.attrs.lock_name] if part])
    lock = cmd_args(ctx.label.cell_root, path, delimiter = "/")
    return [DefaultInfo(), RunInfo(args = _command(ctx, [lock, "--update"]))]

def _executorch_lock_test_impl(ctx: AnalysisContext) -> list[Provider]:
    hint = "--hint=buck2 run {}".format(ctx.attrs.update.raw_target())
    command = _command(ctx, [ctx.attrs.lock or ctx.attrs.lock_name, hint])
    return [
        DefaultInfo(),
        ExternalRunnerTestInfo(
            command = [command],
            env = ENVIRONMENT,
            labels = ctx.attrs.labels,
            run_from_project_root = True,
            type = "executorch_lock",
            use_project_relative_paths = True,
        ),
        RunInfo(args = command),
    ]

_UPDATE_ATTRS = {
    "lock_name": attrs.string(doc = "The file name of the lockfile."),
    "program": attrs.dep(doc = "The program.", providers = [ExecutorchProgramInfo]),
    "_toolchain": DRIVER_ATTRS["_toolchain"],
}

executorch_lock_update = rule(
    impl = _executorch_lock_update_impl,
    attrs = _UPDATE_ATTRS,
)

executorch_lock_test = rule(
    impl = _executorch_lock_test_impl,
    attrs = dict(
        _UPDATE_ATTRS,
        labels = attrs.list(attrs.string(), default = []),
        lock = attrs.option(attrs.source(), default = None, doc = "The lockfile, if it exists."),
        update = attrs.label(doc = "The target that writes the lockfile, for the message."),
    ),
)
