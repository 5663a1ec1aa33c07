"""The rule of this name, as later versions of rules_cc have it in a file of its own."""

load(":defs.bzl", _cc_library = "cc_library")

cc_library = _cc_library
