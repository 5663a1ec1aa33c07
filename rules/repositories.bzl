"""Repositories: those of the rules, for a WORKSPACE file, checkpoints of a model hub, and ExecuTorch for other machines.

With a MODULE.bazel file, use `bazel_dep(name = "rules_executorch")` instead of `executorch_repositories`.
"""

load("//rules/private:executorch_wheel.bzl", _executorch_wheel = "executorch_wheel")
load("//rules/private:extras.bzl", "check_extras")
load("//rules/private:host_repository.bzl", "host_repository")
load("//rules/private:huggingface_checkpoint.bzl", _huggingface_checkpoint = "huggingface_checkpoint")
load("//rules/private:packages_repository.bzl", "packages_repository")
load("//rules/private:platforms.bzl", "check_platform")
load("//rules/private:pythons.bzl", "check_version")
load("//rules/private:toolchains_repository.bzl", "packages_of", "toolchains_repository")

executorch_wheel = _executorch_wheel
huggingface_checkpoint = _huggingface_checkpoint

def executorch_repositories(register = True, py_info = None, **kwargs):
    """Declares `@rules_executorch_packages` and registers the default toolchain.

    The repository holds torch, ExecuTorch and what they need. Bazel builds it when a program is built for the first time;
    this takes minutes, once for all workspaces of a user.

    ```starlark
    local_repository(
        name = "rules_executorch",
        path = "third_party/rules_executorch",
    )

    load("@rules_executorch//rules:repositories.bzl", "executorch_repositories")

    executorch_repositories(extras = ["huggingface"])
    ```

    These further arguments say how the packages are built:

    - `extra_requirements`: list of labels, locks in pip's format with packages of your own, which the toolchain has in
      addition.
    - `extras`: list of string, the extra packages that some backends and kinds of models need, such as `["huggingface"]`.
    - `packages`: dict, a `packages.pex` that was built before, such as by CI: `{"url": "https://...", "sha256": "..."}`.
    - `pip_args`: list of string, more arguments for pip and uv, such as `["--extra-index-url", ...]`.
    - `platform`: string, the machines that `packages` is for, such as `linux_aarch64`. Default: machines like this one.
    - `python_interpreter`: string, the path of the Python, or its name on the PATH. Default: the newest of `python3.13`,
      `python3.12` and `python3.11` on the PATH that has the module `venv`; first, one with a CPU build of torch in the lock.
    - `python_interpreter_target`: label, the same by its label.
    - `python_version`: string, the version of Python, such as `3.12`. An interpreter of another version is refused.
    - `requirements`: label, a lock in pip's format that replaces the lock of the rules. To add packages, use
      `extra_requirements`.
    - `torch`: string, the build of torch: `cpu`, or `index` for the one on the package index. Default: `cpu` if the lock has it.
    - `version`: string, the release of ExecuTorch, such as `1.4.1`. Default: the newest of those that the rules support.

    Args:
      register: bool, whether to register the default toolchain. If false, register a toolchain of your own
        (`executorch_toolchain`).
      py_info: label of a `.bzl` file with a `PyInfo`, for Python libraries that do not provide Bazel's own. With rules_python,
        write `"@rules_python//python:py_info.bzl"`. With a MODULE.bazel file, that one is always known.
      **kwargs: the arguments above.
    """
    check_extras(kwargs.get("extras", []))
    check_platform(kwargs.get("platform", ""))
    check_version(kwargs.get("python_version", ""))
    host_repository(
        name = "rules_executorch_host",
        platform = "@local_config_platform//:host",
        py_info = py_info,
    )
    packages_repository(name = packages_of("default"), **kwargs)
    toolchains_repository(
        name = "rules_executorch_toolchains",
        toolchains = {"default": kwargs.get("platform", "")},
    )
    if register:
        native.register_toolchains("@rules_executorch_toolchains//:all")
