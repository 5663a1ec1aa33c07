"""Cortex-M: microcontrollers, with CMSIS-NN's kernels; and Cadence: Tensilica DSPs."""
