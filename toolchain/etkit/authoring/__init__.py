"""Manifests and build files: the first ones, targets that stay current, and what a change affects."""
