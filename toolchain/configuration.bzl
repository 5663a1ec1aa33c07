"""The flags of the command line: whether programs have one configuration, and the interpreter of remote executors."""

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
