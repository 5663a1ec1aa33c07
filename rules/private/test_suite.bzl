"""The macro executorch_program_test_suite: tests of several programs."""

load(":macros.bzl", "suite_attributes")
load(":test.bzl", "executorch_program_test")

def executorch_program_test_suite(name, programs, **kwargs):
    """Tests several programs, such as the variants of a manifest. Skips those for backends that cannot run here.

    ```starlark
    load("@rules_executorch//rules:defs.bzl", "executorch_program_test_suite", "executorch_programs")

    executorch_programs(
        name = "net",
        srcs = ["model.py"],
        manifest = "net.yaml",
        variants = {
            "int8": {"export": None},
            "ios": {},
        },
    )

    executorch_program_test_suite(
        name = "net_tests",
        programs = [":net", ":net.int8", ":net.ios"],
    )
    ```

    `bazel test :net_tests` runs `net_tests.net`, `net_tests.net.int8` and `net_tests.net.ios`.

    Args:
      name: string, the name of the suite. Each test is called `NAME.PROGRAM`.
      programs: list of labels of `executorch_program` targets.
      **kwargs: more attributes of every `executorch_program_test`. The suite has those of them that every target has, such as
        `tags` and `visibility`.
    """
    if type(programs) != "list":
        fail("write a list of labels: a suite has a test for each program, so its macro has to know them", attr = "programs")
    tests = []
    for program in programs:
        target = program.rpartition(":")[2].rpartition("/")[2]
        test = "{}.{}".format(name, target)
        if test in tests:
            fail("two programs are called '{}': put them into two suites".format(target), attr = "programs")
        tests.append(test)
        executorch_program_test(name = test, program = program, **dict({"unavailable": "skip"}, **kwargs))
    native.test_suite(name = name, tests = tests, **suite_attributes(kwargs))
