"""The configuration of programs: a single one for all targets that need them, and one that chooses a toolchain.

A program is the same for every compilation mode and target platform, unless something that it is made of has a `select()`.
"""

load(":bazel4.bzl", "OPTIONS_OF_PLATFORMS", "check_known", "options_to_keep")

_FLAG = str(Label("//toolchain:one_configuration"))
_TOOLCHAIN = str(Label("//toolchain:name"))
_OPTION = "//command_line_option:"

# The options of the single configuration. The mode, platform and suffix of the outputs' directory are unusual on
# purpose: Bazel 4 names it after the options that transitions have changed, so each transition has to change them.
_FIXED = {
    _OPTION + "compilation_mode": "dbg",
    _OPTION + "platform_suffix": "one",
    _OPTION + "platforms": [str(Label("//toolchain:any_platform"))],
    # Several configurations of one output directory share their actions. Bazel shares none that lists unused inputs.
    str(Label("//toolchain:lines")): False,
}

# Options that rules for phones change for each processor and version of a system, with their values on this machine.
_OF_THIS_MACHINE = {_OPTION + name: value for name, value in OPTIONS_OF_PLATFORMS.items()}
_CPU = _OPTION + "cpu"
_HOST_CPU = _OPTION + "host_cpu"
_CHANGED = [_CPU, _TOOLCHAIN] + list(_FIXED) + list(_OF_THIS_MACHINE)
_KEPT = options_to_keep(_CHANGED)

def _configuration_of_program_impl(settings, attr):
    check_known(attr, ["configuration", "toolchain"])
    toolchain = {_TOOLCHAIN: attr.toolchain or settings[_TOOLCHAIN]}
    chosen = attr.configuration or ("one" if settings[_FLAG] else "target")
    if chosen == "one":
        return dict(dict(_FIXED, **_OF_THIS_MACHINE), **dict(toolchain, **{_CPU: settings[_HOST_CPU]}))
    if toolchain[_TOOLCHAIN] == settings[_TOOLCHAIN]:
        return {setting: settings[setting] for setting in _KEPT}
    return dict({setting: settings[setting] for setting in _CHANGED}, **toolchain)

configuration_of_program = transition(
    implementation = _configuration_of_program_impl,
    inputs = [_FLAG, _HOST_CPU] + _CHANGED,
    outputs = _CHANGED,
)
