"""Samples: declared lists of files with inputs of methods, which calibration, comparison and tests read."""
