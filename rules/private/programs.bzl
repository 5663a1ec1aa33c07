"""The macros executorch_program and executorch_programs: a program, and a program with its variants."""

load(":common.bzl", "name_with_variant", "names_error", "tags_error")
load(":program.bzl", _executorch_program = "executorch_program")

def executorch_program(name, variant = "", named_data = [], **kwargs):
    """Builds a program: the rule `executorch_program`, with labels for its `.pte` and `.ptd` files.

    Bazel resolves a `select()` after it knows the labels, so a file whose name depends on one has no label.

    Args:
      name: string, the name of the target.
      variant: string, a variant of the manifest.
      named_data: list of string, the tags that have no `shard_size`.
      **kwargs: more attributes of the rule.
    """
    labels = {}
    if type(variant or "") == "string":
        program = name_with_variant(name, variant)
        labels["pte"] = program + ".pte"
        if type(named_data or []) == "list" and not tags_error(named_data or []):  # the rule reports the error
            labels["ptd"] = ["{}.{}.ptd".format(program, tag) for tag in named_data or []]
    _executorch_program(name = name, variant = variant, named_data = named_data, **dict(labels, **kwargs))

def executorch_programs(name, manifest, variants, **kwargs):
    """Builds the program of a manifest, and one program for each of its variants. They share one export.

    ```starlark
    load("@rules_executorch//rules:defs.bzl", "executorch_programs")

    executorch_programs(
        name = "net",
        srcs = ["model.py"],
        manifest = "net.yaml",
        variants = {
            "android": {},
            "int8": {               # its attributes that differ
                "data": ["net.safetensors"],
                "export": None,     # other graphs: an export of its own
                "weights": [],
            },
            "ios": {},
        },
        weights = ["net.safetensors"],
    )
    ```

    `bazel build :net.ios` writes `net.ios.pte` and `net.ios.index.json`.

    Each variant uses the exported methods of `:NAME`. The build fails if a variant would export other methods, such as
    quantized ones, and says what differs. Write `"export": None` for such a variant.

    Args:
      name: string, the `name` in the manifest. The target of a variant is `NAME.VARIANT`.
      manifest: label of the manifest.
      variants: dict of variant name to dict, the attributes of that variant's `executorch_program` that differ.
      **kwargs: more attributes of every `executorch_program`.
    """
    if type(variants) != "dict":
        fail("write a dictionary of the variants' names to the attributes that differ", attr = "variants")
    error = names_error(variants.keys())
    if error:
        fail(error, attr = "variants")
    for variant, own in variants.items():
        if type(own) != "dict":
            fail("`{}`: write a dictionary of the attributes that differ, or {{}}".format(variant), attr = "variants")
        for attribute in ("manifest", "name", "variant"):
            if attribute in own:
                fail("`{}`: leave out `{}`, which all variants have".format(variant, attribute), attr = "variants")
    executorch_program(name = name, manifest = manifest, **kwargs)
    for variant, own in variants.items():
        attributes = dict(kwargs, export = ":" + name)
        attributes.update(own)
        executorch_program(
            name = "{}.{}".format(name, variant),
            manifest = manifest,
            variant = variant,
            **attributes
        )
