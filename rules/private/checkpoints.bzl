"""The macro executorch_checkpoints: a program for each checkpoint of a manifest."""

load(":common.bzl", "TEMPLATE", "checkpoint_names", "checkpoints_error", "checkpoints_of_gguf_error")
load(":macros.bzl", "helper_attributes", "suite_attributes")
load(":program.bzl", "lowered_methods")
load(":programs.bzl", "executorch_program")

def _named(checkpoints, checkpoint_as):
    """Returns the checkpoints as a dictionary of names to labels."""
    error = None
    if type(checkpoints) == "list":
        checkpoints, error = checkpoint_names(checkpoints)
    elif type(checkpoints) != "dict":
        error = "write a list of labels, or a dictionary of names to labels"
    error = error or checkpoints_of_gguf_error(checkpoints.values(), checkpoint_as) or checkpoints_error(checkpoints.keys())
    if error:
        fail(error, attr = "checkpoints")
    return checkpoints

def executorch_checkpoints(name, manifest, checkpoints, checkpoint_as, **kwargs):
    """Builds one program for each checkpoint of a manifest. They share the exported and the lowered methods.

    ```starlark
    load("@rules_executorch//rules:defs.bzl", "executorch_checkpoints")

    executorch_checkpoints(
        name = "net",
        srcs = ["model.py"],
        checkpoint_as = "net.safetensors",  # the manifest's `model.weights`
        checkpoints = glob(["step_*.safetensors"]),
        manifest = "net.yaml",
    )
    ```

    For `step_100.safetensors` it makes the target `:net.step_100`, an `executorch_program`, which writes `net.step_100.pte` and
    `net.step_100.index.json`. `:net` stands for the files of all of them.

    A program is called like its checkpoint, or like the folder of it if all checkpoints have one name. A dictionary says
    other names: `{"best": "//run:step_900.safetensors"}`.

    The actions of one program bind the lowered methods to its checkpoint, compare and report. So a new checkpoint exports and
    lowers nothing, and one that is wrong fails only its own program. Methods that need the content of weights are lowered for
    each program. A target whose `backends` compile weights is refused.

    Args:
      name: string, the `name` in the manifest, or another one with `manifest_name`. The target of a checkpoint is
        `NAME.CHECKPOINT`.
      manifest: label of the manifest.
      checkpoints: list of labels, or dict of name to label. If a target has several files, such as a checkpoint in shards,
        `checkpoint_as` is the name of their folder. GGUF files are refused, because the export reads them.
      checkpoint_as: string, the name that the manifest uses for the checkpoint.
      **kwargs: more attributes of every `executorch_program`. `weights` are those that all programs have.
    """
    for attribute in ("export", "lowered", "weights_as"):
        if attribute in kwargs:
            fail("executorch_checkpoints sets it for each program: leave it out", attr = attribute)
    named = _named(checkpoints, checkpoint_as)
    attributes = dict(kwargs, manifest = manifest, manifest_name = kwargs.get("manifest_name", name))
    template = "{}.{}".format(name, TEMPLATE)
    targets = {checkpoint: "{}.{}".format(name, checkpoint) for checkpoint in named}
    if named:
        lowered_methods(
            # the rule only compares the name of the weights with the manifest
            name = template,
            weights_as = {named.values()[0]: checkpoint_as},
            **dict(attributes, **helper_attributes(kwargs))
        )
    for checkpoint, files in named.items():
        executorch_program(
            name = targets[checkpoint],
            lowered = template,
            weights_as = {files: checkpoint_as},
            **attributes
        )
    native.filegroup(name = name, srcs = targets.values(), **suite_attributes(kwargs))
