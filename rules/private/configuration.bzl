"""One configuration for programs, whatever the configuration of the targets that need them.

A program is the same for every compilation mode and target platform, unless something that it is made of has a `select()`.
"""

load(":compat.bzl", "OPTIONS_OF_PLATFORMS", "options_to_keep")

_FLAG = str(Label("//toolchain:one_configuration"))
_OPTION = "//command_line_option:"

# What one configuration has. Builds hardly have this mode, this platform or this suffix of the outputs' directory: Bazel 4
# names that directory after the options that transitions have changed, so these have to change wherever they come from.
_FIXED = {
    _OPTION + "compilation_mode": "dbg",
    _OPTION + "platform_suffix": "one",
    _OPTION + "platforms": [str(Label("//toolchain:any_platform"))],
    # Several configurations of one output directory share their actions. Bazel shares none that lists unused inputs.
    str(Label("//toolchain:lines")): False,
}

# What rules for phones change besides, for each processor and least version of a system: here as on this machine.
_OF_THIS_MACHINE = {_OPTION + name: value for name, value in OPTIONS_OF_PLATFORMS.items()}
_CPU = _OPTION + "cpu"
_HOST_CPU = _OPTION + "host_cpu"
_CHANGED = [_CPU] + list(_FIXED) + list(_OF_THIS_MACHINE)
_KEPT = options_to_keep(_CHANGED)

def _one_configuration_impl(settings, attr):
    if not hasattr(attr, "configuration"):  # Bazel 4 leaves out an attribute whose value it does not know yet
        fail("this version of Bazel cannot read a select() for `configuration`: write one value")
    chosen = attr.configuration or ("one" if settings[_FLAG] else "target")
    if chosen == "target":
        return {setting: settings[setting] for setting in _KEPT}
    return dict(dict(_FIXED, **_OF_THIS_MACHINE), **{_CPU: settings[_HOST_CPU]})

one_configuration = transition(
    implementation = _one_configuration_impl,
    inputs = [_FLAG, _HOST_CPU] + _KEPT,
    outputs = _CHANGED,
)
