"""The report, the index, and the manifest's checks."""
