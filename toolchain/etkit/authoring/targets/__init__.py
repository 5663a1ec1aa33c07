"""Writes and updates the targets of manifests in the files of build systems."""
