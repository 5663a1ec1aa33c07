"""The manifest: strict YAML, checked against its schema and against rules that a schema cannot express."""
