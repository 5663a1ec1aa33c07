"""What a test of a program needs to make its model again."""

ProgramInputsInfo = provider(
    doc = "What a program was built from, and its files. `executorch_program` provides it for tests.",
    fields = {
        "index": "File: the index.",
        "inputs": "struct: the result of `program_inputs`.",
        "manifest": "File: the manifest.",
        "name": "string: the name of the program.",
        "named_data": "list of File: the named data.",
        "parameters": "dict of string to string: the values of the manifest's parameters.",
        "pte": "File: the program.",
        "report": "File: the report.",
        "variant": "string: the variant of the manifest; empty for the manifest without one.",
    },
)
