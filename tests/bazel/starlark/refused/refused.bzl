"""refused_test: a target with a mistake, and what Bazel says about it while it analyses the target. Nothing is built."""

def _refused_test_impl(ctx):
    causes = [cause.message for cause in ctx.attr.target[0][AnalysisFailureInfo].causes.to_list()]
    said = "\n".join(causes)
    missing = [words for words in ctx.attr.says if words not in said]
    if missing:  # so `build --nobuild` is enough, and starts no process for each test
        fail("no error has these words: {}. The errors:\n{}".format(missing, said))
    return [AnalysisTestResultInfo(success = True, message = "")]

_refused_test = rule(
    implementation = _refused_test_impl,
    analysis_test = True,
    attrs = {
        "says": attr.string_list(),
        "target": attr.label(
            cfg = analysis_test_transition(settings = {"//command_line_option:allow_analysis_failures": "True"}),
        ),
    },
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
    _refused_test(name = name, says = says, target = name + ".target")
