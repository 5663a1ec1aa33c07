"""Builds on this machine: the steps one after the other, their results in a cache, and a Python interface."""
