"""Arm: Ethos-U NPUs, TOSA graphs, and VGF for the ML extensions for Vulkan."""
