"""Rules for tests and benchmarks of programs. `defs.bzl` has them too."""

load("//rules/private:benchmark.bzl", _executorch_benchmark = "executorch_benchmark")
load("//rules/private:test.bzl", _executorch_program_test = "executorch_program_test")
load("//rules/private:test_suite.bzl", _executorch_program_test_suite = "executorch_program_test_suite")

executorch_benchmark = _executorch_benchmark
executorch_program_test = _executorch_program_test
executorch_program_test_suite = _executorch_program_test_suite
