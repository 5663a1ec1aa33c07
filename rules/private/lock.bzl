"""The macro executorch_lock: a lockfile with the digests of a program, checked in beside it.

It makes two targets: one writes the lockfile, the other is a test that compares the program with it.
"""

load("//toolchain:runfiles.bzl", "quoted", "runfiles_path")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":bazel4.bzl", "without_spaces")
load(":driver_script.bzl", "DRIVER_SCRIPT_ATTRS", "driver_script")
load(":macros.bzl", "common_attributes")
load(":program_attribute.bzl", "program_attribute", "program_info")

_SCRIPT = """\
exec "$(rlocation {driver})" lock "$(rlocation {index})" {arguments}
"""

_REFUSE = """\
echo {error} >&2
exit 1
"""

def _script(ctx, arguments, files):
    """Returns the providers of a target that runs the driver's verb `lock` with these arguments."""
    index = program_info(ctx.attr.program, "program").index
    path = quoted(runfiles_path(ctx, index))
    return driver_script(ctx, _SCRIPT, [index] + files, arguments = arguments, index = path)

def _command(label):
    """Returns the command that writes a lockfile, in the workspace of its own repository."""
    target = "//{}:{}".format(label.package, label.name)
    return "bazel run " + (quoted(target) if " " in target else target)

def _lock_test_impl(ctx):
    lock = quoted(ctx.attr.lock_name)
    files = ctx.files.lock
    if files:
        files = [without_spaces(ctx, files[0], ctx.label.name + ".lock.json")]
        lock = "\"$(rlocation {})\"".format(quoted(runfiles_path(ctx, files[0])))
    hint = _command(ctx.attr.update.label)
    if ctx.label.workspace_name:
        hint += " in the workspace of the repository {}".format(ctx.label.workspace_name)
    return _script(ctx, "{} --hint={}".format(lock, quoted(hint)), files)

_UPDATE_ATTRS = dict(DRIVER_SCRIPT_ATTRS, **{
    "lock_name": attr.string(
        doc = "The file name of the lockfile.",
        mandatory = True,
    ),
    "program": program_attribute(
        doc = "The program.",
        mandatory = True,
    ),
})

_TEST_ATTRS = dict(
    _UPDATE_ATTRS,
    lock = attr.label(
        doc = "The lockfile, if it exists.",
        allow_single_file = [".json"],
    ),
    update = attr.label(
        doc = "The target that writes the lockfile, for the message.",
        mandatory = True,
    ),
)

_lock_test = rule(
    implementation = _lock_test_impl,
    attrs = _TEST_ATTRS,
    test = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)

def _lock_update_impl(ctx):
    path = "/".join([part for part in [ctx.label.package, ctx.attr.lock_name] if part])
    if ctx.label.workspace_name:
        # Bazel names only the main workspace, and the files of another repository can be a copy that Bazel throws away.
        error = "The lockfile {} belongs to the repository {}, and not to this workspace. Nothing was written. Run `{}` {}".format(
            path,
            ctx.label.workspace_name,
            _command(ctx.label),
            "in the workspace of that repository.",
        )
        return driver_script(ctx, _REFUSE, [], error = quoted(error))
    return _script(ctx, "\"${{BUILD_WORKSPACE_DIRECTORY:?start this with bazel run}}\"/{} --update".format(quoted(path)), [])

_lock_update = rule(
    implementation = _lock_update_impl,
    attrs = _UPDATE_ATTRS,
    executable = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)

def executorch_lock(name, program, lock, **kwargs):
    """Checks that a program does not change by accident: a test compares it with a lockfile.

    ```starlark
    load("@rules_executorch//rules:defs.bzl", "executorch_lock", "executorch_program")

    executorch_program(
        name = "net",
        srcs = ["model.py"],
        manifest = "net.yaml",
    )

    executorch_lock(
        name = "update",
        lock = "net.lock.json",
        program = ":net",
    )
    ```

    `bazel run :update` writes the lockfile `net.lock.json` in your source tree. Run it once to create the file, and again
    after a change that you want. `bazel test :update_test` fails if the program is not the one of the lockfile, and prints
    what changed.

    Args:
      name: string, the name of the target that writes the lockfile. The test is `NAME_test`.
      program: label of an `executorch_program`.
      lock: string, the file name of the lockfile, in this package. The file need not exist yet.
      **kwargs: more attributes of the test. Those that every target has, such as `visibility` and `tags`, are for both.
    """
    if "/" in lock or ":" in lock:
        fail("'{}' is not the name of a file in this package".format(lock), attr = "lock")
    size = kwargs.pop("size", "small")
    _lock_update(name = name, lock_name = lock, program = program, **common_attributes(kwargs))
    _lock_test(
        name = name + "_test",
        lock = lock if native.glob([lock], allow_empty = True) else None,
        lock_name = lock,
        program = program,
        size = size,
        update = name,
        **kwargs
    )
