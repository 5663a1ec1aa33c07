"""Bazel 4's own C++ rules, under the names that its built-in packages load from rules_cc."""

# The built-in packages refuse rules without this tag.
_TAG = ["__CC_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__"]

def _tagged(kwargs):
    return dict(kwargs, tags = kwargs.get("tags", []) + _TAG)

def cc_binary(**kwargs):
    native.cc_binary(**_tagged(kwargs))

def cc_library(**kwargs):
    native.cc_library(**_tagged(kwargs))

def cc_test(**kwargs):
    native.cc_test(**_tagged(kwargs))

def cc_toolchain(**kwargs):
    native.cc_toolchain(**_tagged(kwargs))

def cc_toolchain_suite(**kwargs):
    native.cc_toolchain_suite(**_tagged(kwargs))

def objc_library(**kwargs):
    native.objc_library(**_tagged(kwargs))
