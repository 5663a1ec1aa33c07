"""C++ for applications: typed wrappers of programs, and programs as arrays."""
