"""
Try what the README promises, on a machine without this project: its commands in a clone, all blocks of code of the
documentation, and the wheel with every command of `sb3-per` in an empty environment.

    python tests/helpers/newcomer.py [FOLDER]

Python's own library is enough. FOLDER must not exist, and keeps what is made; otherwise it is temporary. It takes about a
quarter of an hour on two cores, most of it for `make test`.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "helpers")]
from first_forms import COMMANDS, PICKLE  # noqa: E402  # this script is not installed
from pages import blocks_of, commands_of  # noqa: E402

# Variables of a fresh login.
INHERITED = re.compile("HOME|LANG|PATH|TMPDIR|USER|PIP_.*")


def blocks(language: str) -> list[str]:
    """
    List blocks of the README.

    :param language: language of the blocks
    :return: their code, in order
    """
    return [block.code for block in blocks_of(README) if block.language == language]


def run(words: list[str], folder: Path) -> None:
    """Show a command, run it, and end here if it fails."""
    environment = {name: value for name, value in os.environ.items() if INHERITED.fullmatch(name)}
    # Leave the virtual environment that this script runs in.
    prefix = os.path.dirname(sys.executable)
    if sys.prefix != sys.base_prefix:
        environment["PATH"] = os.pathsep.join(each for each in environment["PATH"].split(os.pathsep) if each != prefix)
    print(f"\n[{folder.name}] $ {shlex.join(words)}", flush=True)
    start = time.monotonic()
    subprocess.run(words, cwd=folder, env=environment, check=True)
    print(f"[{time.monotonic() - start:.0f} s]", flush=True)


def python_of(project: Path) -> Path:
    """Make an empty environment in a project, and return its interpreter."""
    project.mkdir()
    run(["python3", "-m", "venv", ".venv"], project)
    return project / ".venv" / "bin" / "python"


def play(folder: Path) -> None:
    """
    Do everything that a newcomer does.

    :param folder: empty folder
    :raises subprocess.CalledProcessError: by the first command that fails
    """
    clone = folder / "sb3_per"
    run(["git", "clone", "--quiet", str(ROOT), str(clone)], folder)
    for words in commands_of("\n".join(blocks("bash"))):
        run(words, clone)
    # `make test` has run the blocks of all pages except the slow ones.
    run([".venv/bin/pytest", "-q", "-m", "slow or not slow", "tests/project/test_docs.py"], clone)
    play_wheel(clone, folder / "project")


def play_wheel(clone: Path, project: Path) -> None:
    """
    Install the wheel into an empty environment, and use it from another folder.

    :param clone: clone of the repository
    :param project: folder to make
    """
    python = python_of(project)
    run([str(python), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(project), str(clone)], project)
    (wheel,) = project.glob("*.whl")
    # The constraint is not part of the promise: it chooses the build of torch that this machine has.
    constraint = str(clone / "constraints.txt")
    run([str(python), "-m", "pip", "install", "--quiet", "-c", constraint, f"{wheel}[zoo,compare]"], project)
    for number, code in enumerate([*blocks("python"), PICKLE]):
        script = project / f"block_{number}.py"
        script.write_text(code)
        run([str(python), script.name], project)
    program = str(python.with_name("sb3-per"))
    for command, forms in COMMANDS.items():
        run([program, command, "--help"], project)
        run([program, command, *forms.required, *forms.short], project)
        for option in forms.options:
            run([program, command, *forms.required, *forms.short, *option.split(" ")], project)


def main() -> None:
    """Play the newcomer, in a given or a temporary folder."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1]).resolve()
        folder.mkdir(parents=True)
        play(folder)
    else:
        with tempfile.TemporaryDirectory() as name:
            play(Path(name))
    print("\nEverything the README says works.")


if __name__ == "__main__":
    main()
