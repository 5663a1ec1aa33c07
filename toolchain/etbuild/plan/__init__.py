"""The plan: the content of a manifest, as typed values and as canonical JSON.

To add a key to the manifest, add a field to a class of `parts`, with its type, default and description: the schemas are
made from it. `plan` decides which steps read it. A value that is not in a step's plan is not in its key.
"""
