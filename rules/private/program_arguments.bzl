"""Arguments of the driver for a target that runs a finished program: in a test or a benchmark."""

load("//rules:providers.bzl", "ExecutorchProgramInputsInfo")
load("//toolchain:runfiles.bzl", "quoted", "runfiles_path")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":bazel4.bzl", "without_spaces")
load(":common.bzl", "attribute_options", "hint_arguments", "read_by")
load(":compat.bzl", "ETBUILD", "label_text")
load(":library.bzl", "check_packages", "data_of", "installed_of", "library_of")
load(":names.bzl", "check_unique", "named_beside", "repository_path")
load(":program_attribute.bzl", "program_info")

def located(ctx, prefix, file):
    """Returns an argument that ends with the path of a file, as a word of a shell that has `rlocation`.

    Args:
      ctx: the context of the rule.
      prefix: string, the text before the path.
      file: File, one of the runfiles.

    Returns:
      string.
    """
    return "{}\"$(rlocation {})\"".format(quoted(prefix) if prefix else "", quoted(runfiles_path(ctx, file)))

def program_arguments(ctx, program, srcs = [], deps = [], data = []):
    """Returns what the driver needs to make the inputs of a program again, and to run it.

    Args:
      ctx: the context of the rule.
      program: Target with the providers in `RUNNABLE`.
      srcs: list of Files, more Python sources.
      deps: list of targets, libraries that `srcs` import.
      data: list of Files, more data.

    Returns:
      struct of `arguments` (a list of words of a shell that has `rlocation`) and `files` (a list of Files).
    """
    made, program = program_info(program, "program"), program[ExecutorchProgramInputsInfo]
    libraries = [library_of(ctx, dep) for dep in deps]
    check_packages(ctx.label, installed_of(libraries), ctx.toolchains[TOOLCHAIN_TYPE])
    own = named_beside(srcs, program.manifest)
    sources = program.inputs.sources.to_list() + own
    _check_once(sources, "srcs")
    sources += depset(transitive = [library.sources for library in libraries]).to_list()
    _check_once(sources, "deps")
    every = read_by("", program.inputs) + named_beside(data, program.manifest)
    _check_once(every, "data")
    listed = {entry.file: True for entry in every}
    every += named_beside([file for file in data_of(libraries).to_list() if file not in listed], program.manifest)
    _check_once(every, "deps")
    sources, every = _runfiles(ctx, sources, "sources"), _runfiles(ctx, every, "data")
    manifest = without_spaces(ctx, program.manifest, ctx.label.name + ".manifest.yaml")

    arguments = [
        located(ctx, "", manifest),
        quoted("--manifest-name=" + repository_path(program.manifest)),
        quoted("--program-name=" + program.name),
        located(ctx, "--program=", made.pte),
    ] + [quoted(argument) for argument in hint_arguments(label_text(ctx.label), ETBUILD)]
    if program.variant:
        arguments.append(quoted("--variant=" + program.variant))
    parameters = ["{}={}".format(name, value) for name, value in sorted(program.parameters.items())]
    arguments += [quoted(argument) for argument in attribute_options("parameters", "--set", parameters)]
    arguments += [located(ctx, "--source={}=".format(name), sources[name]) for name in sorted(sources)]
    arguments += [located(ctx, "--data={}=".format(name), every[name]) for name in sorted(every)]
    files = [manifest, made.pte, made.index, made.report] + made.named_data.values()
    return struct(arguments = arguments, files = files + sources.values() + every.values())

def _check_once(named, attribute):
    """Fails if two files have one name. A target may list a file that the program has too."""
    check_unique({(entry.name, entry.file): entry for entry in named if entry.name != "__init__.py"}.values(), attribute)

def _runfiles(ctx, named, kind):
    """Returns the files by name, with links in place of those that cannot be runfiles."""
    files = {entry.name: entry.file for entry in named}
    return {
        name: without_spaces(ctx, files[name], "{}.{}/{}".format(ctx.label.name, kind, number))
        for number, name in enumerate(sorted(files))
    }
