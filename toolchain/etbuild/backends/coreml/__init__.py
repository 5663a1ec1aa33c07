"""Core ML."""
