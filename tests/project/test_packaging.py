"""Wheel, sdist and editable install have all files that they need, and no other file."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest

import sb3_per
from sb3_per.zoo import ALGORITHMS
from tests.helpers.project import ROOT

BUILD = "from setuptools import build_meta as b; import sys; b.build_{kind}(sys.argv[1])"


def run(*words: Any, cwd: Path) -> str:
    """Run a command without the import path of these tests, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_git() -> list[str] | None:
    """List the files that git tracks or would track; ``None`` without git, as in an unpacked sdist."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Copy the sources to a folder that has the name of the package, as a clone has."""
    source = tmp_path_factory.mktemp("parent") / "sb3_per"
    names = files_of_git()
    if names is None:
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info", "build", "dist", ".hypothesis", ".venv")
        shutil.copytree(ROOT, source, ignore=ignored, symlinks=True)
    else:
        for name in names:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    return source


def build(kind: str, source: Path, folder: Path) -> Path:
    run(sys.executable, "-c", BUILD.format(kind=kind), folder, cwd=source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


def files_of_package() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "sb3_per").rglob("*")
        if path.suffix in {".py", ".mplstyle"} or path.name == "py.typed"
    }


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    """It has modules, types, the style of figures and hyperparameter files, but no tests and no other folder."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    configs = {f"sb3_per/zoo/configs/{algo}.yml" for algo in ALGORITHMS}
    assert configs <= names
    assert names - {name for name in names if name.startswith("sb3_per/zoo/configs/")} == files_of_package()


def metadata_of(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def test_public_names_can_be_imported():
    assert all(hasattr(sb3_per, name) for name in sb3_per.__all__)


def test_the_metadata_has_license_links_and_versions(wheel):
    metadata = metadata_of(wheel)
    assert metadata["Name"].replace("-", "_") == "sb3_per"
    assert metadata["Version"] == sb3_per.__version__
    assert metadata["License-Expression"] == "MIT" and metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(metadata["Keywords"].split(",")) >= 5
    classifiers = metadata.get_all("Classifier")
    assert "Typing :: Typed" in classifiers
    assert f"Programming Language :: Python :: {sys.version_info[0]}.{sys.version_info[1]}" in classifiers
    for url in metadata.get_all("Project-URL"):
        assert re.fullmatch(r"[\w -]+, https://\S+", url)
    oldest = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))[0]
    assert metadata["Requires-Python"] == f">={oldest}"


def test_the_wheel_declares_the_console_script(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert archive.read(name).decode().split() == ["[console_scripts]", "sb3-per", "=", "sb3_per.cli.main:main"]


@pytest.mark.slow
def test_the_sdist_has_the_package_and_the_examples_and_no_other_folder(sdist):
    with tarfile.open(sdist) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    folders = {name.partition("/")[0] for name in inside if "/" in name}
    assert folders == {"sb3_per", "sb3_per.egg-info", "examples", "zoo_configs"}
    wanted = files_of_package() | {path.relative_to(ROOT).as_posix() for path in (ROOT / "zoo_configs").glob("*.yml")}
    assert wanted <= inside


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(wheel, sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    (tmp_path / "dist").mkdir()
    again = build("wheel", source, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


@pytest.fixture(scope="module")
def editable(source, tmp_path_factory) -> Path:
    """Make an environment with the editable install, which finds all other packages in this environment."""
    folder = tmp_path_factory.mktemp("editable")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    with zipfile.ZipFile(build("editable", source, tmp_path_factory.mktemp("wheel"))) as archive:
        archive.extractall(site)
    # Python ignores .pth files in a folder that another .pth file names, so the package installed here is not found.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.slow
def test_the_editable_install_works_from_the_parent_folder(source, editable):
    """The clone is a folder with the name of the package there, and Python must not import it."""
    program = "import sb3_per, sb3_per.zoo as z; print(sb3_per.__file__, z.config_path('per_sac'))"
    file, config = run(editable, "-c", program, cwd=source.parent).split()
    assert Path(file) == source / "sb3_per" / "__init__.py"
    assert Path(config).resolve() == source / "zoo_configs" / "per_sac.yml"


@pytest.mark.slow
def test_type_checkers_read_the_types_of_the_editable_install(editable, tmp_path):
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        textwrap.dedent(
            """
            from sb3_per import SumTree

            reveal_type(SumTree(3).total)
            """
        )
    )
    mypy = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "--python-executable", editable]
    assert 'Revealed type is "float"' in run(*mypy, snippet, cwd=tmp_path).replace("builtins.", "")
