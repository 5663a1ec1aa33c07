"""Tests a program: compares what it computes in ExecuTorch's runtime with what the model computes in eager PyTorch."""

from etbuild import plugins

plugins.import_module("etplugins")  # from beside this package: tests use what the plug-in of the comparison computes
