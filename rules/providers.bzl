"""What the targets of these rules tell the targets that depend on them."""

ExecutorchProgramInfo = provider(
    doc = "A program: the files of one manifest.",
    fields = {
        "backends": "list of string: the backends, where the target declares them; else empty.",
        "index": "File: `NAME.index.json`, the digests of the artifacts and of what they were made from.",
        "methods": "list of string: the methods, where the target declares them; else empty.",
        "named_data": "dict of tag to File: `NAME.TAG.ptd` for each tag; of a tag in shards the directory `NAME.TAG`.",
        "pte": "File: `NAME.pte`, the program.",
        "report": "File: `NAME.report.json`, facts about each method.",
    },
)

ExecutorchLibraryInfo = provider(
    doc = "Python sources of models.",
    fields = {
        "files": "depset of File: the sources, those of dependencies too.",
        "sources": "depset of struct(name, file): each source with its import path, such as `models/common/net.py`.",
    },
)
