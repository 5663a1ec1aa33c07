"""The manifest: strict YAML, checked by its schema and by rules that a schema cannot express."""
