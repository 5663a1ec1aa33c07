"""The rules for Buck2: they build ExecuTorch programs from PyTorch models.

They have the names and the attributes of the rules for Bazel, so that the same manifest needs no change:

```starlark
load("@rules_executorch//contrib/buck2:defs.bzl", "executorch_library", "executorch_lock", "executorch_program")

executorch_library(
    name = "backbone",
    srcs = ["backbone.py"],
)

executorch_program(
    name = "classifier",         # the `name` in the manifest
    srcs = ["classifier.py"],    # beside the manifest: `import classifier`
    manifest = "classifier.yaml",
    named_data = ["backbone"],   # the tags in the manifest
    weights = ["weights.safetensors"],
    deps = [":backbone"],
)

executorch_lock(
    name = "update",
    lock = "classifier.lock.json",
    program = ":classifier",
)
```

`buck2 build :classifier` builds `classifier.pte`, `classifier.backbone.ptd` and `classifier.index.json`.
`buck2 build ":classifier[ptd][backbone]"` builds one of them.
"""

load("//rules/private:common.bzl", "TEMPLATE", "checkpoint_names", "checkpoints_error", "checkpoints_of_gguf_error")
load(":library.bzl", _executorch_library = "executorch_library")
load(":lock.bzl", "executorch_lock_test", "executorch_lock_update")
load(":program.bzl", "lowered_methods", _executorch_program = "executorch_program")
load(
    ":providers.bzl",
    _ExecutorchExportInfo = "ExecutorchExportInfo",
    _ExecutorchLibraryInfo = "ExecutorchLibraryInfo",
    _ExecutorchProgramInfo = "ExecutorchProgramInfo",
)
load(
    ":toolchain.bzl",
    _executorch_driver = "executorch_driver",
    _executorch_driver_sources = "executorch_driver_sources",
    _executorch_toolchain = "executorch_toolchain",
    _executorch_worker = "executorch_worker",
)

ExecutorchExportInfo = _ExecutorchExportInfo
ExecutorchLibraryInfo = _ExecutorchLibraryInfo
ExecutorchProgramInfo = _ExecutorchProgramInfo

executorch_driver = _executorch_driver
executorch_driver_sources = _executorch_driver_sources
executorch_library = _executorch_library
executorch_program = _executorch_program
executorch_toolchain = _executorch_toolchain
executorch_worker = _executorch_worker

def executorch_programs(name, manifest, variants, **kwargs):
    """Builds the program of a manifest, and one program for each of its variants. They share one export.

    Args:
      name: the `name` in the manifest. The target of a variant is `NAME.VARIANT`.
      manifest: the manifest.
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

def executorch_checkpoints(name, manifest, checkpoints, checkpoint_as, **kwargs):
    """Builds one program for each checkpoint of a manifest. They share the exported and the lowered methods.

    Args:
      name: the `name` in the manifest, or another one with `manifest_name`. The target of a checkpoint is `NAME.CHECKPOINT`.
      manifest: the manifest.
      checkpoints: list of files, or dict of name to file.
      checkpoint_as: the name that the manifest uses for the checkpoint.
      **kwargs: more attributes of every `executorch_program`. `weights` are those that all programs have.
    """
    named, error = (checkpoints, None) if isinstance(checkpoints, dict) else checkpoint_names(checkpoints)
    error = error or checkpoints_of_gguf_error(named.values(), checkpoint_as) or checkpoints_error(named.keys())
    if error:
        fail("attribute `checkpoints`: " + error)
    attributes = dict(kwargs, manifest = manifest, manifest_name = kwargs.get("manifest_name", name))
    template = "{}.{}".format(name, TEMPLATE)
    for file in named.values()[:1]:
        lowered_methods(name = template, weights_as = {checkpoint_as: file}, **attributes)
    for checkpoint, file in named.items():
        executorch_program(
            name = "{}.{}".format(name, checkpoint),
            lowered = ":" + template,
            weights_as = {checkpoint_as: file},
            **attributes
        )

def executorch_lock(name, program, lock, **kwargs):
    """Checks that a program does not change by accident: a test compares it with a lockfile.

    `buck2 run :NAME` writes the lockfile, and `buck2 test :NAME_test` fails if the program is not the one of the lockfile.

    Args:
      name: the name of the target that writes the lockfile. The test is `NAME_test`.
      program: an `executorch_program`.
      lock: the file name of the lockfile, in this package. The file need not exist yet.
      **kwargs: more attributes of both targets, such as `visibility`. Only the test gets `labels`.
    """
    if "/" in lock or ":" in lock:
        fail("attribute `lock`: '{}' is not the name of a file in this package".format(lock))
    labels = kwargs.pop("labels", [])
    executorch_lock_update(name = name, lock_name = lock, program = program, **kwargs)
    executorch_lock_test(
        name = name + "_test",
        labels = labels,
        lock = lock if glob([lock]) else None,
        lock_name = lock,
        program = program,
        update = ":" + name,
        **kwargs
    )
