"""
What the README promises, on a machine that has nothing of this project: its commands in their order, in a clone and with an
environment that knows of no other; every block of code of the documentation; and the package in a project of one's own.

    python tests/newcomer.py [FOLDER]

Python's own library is enough. FOLDER, which must not exist, keeps what is made; otherwise it is temporary. About a quarter of
an hour on two cores, most of it `make test`.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"

sys.path.append(str(ROOT / "benchmarks"))
from pages import blocks_of, commands_of  # noqa: E402  # a script, which nothing is installed for

# What somebody has who has just logged in.
INHERITED = re.compile("HOME|LANG|PATH|TMPDIR|USER|PIP_.*")


def blocks(language: str) -> list[str]:
    """
    :param language: of blocks of the README
    :return: their code, in order
    """
    return [block.code for block in blocks_of(README) if block.language == language]


def own_project(readme: str) -> tuple[list[str], list[list[str]]]:
    """
    :param readme: text
    :return: of the sentence on projects of one's own: the installation with the most extras, and what can be called then
    """
    sentence = re.search(r"^In a project of your own: (.*?)\n\n", readme, re.DOTALL | re.MULTILINE)
    if sentence is None:
        raise ValueError("The README does not say how the package is installed in a project of one's own")
    spans = [shlex.split(span) for span in re.findall(r"`([^`]+)`", sentence[1])]
    installations = [words for words in spans if words[:2] == ["pip", "install"]]
    return max(installations, key=lambda words: len(words[-1])), [words for words in spans if words not in installations]


def run(words: list[str], folder: Path) -> None:
    """Show a command, run it, and end here if it fails."""
    environment = {name: value for name, value in os.environ.items() if INHERITED.fullmatch(name)}
    # A virtual environment this script runs in is not the newcomer's.
    prefix = os.path.dirname(sys.executable)
    if sys.prefix != sys.base_prefix:
        environment["PATH"] = os.pathsep.join(each for each in environment["PATH"].split(os.pathsep) if each != prefix)
    print(f"\n[{folder.name}] $ {shlex.join(words)}", flush=True)
    start = time.monotonic()
    subprocess.run(words, cwd=folder, env=environment, check=True)
    print(f"[{time.monotonic() - start:.0f} s]", flush=True)


def play(folder: Path) -> None:
    """
    :param folder: that is empty
    :raises subprocess.CalledProcessError: by the first command that fails
    """
    clone, project = folder / "sb3_per", folder / "project"
    run(["git", "clone", "--quiet", str(ROOT), str(clone)], folder)
    for words in commands_of("\n".join(blocks("bash"))):
        run(words, clone)
    # `make test` ran the blocks of all pages but of those that are slow.
    run([".venv/bin/pytest", "-q", "-m", "slow or not slow", "tests/project/test_docs.py"], clone)

    project.mkdir()
    bin_folder = project / ".venv" / "bin"
    run(["python3", "-m", "venv", ".venv"], project)
    installation, calls = own_project(README.read_text())
    # The constraint is no part of the promise: it keeps torch at the build that this machine has.
    run([str(bin_folder / "pip"), *installation[1:], "--quiet", "-c", "constraints.txt"], clone)
    for number, code in enumerate(blocks("python")):
        script = project / f"block_{number}.py"
        script.write_text(code)
        run([str(bin_folder / "python"), script.name], project)
    for program, *arguments in calls:
        needed = ["--algo", "per_dqn", "--env", "CartPole-v1", "-n", "2000"] if arguments == ["train"] else []
        run([str(bin_folder / program), *arguments, *needed], project)


def main() -> None:
    """Play the newcomer, in a folder that is given or temporary."""
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
