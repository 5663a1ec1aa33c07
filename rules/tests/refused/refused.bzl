"""refused: a target with a mistake, and a test of what Bazel says about it while it analyses the target. Nothing is built."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")

def _refused_test_impl(ctx):
    env = analysistest.begin(ctx)
    for words in ctx.attr.says:
        asserts.expect_failure(env, words)
    return analysistest.end(env)

_refused_test = analysistest.make(
    _refused_test_impl,
    attrs = {"says": attr.string_list(mandatory = True)},
    expect_failure = True,
)

def refused(name, rule, says, **kwargs):
    """Makes a target that is wrong, and the test that says so.

    Args:
      name: string, the name of the test.
      rule: a rule or a macro.
      says: list of string, words of the error.
      **kwargs: attributes of the target.
    """
    rule(name = name + ".target", tags = ["manual"], **kwargs)
    _refused_test(name = name, says = says, target_under_test = name + ".target")
