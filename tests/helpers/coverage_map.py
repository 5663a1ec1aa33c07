"""Which tests cover which paths of the repository.

A row has the tests that are about a path, and further ones that a change below it can reach. A test holds that each
folder and each package of the driver has a row, and that what a step of a build runs reaches every test. A path without
a row may reach everything. Of Python files below `tests/`, only those need rows that no test imports: the imports say
which tests use the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL = ""
"""All tests."""
ALWAYS_WHOLE = ("unit/", "fuzz/")
"""What runs whole after each change: a minute, without PyTorch."""


@dataclass(frozen=True)
class Row:
    """The tests of a path, as folders and files below `tests/`.

    Attributes:
        whole: Those about what changed. Every case runs, if they do not take too long together.
        sample: Further ones that what changed can reach, of which a sample runs. No others run.
    """

    whole: tuple[str, ...] = ()
    sample: tuple[str, ...] = ()


EVERYTHING = Row(whole=(ALL,))
NOTHING = Row()  # besides `ALWAYS_WHOLE`


def _integration(*names: str) -> tuple[str, ...]:
    return tuple(f"integration/test_{name}.py" for name in names)


def _bazel(*names: str) -> tuple[str, ...]:
    return tuple(f"bazel/test_{name}.py" for name in names)


def _faults(*names: str) -> tuple[str, ...]:
    return tuple(f"faults/test_{name}.py" for name in names)


def _core(*whole: str) -> Row:
    """The tests of what a step of a build runs: a mistake in it may break any test."""
    return Row(whole, sample=(ALL,))


def _imported(*whole: str) -> Row:
    """The tests of what `etbuild build` imports, and no step runs."""
    return Row(whole, sample=("integration/", "bazel/"))


def _tool(*whole: str) -> Row:
    """The tests of what no build imports."""
    return Row(whole)


def _page(*whole: str) -> Row:
    """The tests that run what a page shows, and others that read it."""
    return Row((*_integration("snippets"), *_bazel("snippets"), "buck2/test_snippets.py", *whole))


_REGISTRY = ("registry/", *_bazel("packages"), *_integration("pipelines"))
_RULES = Row(whole=("bazel/", "buck2/", "remote/"))
_BUILDER = Row(whole=(*_integration("fetched_packages"), *_RULES.whole))

# The longest name that a path begins with decides.
COVERED_BY: Mapping[str, Row] = {
    # The driver's packages, which ARCHITECTURE.md describes.
    "toolchain/etbuild/__init__.py": _core(*_integration("python_interface")),
    "toolchain/etbuild/__main__.py": _core(*_integration("surroundings")),
    "toolchain/etkit/analysis/": _imported(
        *_integration("diff", "inspect", "profile", "variants", "verify_reproducible"), *_bazel("packages")
    ),
    "toolchain/etkit/analysis/cache_upkeep.py": _tool(
        *_integration("local_cache"), *_faults("file_faults", "many_builds")
    ),
    "toolchain/etbuild/api.py": _imported(*_integration("python_interface")),
    "toolchain/etbuild/backends/": _core(
        *_integration("backends", "recipes", "third_party_backend"), "conformance/test_named_data_of_backends.py"
    ),
    "toolchain/etbuild/plugins.py": _core(*_integration("backends")),
    "toolchain/etplugins/": _core(*_integration("backends"), "conformance/test_named_data_of_backends.py"),
    "toolchain/etplugins/lora/": _core(*_integration("adapters")),
    "toolchain/etplugins/pt2_files/": _core(*_integration("pt2_files")),
    "toolchain/etplugins/coreml/": _core(*_integration("backends"), "conformance/test_coreml.py"),
    "toolchain/etkit/benchmarking/": _tool(*_integration("bench"), *_bazel("program_tests")),
    "toolchain/etbuild/build.py": _core(
        *_integration("local_cache", "separate_methods", "variants", "verify_reproducible")
    ),
    "toolchain/etbuild/cache/": _core(
        *_integration("local_cache"), *_faults("file_faults", "flipped_bytes", "many_builds", "real_builds")
    ),
    "toolchain/etbuild/cli/": _core(*_integration("steps", "errors", "python_interface")),
    "toolchain/etkit/cli/affected.py": _tool(*_bazel("packages")),
    "toolchain/etkit/cli/apply.py": _tool("registry/"),
    "toolchain/etkit/cli/bench.py": _tool(*_integration("bench"), *_bazel("program_tests")),
    "toolchain/etkit/cli/bundle.py": _tool(*_integration("bundle")),
    "toolchain/etkit/cli/cache.py": _tool(*_integration("local_cache")),
    "toolchain/etkit/cli/ci_summary.py": _tool(*_integration("pipelines")),
    "toolchain/etkit/cli/cpp.py": _tool(*_integration("cpp", "cmake"), *_bazel("cpp")),
    "toolchain/etkit/cli/completion.py": _tool(),
    "toolchain/etkit/cli/doctor.py": _tool(),
    "toolchain/etkit/cli/delta.py": _tool("registry/"),
    "toolchain/etkit/cli/diff.py": _tool(*_integration("diff", "pipelines")),
    "toolchain/etbuild/cli/etrecord.py": _tool(*_integration("bundle"), *_bazel("build")),
    "toolchain/etkit/cli/explain.py": _tool(*_integration("local_cache")),
    "toolchain/etkit/cli/targets.py": _tool(*_bazel("rules")),
    "toolchain/etkit/cli/generate.py": _tool(*_integration("language_models", "image_text", "encoder_decoders")),
    "toolchain/etkit/cli/history.py": _tool(*_REGISTRY),
    "toolchain/etkit/cli/init.py": _tool(*_integration("init")),
    "toolchain/etkit/cli/inspect.py": _tool(*_integration("inspect", "readme")),
    "toolchain/etkit/cli/kernels.py": _tool(*_integration("kernels_library"), *_bazel("kernels_library")),
    "toolchain/etkit/cli/lock.py": _tool(*_bazel("build", "second_workspace")),
    "toolchain/etkit/cli/package.py": _tool(*_REGISTRY),
    "toolchain/etkit/cli/page.py": _tool(*_integration("page"), *_bazel("build")),
    "toolchain/etkit/cli/profile.py": _tool(*_integration("profile")),
    "toolchain/etkit/cli/pull.py": _tool(*_REGISTRY),
    "toolchain/etkit/cli/push.py": _tool(*_REGISTRY),
    "toolchain/etkit/cli/registry_options.py": _tool(*_REGISTRY),
    "toolchain/etkit/cli/reproduce.py": _tool(*_integration("verify_reproducible")),
    "toolchain/etkit/cli/run.py": _tool(*_integration("python_interface")),
    "toolchain/etkit/cli/sbom.py": _tool(*_REGISTRY),
    "toolchain/etkit/cli/selected_ops.py": _tool(*_bazel("kernels")),
    "toolchain/etkit/cli/sizes.py": _tool(*_bazel("program_tests")),
    "toolchain/etkit/cli/test.py": _tool(*_integration("program_tests"), *_bazel("program_tests")),
    "toolchain/etbuild/cli/validate.py": _tool(*_integration("init")),
    "toolchain/etkit/cli/verify.py": _tool(*_REGISTRY),
    "toolchain/etkit/cli/watch.py": _tool(*_integration("watch")),
    "toolchain/etbuild/cmake/": _tool(*_integration("cmake", "kernels_library")),
    "toolchain/etbuild/comparison/": _core(
        *_integration("comparison", "compared_outputs", "eager_model", "mutations", "program_tests"),
        *_integration("quantized_faults"),
    ),
    "toolchain/etkit/completions/": _tool(),
    "toolchain/etkit/cpp/": _tool(*_integration("cpp", "cmake"), *_bazel("cpp")),
    "toolchain/etbuild/emit/": _core(
        *_integration("branches", "executorch_options", "mutable_buffers", "named_data", "runtime_limits"),
        *_integration("separate_methods", "shards"),
        "conformance/test_promises.py",
        "conformance/test_shared_buffers.py",
        "conformance/test_sharing.py",
    ),
    "toolchain/etbuild/errors.py": _core(*_integration("errors", "source_lines")),
    "toolchain/etbuild/exception_text.py": _core(*_integration("errors", "source_lines")),
    "toolchain/etbuild/export/": _core(
        *_integration("constant_methods", "custom_ops", "entries", "inputs", "kinds_of_modules"),
        *_integration("runner_contract", "several_modules", "source_lines", "steps"),
    ),
    "toolchain/etbuild/extras.py": _core(*_integration("huggingface")),
    "toolchain/etbuild/files/": _core(
        *_integration("inspect", "named_data", "programs_of_others", "shards"), *_faults("file_faults", "surroundings")
    ),
    "toolchain/etkit/first_manifest/": _tool(*_integration("init")),
    "toolchain/etbuild/folding.py": _core(*_integration("errors")),
    "toolchain/etbuild/notes.py": _core(*_integration("local_cache")),
    "toolchain/etbuild/foreign_errors.py": _core(*_integration("errors")),
    "toolchain/etkit/generation/": _tool(*_integration("chat", "language_models")),
    "toolchain/etbuild/inputs/": _core(
        *_integration("native_readers", "seeds", "sources", "surroundings"), *_faults("staleness")
    ),
    "toolchain/etbuild/json_schema.py": _core(),
    "toolchain/etkit/kernels/": _tool(*_integration("kernels_library"), *_bazel("kernels", "kernels_library")),
    "toolchain/etbuild/lower/": _core(
        *_integration("branches", "core_operators", "lowering", "mutable_buffers", "passes", "runtime_limits"),
        *_integration("separate_methods"),
        "conformance/",
    ),
    "toolchain/etbuild/manifest/": _core(*_integration("errors", "variants")),
    "toolchain/etbuild/model/": _core(
        *_integration("checkpoints", "eager_model", "encoder_decoders", "gguf", "huggingface", "image_text"),
        *_integration("known_values", "language_models", "packed_checkpoints", "tasks", "tensor_digests", "training"),
    ),
    "toolchain/etkit/oci/": _tool(*_REGISTRY),
    "toolchain/etkit/page/": _imported(*_integration("page", "profile")),
    "toolchain/etbuild/kit.py": _core(*_integration("python_interface")),
    "toolchain/etbuild/patching.py": _core(*_integration("acceleration")),
    "toolchain/etbuild/plan/": _core(*_integration("local_cache", "separate_methods", "steps", "variants")),
    "toolchain/etbuild/processes/": _core(
        *_integration("native_readers", "surroundings", "worker"),
        *_faults("hostile_models", "real_builds", "surroundings", "worker_soak"),
    ),
    "toolchain/etbuild/py.typed": NOTHING,
    "toolchain/etkit/__init__.py": _imported(),
    "toolchain/etkit/cli/": _imported(*_integration("steps", "errors", "python_interface")),
    "toolchain/etkit/py.typed": NOTHING,
    "toolchain/etbuild/quantize/": _core(
        *_integration("packed_checkpoints", "quantization", "quantization_memory", "quantized_architectures")
    ),
    "toolchain/etbuild/releases.py": EVERYTHING,
    "toolchain/etbuild/report/": _core(
        *_integration("not_delegated", "steps", "source_lines"), "conformance/test_sharing.py"
    ),
    "toolchain/etbuild/results.py": _core(*_integration("steps")),
    "toolchain/etbuild/runtime/": _core(*_integration("bench", "program_tests", "python_interface", "runtime_limits")),
    "toolchain/etbuild/schemas": _core(),
    "toolchain/etbuild/step_files.bzl": _core(*_integration("steps"), *_bazel("edits"), "remote/"),
    "toolchain/etbuild/steps/": _core(
        *_integration("lowering", "recipes", "separate_methods", "steps"), *_faults("real_builds")
    ),
    "toolchain/etkit/analysis/show_stages.py": _imported(*_integration("recipes")),
    "toolchain/etkit/targets/": _tool(*_bazel("rules")),
    "toolchain/etkit/testing/": _imported(
        *_integration("bundle", "compared_outputs", "program_tests", "text_checks"), *_bazel("program_tests")
    ),
    "toolchain/etbuild/upstream/": _core(
        *_integration("backends", "branches", "core_operators", "lowering", "mutable_buffers"), "conformance/"
    ),
    "toolchain/etbuild/upstream/accelerate/": _core(
        *_integration("acceleration", "acceleration_of_others", "determinism")
    ),
    "toolchain/etbuild/version.py": _core(),
    "toolchain/etbuild/worker/": _core(*_integration("worker"), *_faults("worker_soak"), *_bazel("worker"), "remote/"),
    # What build systems run. The locks are the versions of everything else.
    "toolchain/requirements": EVERYTHING,
    "toolchain/update_lock.py": NOTHING,
    "toolchain/BUCK": Row(whole=("buck2/", *_bazel("buck2"))),
    "toolchain/BUILD": _RULES,
    "toolchain/build_packages.py": _BUILDER,
    "toolchain/configuration.bzl": _RULES,
    "toolchain/driver_sources.bzl": _RULES,
    "toolchain/drivers.bzl": _RULES,
    "toolchain/launch": _RULES,
    "toolchain/locks.py": _BUILDER,
    "toolchain/on_demand.py": _RULES,
    "toolchain/pex_file.py": _BUILDER,
    "toolchain/py_toolchain.bzl": _RULES,
    "toolchain/python_driver.bzl": _RULES,
    "toolchain/python_of_build.bzl": _RULES,
    "toolchain/required.bzl": _BUILDER,
    "toolchain/runfiles.bzl": _RULES,
    "toolchain/split_packages": _RULES,
    "toolchain/steps.bzl": _RULES,
    "toolchain/toolchain.bzl": _RULES,
    "rules/": _RULES,
    "rules/buck2/": Row(whole=("buck2/", *_bazel("buck2"))),
    "schemas/": _core(*_integration("errors")),
    ".bazelignore": _RULES,
    ".bazelrc": _RULES,
    "BUILD": _RULES,
    "MODULE.bazel": _RULES,
    "WORKSPACE": _RULES,
    # What people read and copy.
    "examples/": Row(
        whole=_integration("examples", "determinism"),
        sample=("bazel/", "buck2/", *_integration("cpp", "huggingface", "page")),
    ),
    "examples/android/": Row(whole=_integration("apps")),
    "examples/buck2/": Row(whole=("buck2/", *_bazel("buck2"))),
    "examples/ci/": Row(whole=_integration("pipelines")),
    "examples/cpp/": Row(whole=_bazel("cpp")),
    "examples/fetch/": Row(whole=(*_integration("apps"), *_bazel("fetched_programs"))),
    "examples/gallery/": Row(whole=_integration("gallery"), sample=_bazel("build")),
    "examples/ios/": Row(whole=_integration("apps")),
    "e2e/": Row(whole=_bazel("second_workspace")),
    "examples/monorepo/": Row(whole=_bazel("second_workspace", "buck2")),
    "examples/pypi/": Row(whole=_bazel("toolchains")),
    "examples/toolchains/": Row(whole=_bazel("toolchains")),
    "examples/third_party_backend/": Row(whole=_integration("third_party_backend")),
    "docs/": _page(),
    "docs/families.md": _page(*_integration("families")),
    "docs/gallery.md": _page(*_integration("gallery")),
    "docs/monorepo.md": _page(*_bazel("monorepo")),
    "docs/signing.md": _page("registry/test_signatures.py"),
    "docs/hermetic.md": _page(*_bazel("build")),
    "docs/staleness.md": _page(*_faults("staleness")),
    "docs/support.md": _page(*_integration("backends")),
    "README.md": _page(*_integration("readme")),
    "benchmarks/comparison/": Row(whole=_integration("mutations")),
    "benchmarks/families/": Row(whole=_integration("families")),
    "benchmarks/": Row(whole=_bazel("monorepo")),
    ".bazeliskrc": NOTHING,
    ".bcr/": Row(whole=_bazel("second_workspace")),
    ".buildifier.json": NOTHING,
    ".ci/": NOTHING,
    ".editorconfig": NOTHING,
    ".github/": NOTHING,
    ".gitignore": NOTHING,
    ".pre-commit-config.yaml": NOTHING,
    "ARCHITECTURE.md": NOTHING,
    "CHANGELOG.md": NOTHING,
    "CONTRIBUTING.md": NOTHING,
    "LICENSE": NOTHING,
    "Makefile": NOTHING,
    "SECURITY.md": NOTHING,
    "changes/": NOTHING,
    "mkdocs.yml": NOTHING,
    "pyproject.toml": Row(sample=(ALL,)),  # other versions of packages are also in a lock
    "upstream/": Row(whole=_integration("upstream_patches")),
    "tools/": NOTHING,
    "tools/find_": Row(sample=("bazel/", "registry/", "remote/", *_integration("page"))),
    "tools/site/": NOTHING,  # tests/unit
    "tools/reference/": Row(whole=_bazel("rules")),
    # What tests read.
    "tests/bazel/": Row(whole=("bazel/",)),
    "tests/buck2/": Row(whole=("buck2/",)),
    "tests/conformance/": Row(whole=("conformance/",)),
    "tests/faults/": Row(whole=("faults/",)),
    "tests/browser.txt": Row(whole=_integration("page")),
    "tests/fuzz/": Row(whole=("fuzz/",)),
    "tests/golden/manifests/": NOTHING,
    "tests/golden/plans/": NOTHING,
    "tests/golden/releases/": NOTHING,
    "tests/golden/programs/": Row(whole=(*_integration("determinism"), *_bazel("build"), "remote/")),
    "tests/helpers/android_stubs/": Row(whole=_integration("apps")),
    "tests/helpers/changes.py": NOTHING,
    "tests/helpers/counted_work.py": Row(whole=_integration("upstream_patches")),
    "tests/helpers/run_kernels.cc": Row(whole=(*_integration("kernels_library"), *_bazel("kernels_library"))),
    "tests/helpers/small_kernels.cc": Row(whole=(*_integration("kernels_library"), *_bazel("kernels_library"))),
    "tests/helpers/coverage_map.py": NOTHING,  # what it leaves out is on the first lines of pytest's output
    "tests/integration/": Row(whole=("integration/",)),
    "tests/machines/": NOTHING,
    "tests/registry/": Row(whole=("registry/",)),
    "tests/remote/": Row(whole=("remote/",)),
    "tests/requirements.txt": EVERYTHING,
    "tests/seconds.json": NOTHING,
    "tests/typing/": NOTHING,
    "tests/unit/": NOTHING,
}
