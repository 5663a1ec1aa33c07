"""Another package adds a backend: once installed, the backend can be used with its options, and is part of the key."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from etbuild.backends import entry_points
from etbuild.cli import main
from tests.helpers import commands

EXAMPLE = Path(__file__).parents[2] / "examples/third_party_backend"
MANIFEST = EXAMPLE / "tally.yaml"


def install(root: Path, change: str = "") -> Path:
    """Installs the example's package with code added at its end. Returns the directory that contains it."""
    shutil.copytree(EXAMPLE, root / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    with (root / "source/etbuild_tally/lowering.py").open("a") as file:
        file.write(change)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(root / "site"), str(root / "source")], check=True)
    return root / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("third_party"))


def etbuild(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return commands.etbuild(*arguments, environment=with_path(path))


def with_path(path: Path | None) -> dict[str, str]:
    """Returns an environment in which Python searches a directory first."""
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(each) for each in (path, before) if each)}


def test_without_the_package_its_backend_is_unknown() -> None:
    done = etbuild("validate", MANIFEST)
    assert done.returncode == 2
    assert "unknown backend `tally`" in done.stderr


def test_its_methods_share_the_weights_that_they_have_in_common(site: Path, tmp_path: Path) -> None:
    done = etbuild("build", MANIFEST, "--no-cache", "-o", tmp_path, path=site)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "tally.report.json").read_bytes())
    calls = {name: method["operators"]["delegated"]["TallyBackend"] for name, method in report["methods"].items()}
    assert calls["features"] == {"aten::addmm": 1, "aten::permute_copy": 1, "aten::relu": 1}
    assert calls["classify"] == {"aten::addmm": 2, "aten::permute_copy": 2, "aten::relu": 1}
    assert sorted(report["bytes"]["named_data"].values()) == [4 * 8, 4 * 64, 4 * 64 * 8, 4 * 64 * 64]


def test_an_error_in_its_options_has_a_position(site: Path, tmp_path: Path) -> None:
    text = MANIFEST.read_text().replace("operators:", "operator:")
    (tmp_path / "tally.yaml").write_text(text)
    done = etbuild("validate", tmp_path / "tally.yaml", path=site)
    assert done.returncode == 2
    assert "tally.yaml:7:34: defaults.partitioners[0].options.operator: unknown key" in done.stderr
    assert "did you mean `operators`?" in done.stderr


def test_its_version_and_content_are_part_of_the_key(site: Path, tmp_path: Path) -> None:
    plans = [
        json.loads(etbuild("plan", MANIFEST, path=path).stdout) for path in (site, install(tmp_path, "# a change\n"))
    ]
    found = [plan["inputs"]["toolchain"]["distributions"].pop("etbuild-tally") for plan in plans]
    assert [one["version"] for one in found] == ["1.0", "1.0"]
    assert found[0]["sha256"] != found[1]["sha256"]
    assert plans[0]["inputs"] == plans[1]["inputs"]
    assert plans[0]["key"] != plans[1]["key"]


