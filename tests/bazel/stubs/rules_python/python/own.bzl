"""A name for a global: a file that gives it its own name cannot read it."""

own_py_info = PyInfo
