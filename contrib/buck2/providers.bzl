"""The providers of the rules for Buck2. Rules of your own can read them from their dependencies."""

# The sources of libraries. A value is a list of struct(name, file): `name` is the import path.
EXECUTORCH_SOURCES = transitive_set()

ExecutorchLibraryInfo = provider(
    doc = "The Python sources of a model. `executorch_library` provides it.",
    fields = {
        "sources": provider_field(typing.Any),  # a transitive set of EXECUTORCH_SOURCES
    },
)

ExecutorchExportInfo = provider(
    doc = "The exported methods of a program, so that programs that export the same can share one export.",
    fields = {
        "data": provider_field(list),  # of struct(name, file)
        "directory": provider_field(Artifact),
        "examples": provider_field(Artifact),
        "exported_methods": provider_field(dict),  # of method name to Artifact
        "input_digests": provider_field(Artifact),
        "lines": provider_field(Artifact),
        "plan": provider_field(Artifact),
        "sources": provider_field(list),  # of struct(name, file)
    },
)

ExecutorchLoweredInfo = provider(
    doc = "The methods of a program that are lowered without weights, so that programs that differ only in them share these.",
    fields = {
        "templates": provider_field(list),  # of Artifact; empty if the methods are lowered with weights
    },
)

ExecutorchProgramInfo = provider(
    doc = "The files of one program. `executorch_program` provides it.",
    fields = {
        "backends": provider_field(list[str]),
        "index": provider_field(Artifact),  # NAME.index.json
        "methods": provider_field(list[str]),
        "named_data": provider_field(dict),  # of tag to Artifact
        "pte": provider_field(Artifact),  # NAME.pte
        "report": provider_field(Artifact),  # NAME.report.json
        "tokenizer": provider_field(Artifact | None, default = None),
    },
)

ExecutorchToolchainInfo = provider(
    doc = "What plans, exports and lowers programs. `executorch_toolchain` provides it.",
    fields = {
        "driver": provider_field(RunInfo),
        "drivers": provider_field(dict, default = {}),  # of the verb of a step to RunInfo
        "plugins": provider_field(dict, default = {}),  # of the name of a plug-in that these drivers lack to its files
        "weight": provider_field(int, default = 1),
        "worker": provider_field(WorkerInfo | None, default = None),
    },
)

StepDriversInfo = provider(
    doc = "The driver of each step, with the files that the step runs. `executorch_driver` provides it.",
    fields = {
        "drivers": provider_field(dict),  # of the verb of a step to RunInfo
        "plugins": provider_field(dict),  # of the name of a plug-in that only some programs use to its files
    },
)

DriverSourcesInfo = provider(
    doc = "The Python package of the driver. `executorch_driver_sources` provides it.",
    fields = {
        "launcher": provider_field(Artifact),
        "main": provider_field(Artifact),
        "srcs": provider_field(list[Artifact]),
    },
)
