"""The rule executorch_named_data: one named-data file of a program."""

load(":compat.bzl", "label_text")
load(":program_attribute.bzl", "program_attribute", "program_info")

def _executorch_named_data_impl(ctx):
    named_data = program_info(ctx.attr.program, "program").named_data
    if ctx.attr.tag not in named_data:
        fail("{} has no named data '{}'. It has {}".format(
            label_text(ctx.attr.program.label),
            ctx.attr.tag,
            ", ".join(["'{}'".format(tag) for tag in sorted(named_data)]) or "none: list the tags in `named_data`",
        ), attr = "tag")
    file = named_data[ctx.attr.tag]
    return [DefaultInfo(files = depset([file]), runfiles = ctx.runfiles([file]))]

_NAMED_DATA_ATTRS = {
    "program": program_attribute(
        doc = "The program (`executorch_program`).",
        mandatory = True,
    ),
    "tag": attr.string(
        doc = "A tag in the program's `named_data` or `sharded_named_data`.",
        mandatory = True,
    ),
}

executorch_named_data = rule(
    implementation = _executorch_named_data_impl,
    doc = """One named-data file (`.ptd`) of a program, as a target that you can ship or test by itself.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_named_data", "executorch_program")

executorch_program(
    name = "tiny_lm",
    srcs = ["model.py"],
    manifest = "model.yaml",
    named_data = ["weights"],
    weights = ["tiny_lm.safetensors"],
)

executorch_named_data(
    name = "weights",
    program = ":tiny_lm",
    tag = "weights",
)
```

`bazel build :weights` builds `tiny_lm.weights.ptd`. For a tag with shards, it builds the directory of the shards.
""",
    attrs = _NAMED_DATA_ATTRS,
)
