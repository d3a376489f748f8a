"""
Run the README's blocks of Python and the command `sb3-per`, with the package that this Python has installed.

    python .ci/readme.py

Python's own library is enough. The blocks run in a temporary folder, so the package is not taken from the clone.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(folder: Path, *words: str) -> None:
    """Show a command, run it in a folder, and raise ``CalledProcessError`` if it fails."""
    print("$", *words, flush=True)
    subprocess.run(words, cwd=folder, check=True)


def main() -> None:
    """Run all of it."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    if not blocks:
        raise ValueError("README.md has no block of Python")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, block in enumerate(blocks):
            (folder / f"block_{i}.py").write_text(block)
            run(folder, sys.executable, f"block_{i}.py")
        run(folder, sys.executable, "-m", "sb3_per", "--help")
        run(folder, sys.executable, "-m", "sb3_per", "doctor")


if __name__ == "__main__":
    main()
