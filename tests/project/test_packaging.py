"""Wheel, sdist and editable install have all files that they need, and no other file."""

import email
import io
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
from typing import Any, NamedTuple

import pytest

import sb3_per
from sb3_per.zoo import ALGORITHMS
from tests.helpers.project import ROOT

BUILD = "from setuptools import build_meta as b; import sys; b.build_{kind}(sys.argv[1])"


class Distributions(NamedTuple):
    wheel: Path
    sdist: Path
    editable: Path
    source: Path


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
def built(tmp_path_factory) -> Distributions:
    """Build all three from a copy in a folder that has the name of the package, as a clone has."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "parent" / "sb3_per"
    names = files_of_git()
    if names is None:
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info", "build", "dist", ".hypothesis", ".venv")
        shutil.copytree(ROOT, source, ignore=ignored, symlinks=True)
    else:
        for name in names:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    for kind in ("sdist", "wheel", "editable"):
        (folder / kind).mkdir()
        run(sys.executable, "-c", BUILD.format(kind=kind), folder / kind, cwd=source)
    return Distributions(*(next((folder / kind).glob("*.*")) for kind in ("wheel", "sdist", "editable")), source)


def files_of_package() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "sb3_per").rglob("*")
        if path.suffix in {".py", ".mplstyle"} or path.name == "py.typed"
    }


def test_the_wheel_has_the_package_and_nothing_else(built):
    """It has modules, types, the style of figures and hyperparameter files, but no tests and no other folder."""
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    configs = {f"sb3_per/zoo/configs/{algo}.yml" for algo in ALGORITHMS}
    assert configs <= names
    assert names - {name for name in names if name.startswith("sb3_per/zoo/configs/")} == files_of_package()


def metadata_of(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def test_public_names_can_be_imported():
    assert all(hasattr(sb3_per, name) for name in sb3_per.__all__)
    assert set(sb3_per.__all__) <= set(dir(sb3_per))
    assert not hasattr(sb3_per, "NoSuchName")


def test_the_metadata_has_license_links_and_extras(built):
    metadata = metadata_of(built.wheel)
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


def test_the_oldest_python_of_the_classifiers_is_the_required_one(built):
    metadata = metadata_of(built.wheel)
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata.get_all("Classifier")))
    assert found[0] == metadata["Requires-Python"].removeprefix(">=")


def test_the_wheel_declares_the_console_script(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert wheel.read(name).decode().split() == ["[console_scripts]", "sb3-per", "=", "sb3_per.cli.main:main"]


def test_the_sdist_has_the_package_and_the_examples_and_no_other_folder(built):
    with tarfile.open(built.sdist) as sdist:
        inside = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    folders = {name.partition("/")[0] for name in inside if "/" in name}
    assert folders == {"sb3_per", "sb3_per.egg-info", "examples", "zoo_configs"}
    wanted = files_of_package() | {path.relative_to(ROOT).as_posix() for path in (ROOT / "zoo_configs").glob("*.yml")}
    assert wanted <= inside


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built.sdist) as sdist:
        sdist.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else sdist.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    (tmp_path / "dist").mkdir()
    run(sys.executable, "-c", BUILD.format(kind="wheel"), tmp_path / "dist", cwd=source)
    again = next((tmp_path / "dist").glob("*.whl"))
    with zipfile.ZipFile(built.wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


@pytest.fixture(scope="module")
def editable(built, tmp_path_factory) -> Path:
    """Make an environment with the editable install, which finds all other packages in this environment."""
    folder = tmp_path_factory.mktemp("editable")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    with zipfile.ZipFile(io.BytesIO(built.editable.read_bytes())) as wheel:
        wheel.extractall(site)
    # Python ignores .pth files in a folder that another .pth file names, so the package installed here is not found.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_editable_install_works_from_the_parent_folder(built, editable):
    """The clone is a folder with the name of the package there, and Python must not import it."""
    program = "import sb3_per, sb3_per.zoo as z; print(sb3_per.__file__, z.config_path('per_sac'))"
    file, config = run(editable, "-c", program, cwd=built.source.parent).split()
    assert Path(file) == built.source / "sb3_per" / "__init__.py"
    assert Path(config).resolve() == built.source / "zoo_configs" / "per_sac.yml"


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
