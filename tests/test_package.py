"""The wheel that users install: every file is in it, and its page on a package index has links that work there."""

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from emcaps import __version__

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.message_from_bytes(wheel.read(f"emcaps-{__version__}.dist-info/METADATA"))


def test_the_wheel_holds_every_file_of_the_source(wheel):
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in source.glob("emcaps/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"emcaps/py.typed", "emcaps/weights/small-stereo.safetensors", "emcaps/cli/__init__.py"} <= files
    assert files == {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_long_description_is_the_readme_with_full_addresses(metadata):
    text = metadata.get_payload(decode=True).decode()
    assert text.startswith("# emcaps\n")
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|href|srcset)=[\"']([^\"']*)|^\[[^\]]+\]:\s*(\S+)", text, re.M)
    addresses = ["".join(found) for found in targets]
    assert len(addresses) > 10
    assert [address for address in addresses if not address.startswith("https://")] == []


def test_the_pictures_of_the_long_description_are_files_that_exist(metadata):
    text = metadata.get_payload(decode=True).decode()
    pictures = re.findall(r"!\[[^\]]*\]\(https://raw\.githubusercontent\.com/emcaps/emcaps/main/([^)]+)\)", text)
    assert len(pictures) == text.count("![") > 0
    for picture in pictures:
        assert (ROOT / picture).is_file(), picture


def test_the_metadata_says_whose_it_is_and_where(metadata):
    assert metadata["Author"] == "The emcaps maintainers"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    assert urls.keys() >= {"Homepage", "Documentation", "Changelog", "Issues"}
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"name: {metadata['Author']}\n" in citation
    assert f"version: {__version__}\n" in citation
    assert f"repository-code: {urls['Homepage']}\n" in citation


def test_the_versions_that_the_tests_use_are_pinned():
    """Every requirement of the package and its extras has a line in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[>=]", name)[0] for name in wanted} - {"emcaps"}
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    assert names <= pinned
