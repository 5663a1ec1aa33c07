"""What Bazel 7.7 still has of this name, also without globals of languages. In Bazel 9, rules_cc has it itself."""

cc_common = native.legacy_globals.cc_common
