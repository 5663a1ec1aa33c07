"""Sets up the rules in a WORKSPACE file.

    local_repository(name = "rules_executorch", path = ...)   # or http_archive

    load("@rules_executorch//rules:repositories.bzl", "executorch_repositories")

    executorch_repositories(extras = ["huggingface"])   # or none: what a backend or a kind of model needs besides

With a MODULE.bazel file this is not needed: `bazel_dep(name = "rules_executorch")` does it.
"""

load("//rules/private:packages_repository.bzl", "packages_repository")

def executorch_repositories(register = True, **kwargs):
    """Declares the repositories of the rules and registers the default toolchain.

    Args:
      register: whether to register the default toolchain. Without it, register one of your own
        (`executorch_toolchain`).
      **kwargs: attributes of the packages: `extras`, `pip_args`, `python`, `requirements`.
    """
    packages_repository(name = "rules_executorch_packages", **kwargs)
    if register:
        native.register_toolchains("@rules_executorch//toolchain:default")
