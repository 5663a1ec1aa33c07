"""Repositories: those of the rules, for a WORKSPACE file, and checkpoints of a model hub.

With a MODULE.bazel file, use `bazel_dep(name = "rules_executorch")` instead of `executorch_repositories`.
"""

load("//rules/private:host_repository.bzl", "host_repository")
load("//rules/private:huggingface_checkpoint.bzl", _huggingface_checkpoint = "huggingface_checkpoint")
load("//rules/private:packages_repository.bzl", "LOCK_ATTRS", "packages_repository")

huggingface_checkpoint = _huggingface_checkpoint

def executorch_repositories(register = True, py_info = None, **kwargs):
    """Declares `@rules_executorch_packages` and registers the default toolchain.

    The repository holds torch, ExecuTorch and what they need. Bazel builds it when a program is built for the first time;
    this takes a few minutes; with `packages`, half a minute and a download.

    ```starlark
    local_repository(
        name = "rules_executorch",
        path = "third_party/rules_executorch",
    )

    load("@rules_executorch//rules:repositories.bzl", "executorch_repositories")

    executorch_repositories(extras = ["huggingface"])
    ```

    These further arguments say how the packages are built:

    - `extras`: list of string, the extra packages that some backends and kinds of models need, such as `["huggingface"]`.
    - `more_requirements`: list of labels, locks in pip's format with packages of your own, which the toolchain has in
      addition.
    - `packages`: dict, a `packages.pex` that was built before, such as by CI: `{"url": "https://...", "sha256": "..."}`.
    - `pip_args`: list of string, more arguments for pip, such as `["--extra-index-url", ...]`.
    - `python`: string, the path of a Python 3.11. Default: `python3.11` on the PATH.
    - `requirements`: label, a lock in pip's format that replaces the lock of the rules. To add packages, use
      `more_requirements`.

    Args:
      register: bool, whether to register the default toolchain. If false, register a toolchain of your own
        (`executorch_toolchain`).
      py_info: label of a `.bzl` file with a `PyInfo`, for Python libraries that do not provide Bazel's own. Bazel 9 has none:
        with rules_python, write `"@rules_python//python:py_info.bzl"`.
      **kwargs: `extras`, `more_requirements`, `packages`, `pip_args`, `python` and `requirements`, as above.
    """
    locks = {name: value for name, value in kwargs.items() if name in LOCK_ATTRS}
    host_repository(
        name = "rules_executorch_host",
        platform = "@local_config_platform//:host",
        py_info = py_info,
        **locks
    )
    packages_repository(name = "rules_executorch_packages", **kwargs)
    if register:
        native.register_toolchains("@rules_executorch//toolchain:default")
