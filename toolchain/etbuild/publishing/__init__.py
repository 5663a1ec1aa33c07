"""Publishes the results of a build, and makes builds in one place take turns."""
