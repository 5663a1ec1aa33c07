"""The macros executorch_program, executorch_programs and executorch_checkpoints: a program, variants, checkpoints."""

load(":common.bzl", "name_with_variant", "tags_error")
load(":program.bzl", _executorch_program = "executorch_program")

def executorch_program(name, variant = "", named_data = [], **kwargs):
    """Builds a program: the rule `executorch_program`, with labels for its `.pte` and `.ptd` files.

    A `select()` is chosen after labels are known, so what depends on one has no label.

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

def executorch_checkpoints(name, manifest, weights, checkpoints, **kwargs):
    """Builds the program of a manifest once for each of several checkpoints. The methods are exported and lowered once.

    ```starlark
    load("@rules_executorch//rules:defs.bzl", "executorch_checkpoints")

    executorch_checkpoints(
        name = "net",
        srcs = ["model.py"],
        checkpoints = {
            "step_100": "runs/step_100.safetensors",
            "step_200": "@models//:step_200",
        },
        manifest = "net.yaml",
        weights = "net.safetensors",  # the name in the manifest
    )
    ```

    `bazel build :net.step_200` writes `net.step_200.pte` and `net.step_200.index.json`. The first target of `checkpoints`
    lowers. Another checkpoint runs only the actions that write, compare and report its program: append it.

    Methods that need the content of weights are lowered for each checkpoint. Backends that compile weights are refused.

    Args:
      name: string, the `name` in the manifest. The target of a checkpoint is `NAME.CHECKPOINT`.
      manifest: label of the manifest.
      weights: string, the `weights` of the manifest: a file, or a folder for a checkpoint with several files.
      checkpoints: dict of string to label, the files of each checkpoint.
      **kwargs: more attributes of every `executorch_program`.
    """
    lowered = None
    for checkpoint, files in checkpoints.items():
        target = "{}.{}".format(name, checkpoint)
        executorch_program(
            name = target,
            lowered = lowered,
            manifest = manifest,
            manifest_name = name,
            weights_as = {files: weights},
            **kwargs
        )
        lowered = lowered or ":" + target
