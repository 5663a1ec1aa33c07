"""executorch_lock: what a program's artifacts are, checked in beside it.

The macro makes two targets: one that fails when the program is no longer the one of the lockfile, and one that writes it.
"""

load("//rules:providers.bzl", "ExecutorchProgramInfo")
load("//toolchain:runfiles.bzl", "runfiles_path")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":compat.bzl", "label_text")

# Runfiles lie beside the script under `bazel run`; `bazel test` names their place.
_SCRIPT = """\
#!/bin/sh
set -eu
export RUNFILES_DIR="${{RUNFILES_DIR:-$0.runfiles}}"
case $RUNFILES_DIR in
  /*) ;;
  *) RUNFILES_DIR=$PWD/$RUNFILES_DIR ;;
esac
exec "$RUNFILES_DIR/{driver}" lock "$RUNFILES_DIR/{index}" {arguments}
"""

def _script(ctx, arguments, files):
    """The script of a target that runs the driver's verb `lock`."""
    toolchain = ctx.toolchains[TOOLCHAIN_TYPE]
    index = ctx.attr.program[ExecutorchProgramInfo].index
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(script, _SCRIPT.format(
        arguments = arguments,
        driver = runfiles_path(ctx, toolchain.driver.executable),
        index = runfiles_path(ctx, index),
    ), is_executable = True)
    return [DefaultInfo(
        executable = script,
        runfiles = ctx.runfiles([index] + files).merge(toolchain.runfiles),
    )]

def _lock_test_impl(ctx):
    lock = "$RUNFILES_DIR/" + runfiles_path(ctx, ctx.file.lock) if ctx.file.lock else ctx.attr.lock_name
    hint = "bazel run " + label_text(ctx.attr.update.label)
    return _script(ctx, "\"{}\" --hint='{}'".format(lock, hint), ctx.files.lock)

_lock_test = rule(
    implementation = _lock_test_impl,
    attrs = {
        "lock": attr.label(allow_single_file = [".json"]),
        "lock_name": attr.string(mandatory = True),
        "program": attr.label(mandatory = True, providers = [ExecutorchProgramInfo]),
        "update": attr.label(mandatory = True),
    },
    test = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)

def _lock_update_impl(ctx):
    directory = "/".join([part for part in [ctx.label.package, ctx.attr.lock_name] if part])
    return _script(ctx, "\"$BUILD_WORKSPACE_DIRECTORY/{}\" --update".format(directory), [])

_lock_update = rule(
    implementation = _lock_update_impl,
    attrs = {
        "lock_name": attr.string(mandatory = True),
        "program": attr.label(mandatory = True, providers = [ExecutorchProgramInfo]),
    },
    executable = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)

def executorch_lock(name, program, lock, **kwargs):
    """Keeps a program as it is until someone says otherwise.

        executorch_lock(
            name = "update",
            lock = "net.lock.json",
            program = ":net",
        )

    `bazel test :update_test` fails, with what changed, when the program is not the one of the lockfile;
    `bazel run :update` writes the lockfile, also the first time.

    Args:
      name: of the target that writes; the test is `NAME_test`.
      program: an `executorch_program`.
      lock: the lockfile, in this package. It need not be there yet.
      **kwargs: of both targets, such as `visibility` and `tags`; `size` is the test's.
    """
    if "/" in lock or ":" in lock:
        fail("'{}' is not the name of a file in this package".format(lock), attr = "lock")
    size = kwargs.pop("size", "small")
    _lock_update(name = name, lock_name = lock, program = program, **kwargs)
    _lock_test(
        name = name + "_test",
        lock = lock if native.glob([lock], allow_empty = True) else None,
        lock_name = lock,
        program = program,
        size = size,
        update = name,
        **kwargs
    )
