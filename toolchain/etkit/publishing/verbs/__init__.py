"""The verbs of this plug-in, one in each module."""