def test_a_broken_package_is_named(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    (broken / "etbuild_tally/__init__.py").write_text("import a_module_that_is_not_there\n")
    done = etbuild("validate", MANIFEST, path=broken)
    assert done.returncode == 2
    assert (
        "the entry point `tally` of the group `etbuild.backends` (etbuild_tally:Tally) cannot be loaded" in done.stderr
    )
    assert "Traceback" not in done.stderr


def changed_class(*lines: str) -> str:
    """Returns code that replaces the package's class by a subclass with these lines in its body."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"from etbuild.backends import *\nclass Tally(Tally):\n{body}"


def etbuild_with(site: Path, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command with this code added at the end of the package."""
    with (site / "etbuild_tally/__init__.py").open("a") as file:
        file.write(f"\n{code}\n")
    return etbuild(*arguments, path=site)


@pytest.fixture
def own_site(site: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(site, tmp_path / "site"))


NO_SCHEMA = "`options_schema` names no JSON Schema: "
PAIRS = "def pairs_partitions(self, options): return True"
EDGE = "def edge_requirements(self, options, program): return EdgeRequirements()"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("options_schema = None", "`options_schema` has to be the `pathlib.Path` of a file"),
        ("options_schema = str(Tally.options_schema)", "`options_schema` has to be the `pathlib.Path` of a file"),
        ("options_schema = Path('no')", f"{NO_SCHEMA}FileNotFoundError"),
        ("options_schema = Path(__file__)", f"{NO_SCHEMA}JSONDecodeError"),
        ("def create_quantizer(self, options, context): pass", "`quantizer_schema` has to be the `pathlib.Path` of a"),
        ("create_partitioner = 5", "`create_partitioner` has to be a method"),
        ("pairs_partitions = True", "`pairs_partitions` has to be a method"),
        ("name = 'talley'", "`name` is `talley`: it has to be that of the entry point"),
        ("needs = ('an SDK',)", "`needs` has to be a tuple of `etbuild.backends.Need`"),
        ("distributions = 'tally'", "`distributions` has to be a tuple of strings"),
        ("same_options = 'target'", "`same_options` has to be a tuple of strings"),
        ("delegate_id = 5", "`delegate_id` has to be a string or None"),
        ("separable = 'no'", "`separable` has to be True or False"),
        (PAIRS, "`separable` contradicts `pairs_partitions`: write `separable = False`, or leave it out"),
        (EDGE, "`separable` contradicts `edge_requirements`: write `separable = False`, or leave it out"),
        (
            "seperable = False",
            "`seperable` is not a name of `Backend`: did you mean `separable`? Names of your own start",
        ),
        ("named_data_is_weights = True", "`named_data_is_weights` is not a name of `Backend`: "),
    ],
)
def test_errors_of_a_backend_are_at_its_place_in_the_manifest(own_site: Path, line: str, message: str) -> None:
    assert_refused(own_site, changed_class(line), message)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Tally = 5", "it has to be a subclass of `etbuild.backends.Backend`"),
        ("Tally = Tally()", "it has to be a subclass of `etbuild.backends.Backend`"),
        ("from etbuild.backends.xnnpack import Xnnpack as Tally", "it has to be a subclass of `etbuild.backends.Back"),
        ("del Tally.separable", "`separable` is missing"),
        ("del Tally.options_schema", "`options_schema` is missing"),
        ("Tally.__init__ = lambda self: 1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("Tally.__init__ = lambda self: setattr(self, 'separable', 1)", "`separable` has to be True or False"),
    ],
)
def test_a_class_that_is_not_a_backend_is_refused(own_site: Path, code: str, message: str) -> None:
    assert_refused(own_site, code, message)


def assert_refused(site: Path, code: str, message: str) -> None:
    done = etbuild_with(site, code, "validate", MANIFEST)
    assert done.returncode == 2
    assert "tally.yaml:7:17: " in done.stderr
    where = "the entry point `tally` of the group `etbuild.backends` (etbuild_tally:Tally)"
    separator = " " if message.startswith("cannot") else ": "
    assert f"defaults.partitioners[0].backend: {where}{separator}{message}" in done.stderr
    assert "Traceback" not in done.stderr


