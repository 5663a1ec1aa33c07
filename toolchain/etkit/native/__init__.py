"""C++ for applications: typed classes and arrays of programs, and the kernels that they need."""
