"""The toolchain for Buck2: it chooses the driver that plans, exports and lowers programs."""

load("//rules/private:facts.bzl", "PLUGINS")
load("//toolchain:steps.bzl", "STEPS", "files_of_plugin", "files_of_step")
load(":providers.bzl", "DriverSourcesInfo", "ExecutorchToolchainInfo", "StepDriversInfo")

def _executorch_driver_sources_impl(ctx: AnalysisContext) -> list[Provider]:
    return [
        DefaultInfo(default_outputs = ctx.attrs.srcs),
        DriverSourcesInfo(launcher = ctx.attrs.launcher, main = ctx.attrs.main, srcs = ctx.attrs.srcs),
    ]

executorch_driver_sources = rule(
    impl = _executorch_driver_sources_impl,
    doc = "The Python package of the driver, without its packages.",
    attrs = {
        "launcher": attrs.source(doc = "The script that starts the package: `launch_buck2.sh`."),
        "main": attrs.source(doc = "The `__main__.py` of the Python package."),
        "srcs": attrs.list(attrs.source(), doc = "All files of the Python package."),
    },
)

def _executorch_driver_impl(ctx: AnalysisContext) -> list[Provider]:
    sources = ctx.attrs.sources.get(DriverSourcesInfo)

    def run(srcs):
        return RunInfo(args = cmd_args("bash", sources.launcher, ctx.attrs.packages, sources.main, hidden = srcs))

    files = {_path_in_package(file): file for file in sources.srcs}
    steps = {step: run([files[path] for path in files_of_step(files.keys(), step)]) for step in STEPS}
    plugins = {plugin: [files[path] for path in files_of_plugin(files.keys(), plugin)] for plugin in PLUGINS}
    return [DefaultInfo(), run(sources.srcs), StepDriversInfo(drivers = steps, plugins = plugins)]

def _path_in_package(file: Artifact) -> str:
    """Returns the path of a file of the driver, such as `etbuild/errors.py`. Empty for a file of another package."""
    for place in ("etbuild/", "etplugins/"):
        _, package, path = file.short_path.partition(place)
        if package:
            return package + path
    return ""

executorch_driver = rule(
    impl = _executorch_driver_impl,
    doc = """The driver with its packages, as an executable.

`packages` is a file with the packages of the locks. `toolchain/build_packages.py` builds it. Its content is part of every
key, so that other packages build again.
""",
    attrs = {
        "packages": attrs.source(doc = "The `packages.pex`."),
        "sources": attrs.dep(
            default = "rules_executorch//toolchain:sources",
            doc = "The Python package of the driver.",
            providers = [DriverSourcesInfo],
        ),
    },
)

def _executorch_worker_impl(ctx: AnalysisContext) -> list[Provider]:
    return [
        DefaultInfo(),
        WorkerInfo(
            exe = cmd_args(ctx.attrs.driver.get(RunInfo), "--persistent_worker"),
            concurrency = ctx.attrs.concurrency,
            supports_bazel_remote_persistent_worker_protocol = True,
        ),
    ]

executorch_worker = rule(
    impl = _executorch_worker_impl,
    doc = """The driver as a persistent worker of a remote executor.

It speaks Bazel's worker protocol, which Buck2 uses on remote executors. Buck2's workers on the own machine speak another one:
there, set `use_persistent_workers = False` in the `CommandExecutorConfig` of the execution platform, or leave `worker` out of
the toolchain.
""",
    attrs = {
        "concurrency": attrs.option(attrs.int(), default = None, doc = "How many actions a worker runs at the same time."),
        "driver": attrs.exec_dep(doc = "The `executorch_driver`.", providers = [RunInfo]),
    },
)

def _executorch_toolchain_impl(ctx: AnalysisContext) -> list[Provider]:
    if ctx.attrs.weight < 1:
        fail("{}: attribute `weight`: {} is not a positive number".format(ctx.label.raw_target(), ctx.attrs.weight))
    steps = ctx.attrs.driver.get(StepDriversInfo)
    return [
        DefaultInfo(),
        ExecutorchToolchainInfo(
            driver = ctx.attrs.driver.get(RunInfo),
            drivers = steps.drivers if steps else {},
            plugins = steps.plugins if steps else {},
            weight = ctx.attrs.weight,
            worker = ctx.attrs.worker.get(WorkerInfo) if ctx.attrs.worker else None,
        ),
    ]

executorch_toolchain = rule(
    impl = _executorch_toolchain_impl,
    doc = """The toolchain of all programs. The cell `toolchains` has one that is called `executorch`.

```starlark
load("@rules_executorch//contrib/buck2:defs.bzl", "executorch_driver", "executorch_toolchain")

executorch_driver(
    name = "etbuild",
    packages = "packages.pex",
)

executorch_toolchain(
    name = "executorch",
    driver = ":etbuild",
    visibility = ["PUBLIC"],
)
```
""",
    attrs = {
        "driver": attrs.exec_dep(
            doc = "An executable with the verbs of `etbuild`. A change to it runs its actions again. An " +
                  "`executorch_driver` has one for each step, with the files that the step runs.",
            providers = [RunInfo],
        ),
        "weight": attrs.int(
            default = 1,
            doc = "How many of the machine's processors an action takes that imports torch. A larger number runs fewer " +
                  "of them at the same time, which takes less memory.",
        ),
        "worker": attrs.option(
            attrs.exec_dep(providers = [WorkerInfo]),
            default = None,
            doc = "An `executorch_worker`, for remote executors.",
        ),
    },
    is_toolchain_rule = True,
)
