"""The command line for people, and what surrounds a build: tests, benchmarks, pages, packages, C++, build files.

`etbuild` builds, and never imports this package: the driver of an action does not contain it.
"""
