"""How an installed distribution becomes part of the key."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from etbuild.errors import InputError
from etbuild.extras import DISTRIBUTION
from etbuild.key import distributions, toolchain

COMPILED = EXTENSION_SUFFIXES[0]  # such as `.cpython-311-x86_64-linux-gnu.so`


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages with the distribution `our-net` and its package `our_net`."""
    root = tmp_path / "site"
    (root / "our_net-1.0.dist-info").mkdir(parents=True)
    (root / "our_net-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: our-net\nVersion: 1.0\n")
    (root / "our_net/blocks").mkdir(parents=True)
    (root / "our_net/__init__.py").write_text("")
    (root / "our_net/blocks/mlp.py").write_text("width = 1\n")
    monkeypatch.syspath_prepend(root)
    return root


def required() -> tuple[str, tuple[str, ...]]:
    distributions._distribution.cache_clear()
    distributions.version_and_requirements.cache_clear()
    return distributions.version_and_requirements("our-net")


def digest() -> str:
    distributions._distribution.cache_clear()
    distributions.facts.cache_clear()
    distributions.version_and_requirements.cache_clear()
    version, sha256 = distributions.facts("our-net")
    assert version == "1.0"
    return sha256


def metadata(site: Path, **files: str) -> None:
    for name, text in files.items():
        (site / "our_net-1.0.dist-info" / name.replace("_json", ".json")).write_text(text)


def assert_follows(path: Path) -> None:
    before = digest()
    assert digest() == before
    path.write_text("width = 2\n")
    assert digest() != before


def test_an_installed_package_is_known_by_its_record(site: Path) -> None:
    metadata(site, RECORD="our_net/__init__.py,sha256=a,0\nour_net/blocks/mlp.py,sha256=b,10\n")
    before = digest()
    metadata(site, RECORD="our_net/__init__.py,sha256=a,0\nour_net/blocks/mlp.py,sha256=c,10\n")
    assert digest() != before


def test_bytecode_and_metadata_are_left_out(site: Path) -> None:
    metadata(site, RECORD="our_net/__init__.py,sha256=a,0\n")
    before = digest()
    metadata(site, RECORD="our_net/__init__.py,sha256=a,0\nour_net/a.pyc,sha256=b,\nx.dist-info/W,sha256=c,\n")
    assert digest() == before


def test_an_editable_package_is_known_by_its_files(site: Path) -> None:
    (site / "__editable__.our_net-1.0.pth").write_text(f"{site}\n")
    metadata(site, RECORD="__editable__.our_net-1.0.pth,sha256=a,10\n")
    assert_follows(site / "our_net/blocks/mlp.py")


def test_an_editable_package_with_a_finder_is_known_by_its_files(site: Path) -> None:
    metadata(site, RECORD="__editable___finder.py,sha256=a,10\n", direct_url_json='{"dir_info": {"editable": true}}')
    assert_follows(site / "our_net/blocks/mlp.py")


def test_a_package_without_a_record_is_known_by_its_files(site: Path) -> None:
    assert_follows(site / "our_net/blocks/mlp.py")


def test_an_editable_package_may_be_made_of_links(site: Path) -> None:
    (site.parent / "blocks").mkdir()
    (site.parent / "blocks/mlp.py").write_text("width = 1\n")
    (site / "our_net/linked").symlink_to(site.parent / "blocks")
    (site / "our_net/circle").symlink_to(site / "our_net")
    assert_follows(site.parent / "blocks/mlp.py")


