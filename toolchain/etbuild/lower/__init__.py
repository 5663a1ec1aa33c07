"""Lowering: edge programs, their delegates and their named data."""
