"""The script of a target that is run or tested: it calls the driver."""

load("//toolchain:runfiles.bzl", "RUNFILES_INIT", "RUNFILES_LIBRARY", "quoted", "runfiles_path")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")

_START = """\
#!/usr/bin/env bash
{init}
runfiles_export_envvars
"""

# Attributes of a rule that has such a script.
DRIVER_SCRIPT_ATTRS = {
    "_runfiles": attr.label(
        default = RUNFILES_LIBRARY,
    ),
}

def driver_script(ctx, script, files, **values):
    """Makes a target that runs a script.

    Args:
      ctx: the context of the rule. It has `DRIVER_SCRIPT_ATTRS`.
      script: string, lines of bash after those that define `rlocation`. `{driver}` stands for the path of the driver.
      files: list of Files that the script reads.
      **values: texts that replace other names in braces.

    Returns:
      list of providers.
    """
    toolchain = ctx.toolchains[TOOLCHAIN_TYPE]
    file = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(file, (_START + script).format(
        driver = quoted(runfiles_path(ctx, toolchain.driver.executable)),
        init = RUNFILES_INIT,
        **values
    ), is_executable = True)
    return [DefaultInfo(
        executable = file,
        runfiles = ctx.runfiles(files).merge(toolchain.runfiles).merge(ctx.attr._runfiles[DefaultInfo].default_runfiles),
    )]

def lines_of(arguments):
    """Returns the elements of an array of bash, one a line.

    Args:
      arguments: list of words of bash.

    Returns:
      string.
    """
    return "\n".join(["  " + argument for argument in arguments])
