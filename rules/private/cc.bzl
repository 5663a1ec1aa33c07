"""The macros executorch_cc_library and executorch_embed, and the rule executorch_runtime: programs in C++."""

load("@rules_executorch_host//:cc.bzl", "CC_COMMON", "CC_INFO", "CC_LIBRARY", "CC_TOOLCHAIN")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":cc_helpers.bzl", "group")
load(":common.bzl", "attribute_options")
load(":driver.bzl", "driver_arguments", "run_driver")
load(":macros.bzl", "helper_attributes")
load(":program_attribute.bzl", "program_attribute", "program_info")

# The libraries of the wheel that programs need: the runtime and its backends for any Linux machine, and its kernels.
_LIBRARIES = [
    "libexecutorch.so",
    "libexecutorch_backend_xnnpack.so",
    "libexecutorch_threadpool.so",
]
_KERNELS = [
    "libexecutorch_kernels_optimized.so",
    "libexecutorch_kernels_quantized.so",
]

# Macros that code with the headers of the wheel must define, from its executorch-config.cmake.
_DEFINES = ["C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED", "ET_USE_THREADPOOL"]

_C10 = "executorch/runtime/core/portable_type/c10"

def _cpp_files_impl(ctx):
    program = program_info(ctx.attr.program, "program")
    suffixes = [".h"] + (["_data.h", "_data.cc"] if ctx.attr.embed else [])
    outputs = [ctx.actions.declare_file(ctx.attr.stem + suffix) for suffix in suffixes]
    arguments = driver_arguments(ctx, "cpp")
    arguments.add(program.index)
    arguments.add("-o", outputs[0].dirname)
    arguments.add_all(attribute_options("name", "--stem", [ctx.attr.stem]))
    for attribute in ["namespace", "max_bytes"]:
        value = getattr(ctx.attr, attribute)
        arguments.add_all(attribute_options(attribute, "--" + attribute.replace("_", "-"), [value] if value else []))
    if ctx.attr.embed:
        arguments.add("--embed")
    data = [program.pte] + program.named_data.values() if ctx.attr.embed else []
    run_driver(
        ctx,
        arguments,
        inputs = [program.index, program.report] + data,
        outputs = outputs,
        mnemonic = "ExecutorchCpp",
        progress = "Writing C++ for",
    )
    return [
        DefaultInfo(files = depset(outputs)),
        OutputGroupInfo(
            headers = depset([file for file in outputs if file.extension == "h"]),
            sources = depset([file for file in outputs if file.extension == "cc"]),
        ),
    ]

_cpp_files = rule(
    implementation = _cpp_files_impl,
    attrs = {
        "embed": attr.bool(),
        "max_bytes": attr.int(),
        "namespace": attr.string(),
        "program": program_attribute(mandatory = True),
        "stem": attr.string(mandatory = True),
    },
    toolchains = [str(TOOLCHAIN_TYPE)],
)

def _library(name, program, runtime, namespace, embed, max_bytes, data, kwargs):
    files = name + "_cpp"
    helper = helper_attributes(kwargs)
    _cpp_files(
        name = files,
        embed = embed,
        max_bytes = max_bytes,
        namespace = namespace,
        program = program,
        stem = name,
        **helper
    )
    for part in ("headers", "sources"):
        group(name = "{}_{}".format(files, part), group = part, target = files, **helper)
    CC_LIBRARY(
        name = name,
        copts = ["-std=c++17"] + kwargs.pop("copts", []),
        srcs = [":{}_sources".format(files)] if embed else [],
        hdrs = [":{}_headers".format(files)],
        data = data + kwargs.pop("data", []),
        deps = [runtime] + kwargs.pop("deps", []),
        **kwargs
    )

def executorch_cc_library(name, program, runtime, namespace = "", **kwargs):
    """A C++ class for a program, in the header `NAME.h`. It loads the program from files.

    ```starlark
    load(
        "@rules_executorch//rules:cc.bzl",
        "executorch_cc_library",
        "executorch_embed",
        "executorch_runtime",
    )
    load("@rules_executorch//rules:defs.bzl", "executorch_program")

    executorch_program(
        name = "net",
        srcs = ["model.py"],
        manifest = "net.yaml",
    )

    executorch_runtime(
        name = "runtime",
    )

    executorch_cc_library(
        name = "net_cc",
        program = ":net",
        runtime = ":runtime",
    )

    executorch_embed(
        name = "net_embedded",
        program = ":net",
        runtime = ":runtime",
    )
    ```

    ```cpp
    #include "models/net_cc.h"

    int main() {
      net::Net model("models");  // the directory of net.pte
      if (model.load() != etbuild::Error::Ok) {
        return 1;
      }
      const std::array<float, 8> input = {0, 1, 2, 3, 4, 5, 6, 7};
      auto results = model.forward(input);
      return results.ok() ? 0 : 1;
    }
    ```

    The class has a method for each method of the program. The compiler checks the dtypes and the static shapes of arguments.
    Code that includes the header is compiled as C++17.

    Args:
      name: string, the name of the `cc_library` and of the header.
      program: label of an `executorch_program`. Its files are in the runfiles of the library.
      runtime: label of a `cc_library` with ExecuTorch's runtime, such as an `executorch_runtime`.
      namespace: string, the namespace of the class. Default: the name of the program.
      **kwargs: more attributes of the `cc_library`.
    """
    _library(name, program, runtime, namespace, False, 0, [program], kwargs)

