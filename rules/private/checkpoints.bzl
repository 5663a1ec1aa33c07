"""The macro executorch_checkpoints: a program for each of several checkpoints."""

load(":programs.bzl", "executorch_program")

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
