"""The providers of the rules. Rules of your own can read them from their dependencies.

This rule collects the programs of several targets:

```starlark
load("@rules_executorch//rules:providers.bzl", "ExecutorchProgramInfo")

def _programs_impl(ctx):
    return [DefaultInfo(files = depset([dep[ExecutorchProgramInfo].pte for dep in ctx.attr.deps]))]

programs = rule(
    implementation = _programs_impl,
    attrs = {"deps": attr.label_list(providers = [ExecutorchProgramInfo])},
)
```
"""

ExecutorchProgramInfo = provider(
    doc = "The files of one program. `executorch_program` provides it.",
    fields = {
        "backends": "list of string: the backends that the target lists; empty if it lists none.",
        "index": "File: `NAME.index.json`, the digests of the outputs and of their inputs.",
        "methods": "list of string: the methods that the target lists; empty if it lists none.",
        "named_data": "dict of tag to File: `NAME.TAG.ptd`, or for a tag with shards the directory `NAME.TAG`.",
        "pte": "File: `NAME.pte`, the program.",
        "report": "File: `NAME.report.json`, facts about each method.",
        "tokenizer": "File: the directory `NAME.tokenizer`; None for a program without a tokenizer.",
    },
)

ExecutorchFilesInfo = provider(
    doc = "Files of a known size. `huggingface_checkpoint` provides it for weights. If `weights` or other inputs of a program have " +
          "it, Bazel reserves memory for them. A rule of your own can provide it.",
    fields = {
        "megabytes": "int: their size, rounded up.",
    },
)

ExecutorchProgramInputsInfo = provider(
    doc = "What a program was built from. `executorch_program` provides it. A rule of your own that gives this and " +
          "`ExecutorchProgramInfo` of a program on can be the `program` of `executorch_program_test` and `executorch_benchmark`.",
    fields = {
        "inputs": "struct: the sources, weights and other files, by the names that the manifest and the sources use for them.",
        "manifest": "File: the manifest.",
        "name": "string: the name of the program.",
        "parameters": "dict of string to string: the values of the manifest's parameters.",
        "variant": "string: the variant of the manifest; empty for the manifest without one.",
    },
)

ExecutorchExportInfo = provider(
    doc = "The exported methods of a program. `executorch_program` provides it, so that programs that export the same can " +
          "share one export.",
    fields = {
        "data": "list of struct(name, file): the files that the export reads, besides the sources.",
        "directory": "File: a directory that holds the exported methods. If each method has a file of its own, it holds " +
                     "only what the methods have in common.",
        "examples": "File: the example inputs of the methods, with which the program is compared.",
        "exported_methods": "dict of method name to File: a `.pt2` for each method; empty if the directory holds them.",
        "input_digests": "File: the digests of the inputs as JSON. They are not in `directory`: an edit that does not " +
                         "change the graphs must not lower them again.",
        "lines": "File: the lines of the sources that the graphs come from, as JSON. Only messages name them.",
        "plan": "File: the part of the plan that the export depends on.",
        "sources": "depset of struct(name, file): the sources that the export imports.",
    },
)

ExecutorchLoweredInfo = provider(
    doc = "The methods of a program that are lowered without weights. `executorch_program` provides it, so that programs that " +
          "differ only in their weights can share them.",
    fields = {
        "templates": "list of File: the directories with the methods; empty if they are lowered with weights.",
    },
)

ExecutorchLibraryInfo = provider(
    doc = "The Python sources of a model. `executorch_library` provides it.",
    fields = {
        "data": "depset of File: files that programs with this library have among their data. It can be left out.",
        "files": "depset of File: the sources, including those of its dependencies.",
        "installed": "depset of struct(name, library, is_certain): the Python packages that its dependencies need: the name of " +
                     "each as indexes write it, the label of the library that needs it, and whether the name stands in its " +
                     "metadata. It can be left out.",
        "sources": "depset of struct(name, file): the same sources. `name` is the import path, such as " +
                   "`models/common/net.py`.",
    },
)
