"""What the tests of the rules use of `unittest.bzl` in bazel_skylib, for Bazel 4, which reads no MODULE.bazel."""

_ActionsInfo = provider(doc = "The actions of a target.", fields = {"actions": "list of Action."})

def _actions_impl(target, _ctx):
    return [_ActionsInfo(actions = target.actions)]

_actions = aspect(implementation = _actions_impl)

def _make(impl, expect_failure = False, attrs = {}, config_settings = {}):
    settings = dict(config_settings)
    if expect_failure:
        settings["//command_line_option:allow_analysis_failures"] = "True"
    changed = {"cfg": analysis_test_transition(settings = settings)} if settings else {}
    target = attr.label(aspects = [_actions], mandatory = True, **changed)
    return rule(impl, attrs = dict(attrs, target_under_test = target), analysis_test = True, test = True)

def _begin(ctx):
    return struct(ctx = ctx, failures = [])

def _end(env):
    return [AnalysisTestResultInfo(success = not env.failures, message = "\n".join(env.failures))]

def _target_under_test(env):
    target = env.ctx.attr.target_under_test
    return target[0] if type(target) == "list" else target

def _target_actions(env):
    return _target_under_test(env)[_ActionsInfo].actions

def _true(env, condition, msg = "a condition is false"):
    if not condition:
        env.failures.append(msg)

def _equals(env, expected, actual, msg = ""):
    _true(env, expected == actual, "{} is {}, not {}".format(msg, actual, expected))

def _expect_failure(env, expected_failure_msg):
    causes = [cause.message for cause in _target_under_test(env)[AnalysisFailureInfo].causes.to_list()]
    said = "\n".join(causes)
    _true(env, expected_failure_msg in said, "no error has the words {}: {}".format(expected_failure_msg, said))

analysistest = struct(
    begin = _begin,
    end = _end,
    make = _make,
    target_actions = _target_actions,
    target_under_test = _target_under_test,
)
asserts = struct(equals = _equals, expect_failure = _expect_failure, true = _true)
