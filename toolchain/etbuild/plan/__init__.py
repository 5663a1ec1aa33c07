"""The plan: what a manifest asks for, as typed values and as canonical JSON.

To add a key to the manifest, add its default to `normalize`, its type to a class of `parts`, and its schema to
`schemas/plan.schema.json`. `plan` decides which steps read it. A value that is not in a step's plan is not in its key.
"""
