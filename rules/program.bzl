"""Rules for programs, their variants, checkpoints, libraries and lockfiles. `defs.bzl` has them too."""

load("//rules/private:checkpoints.bzl", _executorch_checkpoints = "executorch_checkpoints")
load("//rules/private:library.bzl", _executorch_library = "executorch_library")
load("//rules/private:lock.bzl", _executorch_lock = "executorch_lock")
load("//rules/private:named_data.bzl", _executorch_named_data = "executorch_named_data")
load("//rules/private:programs.bzl", _executorch_program = "executorch_program", _executorch_programs = "executorch_programs")

executorch_checkpoints = _executorch_checkpoints
executorch_library = _executorch_library
executorch_lock = _executorch_lock
executorch_named_data = _executorch_named_data
executorch_program = _executorch_program
executorch_programs = _executorch_programs
