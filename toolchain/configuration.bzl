"""One configuration for programs, whatever the configuration of the targets that need them.

A program is the same for every compilation mode and target platform, unless something that it is made of has a `select()`.
"""

_FLAG = str(Label("//toolchain:one_configuration"))
_PLATFORM = str(Label("//toolchain:any_platform"))
_MODE = "//command_line_option:compilation_mode"
_PLATFORMS = "//command_line_option:platforms"
_SUFFIX = "//command_line_option:platform_suffix"  # of the directory of the outputs; tools have one

def _one_configuration_impl(settings, attr):
    if not hasattr(attr, "configuration"):  # Bazel 4 leaves out an attribute whose value it does not know yet
        fail("this version of Bazel cannot read a select() for `configuration`: write one value")
    chosen = attr.configuration or ("one" if settings[_FLAG] else "target")
    if chosen == "target":
        return {setting: settings[setting] for setting in [_MODE, _PLATFORMS, _SUFFIX]}

    # Values that builds hardly have. Bazel names the directory of the outputs after the values that a transition changes:
    # so it has to change the same ones wherever it comes from.
    return {_MODE: "dbg", _PLATFORMS: [_PLATFORM], _SUFFIX: "one"}

one_configuration = transition(
    implementation = _one_configuration_impl,
    inputs = [_FLAG, _MODE, _PLATFORMS, _SUFFIX],
    outputs = [_MODE, _PLATFORMS, _SUFFIX],
)

FlagInfo = provider(
    doc = "A flag of the command line.",
    fields = {"value": "bool."},
)

def _flag_impl(ctx):
    return [FlagInfo(value = ctx.build_setting_value)]

configuration_flag = rule(
    implementation = _flag_impl,
    build_setting = config.bool(flag = True),
    doc = "A flag of the command line.",
)

PythonInfo = provider(
    doc = "The interpreter on machines that have no virtual environment with the packages, such as remote executors.",
    fields = {"path": "string: an absolute path, or a name that is looked up on the PATH of actions."},
)

def _python_flag_impl(ctx):
    return [PythonInfo(path = ctx.build_setting_value)]

python_flag = rule(
    implementation = _python_flag_impl,
    build_setting = config.string(flag = True),
    doc = "A flag of the command line: the interpreter.",
)
