"""How macros pass the attributes that every target has to the targets that they define.

A macro with several targets gives each of them one of these:

- the targets that its documentation names get `common_attributes`;
- a target that only other targets of the macro use gets `helper_attributes`.

So attributes of a macro, such as where it can be built, hold for all targets that it defines.
"""

_COMMON = [
    "compatible_with",
    "deprecation",
    "exec_compatible_with",
    "exec_properties",
    "features",
    "restricted_to",
    "tags",
    "target_compatible_with",
    "testonly",
    "visibility",
]

# Attributes that Bazel's `test_suite` lacks. Its tests have them.
_NOT_OF_SUITES = ["exec_compatible_with", "exec_properties", "target_compatible_with"]

def common_attributes(attributes):
    """Returns the attributes of a macro that every target has.

    Args:
      attributes: dict, the attributes of the macro.

    Returns:
      dict, those of them that any rule takes.
    """
    return {name: attributes[name] for name in _COMMON if name in attributes}

def suite_attributes(attributes):
    """Returns the attributes of a macro for the `test_suite` that it defines.

    Args:
      attributes: dict, the attributes of the macro.

    Returns:
      dict.
    """
    common = common_attributes(attributes)
    return {name: value for name, value in common.items() if name not in _NOT_OF_SUITES}

def helper_attributes(attributes):
    """Returns the attributes of a target that only other targets of a macro use.

    Other packages cannot name it, and `//...` does not build it.

    Args:
      attributes: dict, the attributes of the macro.

    Returns:
      dict.
    """
    common = common_attributes(attributes)
    tags = [tag for tag in common.get("tags") or [] if tag != "manual"]
    common.update(tags = tags + ["manual"], visibility = ["//visibility:private"])
    return common
