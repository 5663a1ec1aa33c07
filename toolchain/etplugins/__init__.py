"""Plug-ins of the driver: each directory is one. `etbuild.plugins` finds them, and imports none before it is needed."""
