"""The kernels that programs need, for applications that link only these."""