def test_the_directory_of_a_package_does_not_matter(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest()
    site.rename(tmp_path / "moved")
    monkeypatch.syspath_prepend(tmp_path / "moved")
    assert digest() == before


def test_a_package_whose_files_are_not_found_is_refused(site: Path) -> None:
    (site / "our_net").rename(site / "net")
    with pytest.raises(InputError, match="`our-net` is installed without a list of its files"):
        digest()
    metadata(site, **{"top_level.txt": "net"})
    assert digest()


def test_a_package_that_is_only_a_hook_is_known_by_its_record(site: Path) -> None:
    (site / "our_net").rename(site / "net")
    (site / "our_hook.pth").write_text("# when Python starts\nimport net\n")
    metadata(site, RECORD="our_hook.pth,sha256=a,33\n")
    before = digest()
    metadata(site, RECORD="our_hook.pth,sha256=b,33\n")
    assert digest() != before
    (site / "our_hook.pth").write_text(f"{site}\n")
    with pytest.raises(InputError, match="`our-net` is installed without a list of its files"):
        digest()


def test_a_distribution_without_files_has_no_digest_to_find(site: Path) -> None:
    metadata(site, RECORD="our_net-1.0.dist-info/METADATA,sha256=a,10\n")
    assert digest()


def test_the_driver_is_there_by_its_files() -> None:
    assert (
        DISTRIBUTION
        not in toolchain.toolchain((), [importlib.metadata.distribution(DISTRIBUTION).name])["distributions"]
    )


def test_metadata_is_read_as_pythons_own_library_reads_it() -> None:
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"]
        theirs = importlib.metadata.distribution(name)  # the first of this name, if there are two
        assert distributions.version_and_requirements(name) == (theirs.version, tuple(theirs.requires or ()))


def test_fields_of_metadata_may_be_folded_and_written_in_any_case(site: Path) -> None:
    text = "version: 2.5\nRequires-Dist: one\n  >=1\nREQUIRES-DIST: two \n\nRequires-Dist: in-the-description\n"
    metadata(site, METADATA=text)
    assert required() == ("2.5", ("one >=1", "two"))


def test_metadata_without_a_version_is_an_error(site: Path) -> None:
    metadata(site, METADATA="Name: our-net\n")
    with pytest.raises(InputError, match="`our-net` has no version"):
        required()


def test_owners_of_packages_are_those_that_python_finds(site: Path) -> None:
    def install(name: str, **files: str) -> None:
        directory = site / name
        directory.mkdir()
        for file, text in files.items():
            (directory / file.replace("_", "-").replace("-level", "_level").replace("-txt", ".txt")).write_text(text)

    metadata(site, RECORD='our_net/__init__.py,sha256=a,0\n"our_net/a, b.py",,\nour_net/x.so,,\n../../bin/run,,\n')
    install("six_like-1.dist-info", METADATA="Name:  six-like\n\nName: no\n", RECORD="six_like.py,,\nshared/a.py,,\n")
    install("other-1.dist-info", METADATA="Name: other\n", RECORD="shared/b.py,,\nonly_data/x.json,,\n")
    install("named-1.dist-info", METADATA="Name: named\n", RECORD="unnamed/b.py,,\n", top_level_txt="first\nsecond\n")
    install("empty-1.dist-info", METADATA="Name: empty\n")
    (site / "old").mkdir()  # Python 3.12 and later look whether files that SOURCES.txt names are there
    (site / "old/__init__.py").touch()
    install("old-1.egg-info", PKG_INFO="Name: old\n", SOURCES_txt="old/__init__.py\nsetup.py\n")
    install(
        "native-1.dist-info", METADATA="Name: native\n", RECORD=f"fast{EXTENSION_SUFFIXES[0]},,\nfast.libs/c.so,,\n"
    )
    unreadable = site / "unreadable-1.dist-info"
    unreadable.mkdir()
    (unreadable / "METADATA").write_bytes("Name: unreadable\nAuthor: Jos\u00e9\n".encode("latin-1"))
    found = distributions.by_top_level_name()
    expected = importlib.metadata.packages_distributions()
    # From Python 3.12 on, it also finds folders without modules, such as `share`.
    assert not [top for top in expected.keys() - found if (spec := importlib.util.find_spec(top)) and spec.origin]
    shared = expected.keys() & found
    assert {top: sorted(found[top]) for top in shared} == {top: sorted(expected[top]) for top in shared}
    assert found["fast"] == ["native"]
    assert "fast.libs" not in found
    assert sorted(found["shared"]) == ["other", "six-like"]
    assert found["old"] == ["old"]
    assert found["second"] == ["named"]


def test_requirements_of_extras_are_followed_if_the_extra_is_asked_for(site: Path) -> None:
    def install(name: str, *requirements: str) -> None:
        directory = site / f"{name.replace('-', '_')}-1.dist-info"
        directory.mkdir()
        lines = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {each}" for each in requirements)]
        (directory / "METADATA").write_text("\n".join(lines) + "\n")

    install("asks", "has-extras[Fast_IO, other]>=1; python_version > '3'", 'unasked; extra == "dev"')
    install("has-extras", "always", "fast; extra == 'fast-io'", "slow ; extra == 'slow'", "has_extras[all]; extra=='x'")
    install("fast", "has-extras[x]")  # another extra, of a package that was seen
    for name in ("always", "slow", "unasked"):
        install(name)
    toolchain._requirements.cache_clear()
    assert toolchain._requirements("asks") == ("asks", "has-extras", "fast", "always")


def test_other_installed_packages_make_another_environment(site: Path) -> None:
    before = distributions.environment()
    assert distributions.environment() == before
    other = site / "other-1.0.dist-info"
    other.mkdir()
    (other / "RECORD").write_text("other.py,sha256=a,1\nother-1.0.dist-info/RECORD,,\n../bin/other,sha256=x,1\n")
    installed = distributions.environment()
    (other / "RECORD").write_text("other.py,sha256=b,1\n")
    edited = distributions.environment()
    other.rename(site / "other-2.0.dist-info")
    assert len({before, installed, edited, distributions.environment()}) == 4