FAILED = "the backend `tally` failed when it"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ("needs = (Need('an SDK', 'install it', lambda: 1 / 0),)",),
            f"{FAILED} looked for what it needs: ZeroDivisionError: division by zero",
        ),
        (
            ("separable = False", "def pairs_partitions(self, options): return options['no']"),
            f"methods.classify.partitioners[0]: {FAILED} was asked for `pairs_partitions`: KeyError",
        ),
        (
            ("def check_options(self, options): return options['no']",),
            f"defaults.partitioners[0].options: {FAILED} was asked for `check_options`: KeyError",
        ),
        (
            ("def grouping_key(self, options): return {1}",),
            f"defaults.partitioners[0]: {FAILED} was asked for `grouping_key`: TypeError",
        ),
        (
            ("def callables(self, options): return 'model:create'",),
            f"{FAILED} was asked for `callables`: TypeError: 'model:create' is not a tuple of `module:callable`",
        ),
        (
            ("def check_delegated(self, options, operators): return options['no']",),
            f"methods.classify.partitioners[0].options: {FAILED} was asked for `check_delegated`: KeyError",
        ),
        (
            ("def stored_weights(self, compiled, named_data): return 5",),
            f"{FAILED} was asked for `stored_weights`: TypeError: 5 is not a `StoredWeights`",
        ),
        (
            ("def create_partitioner(self, options, context): return 5",),
            "methods.classify.partitioners[0]: the partitioner of `tally` is int, not a Partitioner",
        ),
    ],
)
def test_an_exception_of_a_backend_is_a_build_error(
    own_site: Path, tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    code = changed_class(*lines)
    done = etbuild_with(own_site, code, "build", MANIFEST, "--no-cache", "--jobs", 1, "-o", tmp_path / "out")
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# Counts over all methods, which works only if it gets them together.
JOINT = """
def number_methods(cls, programs, specs):
    numbers = {method: str(number).encode() for number, method in enumerate(sorted(programs))}
    return {method: [PreprocessResult(numbers[method])] for method in programs}
"""
OWN = "TallyBackend.preprocess_multimethod = classmethod(number_methods)\n"
INHERITED = """
class Numbering:
    preprocess_multimethod = classmethod(number_methods)
class NumberingBackend(Numbering, BackendDetails):
    preprocess = TallyBackend.preprocess
TallyBackend.__name__ = "NumberingBackend"
"""
# A partitioner that delegates to a backend other than the package's own.
ELSEWHERE = """
class JointBackend(BackendDetails):
    preprocess_multimethod = classmethod(number_methods)
    preprocess = TallyBackend.preprocess
def create(self, operators, method):
    Partitioner.__init__(self)
    self.operators, self.specification = operators, DelegationSpec("JointBackend", [])
TallyPartitioner.__init__ = create
"""
COUNTING = """
TallyBackend.compiled = 0
preprocess = TallyBackend.preprocess
def count(program, specs):
    TallyBackend.compiled += 1
    result = preprocess(program, specs)
    result.processed_bytes += str(TallyBackend.compiled).encode()
    return result
TallyBackend.preprocess = staticmethod(count)
"""
# Stores each weight only once.
KEEPING = """
given = set()
preprocess = TallyBackend.preprocess
def give_once(program, specs):
    result = preprocess(program, specs)
    new = {key: entry for key, entry in result.data_store_output.pte_data.items() if key not in given}
    given.update(new)
    result.data_store_output.pte_data = new
    return result
TallyBackend.preprocess = staticmethod(give_once)
"""
REFUSING = """
from executorch.exir.backend.utils import is_identical_graph
preprocess, seen = TallyBackend.preprocess, []
def once(program, specs):
    assert not any(is_identical_graph(program.graph_module, each) for each in seen), "I know that one"
    seen.append(program.graph_module)
    return preprocess(program, specs)
TallyBackend.preprocess = staticmethod(once)
"""


@dataclass
class Changed:
    """The package with changes, in this process, which has already imported torch."""

    site: Path
    capfd: pytest.CaptureFixture[str]

    def build(self, jobs: int, lowering: str = "", backend: str = "") -> tuple[int, dict[str, bytes], str]:
        """Builds the example with code added at the end of two modules. Returns exit code, artifacts and output."""
        with (
            changed(self.site / "etbuild_tally/lowering.py", lowering),
            changed(self.site / "etbuild_tally/__init__.py", backend),
        ):
            forget_the_package()
            out = self.site.parent / "out"
            code = main.main(["build", str(MANIFEST), "--no-cache", "--jobs", str(jobs), "-o", str(out)])
        made = {path.name: path.read_bytes() for path in out.glob("*")}
        shutil.rmtree(out, ignore_errors=True)
        return code, made, self.capfd.readouterr().err


@contextmanager
def changed(module: Path, code: str) -> Iterator[None]:
    before = module.read_text()
    module.write_text(f"{before}\n{code}\n")
    yield
    module.write_text(before)


def forget_the_package() -> None:
    importlib.invalidate_caches()
    entry_points._entries.cache_clear()
    entry_points.load.cache_clear()
    entry_points.owner.cache_clear()
    for name in [name for name in sys.modules if name.startswith("etbuild_tally")]:
        del sys.modules[name]


@pytest.fixture
def package(own_site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Changed]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # because the two edits are within a second
    monkeypatch.syspath_prepend(str(own_site))
    shutil.rmtree(own_site / "etbuild_tally/__pycache__", ignore_errors=True)
    yield Changed(own_site, capfd)
    forget_the_package()


@pytest.mark.parametrize(
    ("change", "message", "jobs"),
    [
        pytest.param(JOINT + OWN, "`TallyBackend` has a `preprocess_multimethod` of its own", 1, id="own, together"),
        pytest.param(JOINT + OWN, "`TallyBackend` has a `preprocess_multimethod` of its own", 2, id="own"),
        pytest.param(JOINT + INHERITED, "`NumberingBackend` has a `preprocess_multimethod`", 2, id="inherited"),
        pytest.param(JOINT + ELSEWHERE, "`JointBackend` has a `preprocess_multimethod` of its own", 2, id="elsewhere"),
        pytest.param(
            COUNTING, "gave different bytes for the same partition: it is not deterministic", 1, id="counting"
        ),
        pytest.param(KEEPING, "gave different bytes for the same partition: it is not deterministic", 2, id="keeping"),
        pytest.param(REFUSING, "for the second time: AssertionError: I know that one", 2, id="refusing"),
    ],
)
def test_a_backend_that_calls_itself_separable_and_is_not_is_refused(
    package: Changed, change: str, message: str, jobs: int
) -> None:
    code, made, said = package.build(jobs, lowering=change)
    assert (code, made) == (1, {})
    assert (
        "partitioners[0]: the backend `tally` of the package `etbuild-tally` says that it is `separable`, but " in said
    )
    assert message in said
    assert "write `separable = False`" in said
    assert "Traceback" not in said


def test_a_backend_that_gets_all_methods_says_so(package: Changed) -> None:
    """Then it gets them together, for any number of processes."""
    made = [package.build(jobs, JOINT + OWN, changed_class("separable = False")) for jobs in (1, 2)]
    assert made[0][0] == 0, made[0][2]
    assert made[0][:2] == made[1][:2]


def test_a_package_may_lower_for_xnnpack(package: Changed) -> None:
    """Also if several processes replace ExecuTorch's loop over the delegates."""
    lines = (
        "def create_partitioner(self, options, context):",
        "    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner",
        "    return XnnpackPartitioner()",
    )
    code, made, said = package.build(2, backend=changed_class(*lines))
    assert code == 0, said
    report = json.loads(made["tally.report.json"])
    assert set(report["methods"]["features"]["operators"]["delegated"]) == {"XnnpackBackend"}


def test_sources_that_its_options_name_can_be_loaded_and_are_in_the_key(own_site: Path, tmp_path: Path) -> None:
    code = changed_class(
        "def callables(self, options): return ('listed:operators',)",
        "def create_partitioner(self, options, context):",
        "    return super().create_partitioner({'operators': context.load('listed:operators')()}, context)",
    )
    for name in ("model.py", "tally.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    (tmp_path / "listed.py").write_text("def operators():\n    return ['aten::relu']\n")
    build = ("build", tmp_path / "tally.yaml", "--cache-dir", tmp_path / "cache", "-o", tmp_path / "out")
    done = etbuild_with(own_site, code, *build)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/tally.report.json").read_bytes())
    assert report["methods"]["features"]["operators"]["delegated"] == {"TallyBackend": {"aten::relu": 1}}
    inputs = json.loads(etbuild("plan", tmp_path / "tally.yaml", path=own_site).stdout)["inputs"]
    assert sorted(inputs["sources"]) == ["listed.py", "model.py"]


def test_an_error_in_an_option_of_its_quantizer_has_a_position(own_site: Path, tmp_path: Path) -> None:
    code = changed_class(
        "quantizer_schema = Tally.options_schema",
        "def create_quantizer(self, options, context):",
        '    raise OptionError("there is no `sin`", ("operators", 1), "write `cos`")',
    )
    quantize = '{pt2e: {quantizers: [{backend: tally, options: {operators: [cos, sin]}}], qat: "model:create"}}'
    text = MANIFEST.read_text().replace("defaults:\n", f"defaults:\n  quantize: {quantize}\n")
    (tmp_path / "tally.yaml").write_text(text)
    root = ("--root", EXAMPLE)
    done = etbuild_with(own_site, code, "build", tmp_path / "tally.yaml", *root, "--no-cache", "-o", tmp_path / "out")
    assert done.returncode == 2
    told = "quantize.pt2e.quantizers[0].options.operators[1]: there is no `sin`\n    write `cos`"
    assert told in done.stderr


def test_a_broken_package_concerns_no_other_backend(own_site: Path, tmp_path: Path) -> None:
    """Neither a package that cannot be loaded, nor one that uses a name of ours. The known backends are still
    listed."""
    other = own_site / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[etbuild.backends]\nbroken = not_there:B\nxnnpack = not_there:B\n")
    assert etbuild("validate", MANIFEST, path=own_site).returncode == 0
    (tmp_path / "tally.yaml").write_text(MANIFEST.read_text().replace("backend: tally", "backend: taly"))
    done = etbuild("validate", tmp_path / "tally.yaml", path=own_site)
    assert "did you mean `tally`? (known: broken, cadence," in done.stderr


def test_packages_are_looked_for_where_a_name_is_unknown_and_not_before(site: Path) -> None:
    code = (
        "import sys; from etbuild.cli.main import main; main(['validate', *sys.argv[1:]]); "
        "print('etbuild_tally' in sys.modules, 'torch' in sys.modules)"
    )
    found = []
    for manifest in (EXAMPLE.parent / "mlp/model.yaml", MANIFEST):
        command = [sys.executable, "-c", code, str(manifest)]
        done = subprocess.run(command, env=with_path(site), capture_output=True, text=True)
        found.append(done.stdout.splitlines()[-1])
    assert found == ["False False", "True False"]
