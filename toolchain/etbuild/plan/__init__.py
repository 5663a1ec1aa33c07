"""The plan: what a manifest asks for, as typed values and as canonical JSON.

A new key of the manifest goes into `normalize` (its default), into a class of `parts` (its type), and into
`schemas/plan.schema.json`. `plan` decides which steps read it: what is in no step's plan is in no step's key.
"""