def executorch_embed(name, program, runtime, namespace = "", max_bytes = 0, **kwargs):
    """The same class, and the files of the program as arrays: `NAME_data.h` declares `embedded_files()`.

    The class takes the result of `embedded_files()` in place of a directory. A program with one file of named data, or with
    none, can be embedded.

    Args:
      name: string, the name of the `cc_library` and of the headers `NAME.h` and `NAME_data.h`.
      program: label of an `executorch_program`.
      runtime: label of a `cc_library` with ExecuTorch's runtime, such as an `executorch_runtime`.
      namespace: string, the namespace of the class. Default: the name of the program.
      max_bytes: int, the largest size of all files. Default: 16 MiB.
      **kwargs: more attributes of the `cc_library`.
    """
    _library(name, program, runtime, namespace, True, max_bytes, [], kwargs)

def _executorch_runtime_impl(ctx):
    include = ctx.actions.declare_directory(ctx.label.name + ".include")
    names = sorted(_LIBRARIES + (_KERNELS if ctx.attr.kernels else []))
    libraries = [ctx.actions.declare_file("{}.lib/{}".format(ctx.label.name, name)) for name in names]
    arguments = driver_arguments(ctx, "runtime")
    arguments.add_all([ctx.file.wheel] if ctx.file.wheel else [], before_each = "--wheel")
    arguments.add_all("--include", [include], expand_directories = False)
    arguments.add_all(libraries, format_each = "--library=%s")
    run_driver(
        ctx,
        arguments,
        inputs = ctx.files.wheel,
        outputs = [include] + libraries,
        mnemonic = "ExecutorchRuntime",
        progress = "Copying ExecuTorch's runtime for",
    )
    toolchain = ctx.attr._cc_toolchain[CC_COMMON.CcToolchainInfo]
    features = CC_COMMON.configure_features(
        cc_toolchain = toolchain,
        ctx = ctx,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    linked = CC_COMMON.create_linker_input(
        libraries = depset([
            CC_COMMON.create_library_to_link(
                actions = ctx.actions,
                cc_toolchain = toolchain,
                dynamic_library = library,
                feature_configuration = features,
            )
            for library in libraries
        ]),
        owner = ctx.label,
        # The linker must keep them all: kernels and backends register themselves, and no symbol refers to them. Options come
        # after libraries, so they name them again: some compilers drop such libraries by default.
        user_link_flags = depset(
            ["-Wl,--push-state,--no-as-needed"] +
            ["-l" + name[len("lib"):-len(".so")] for name in names] +
            ["-Wl,--pop-state"],
            order = "preorder",
        ),
    )
    return [
        DefaultInfo(files = depset(libraries), runfiles = ctx.runfiles(libraries)),
        CC_INFO(
            compilation_context = CC_COMMON.create_compilation_context(
                defines = depset(_DEFINES),
                headers = depset([include]),
                system_includes = depset([include.path, "{}/{}".format(include.path, _C10)]),
            ),
            linking_context = CC_COMMON.create_linking_context(linker_inputs = depset([linked])),
        ),
    ]

executorch_runtime = rule(
    implementation = _executorch_runtime_impl,
    doc = """ExecuTorch's C++ runtime from a wheel: headers, portable, optimized and quantized kernels, and XNNPACK, for Linux
machines. The wheel of the toolchain is for machines like the one that builds. It is what Python runs, so both give the same bytes.

An application for a phone builds ExecuTorch itself, with the kernels that `executorch_kernels_library` registers.
""",
    attrs = {
        "kernels": attr.bool(
            default = True,
            doc = "Whether it has kernels. Without them, the programs of an application run with those of an " +
                  "`executorch_kernels_library`. With both, an operator would have two kernels, which ends the process.",
        ),
        "wheel": attr.label(
            doc = "Another wheel of ExecuTorch, for the platform that is built for: the target `:wheel` of an " +
                  "`executorch_wheel`, or `@pypi//executorch:whl` of rules_python, often in a `select()`. Default: that of the toolchain.",
            allow_single_file = [".whl"],
        ),
        "_cc_toolchain": attr.label(default = CC_TOOLCHAIN),
    },
    fragments = ["cpp"],
    provides = [CC_INFO],
    toolchains = [str(TOOLCHAIN_TYPE)],
)
