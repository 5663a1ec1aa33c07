"""Rules for packages of programs for registries, and their bytes by team. `defs.bzl` has them too."""

load("//rules/private:package.bzl", _executorch_package = "executorch_package")
load("//rules/private:push.bzl", _executorch_push = "executorch_push")
load("//rules/private:size_report.bzl", _executorch_size_report = "executorch_size_report")

executorch_package = _executorch_package
executorch_push = _executorch_push
executorch_size_report = _executorch_size_report
