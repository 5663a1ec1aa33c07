"""Packages: programs by content hash, as an OCI image layout on disk and in a registry."""
