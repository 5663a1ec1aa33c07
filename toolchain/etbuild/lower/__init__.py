"""The lowering: edge programs, delegated to backends, with named data."""
