"""Constant methods that describe the inputs and outputs of all methods, as libraries of applications read them."""
