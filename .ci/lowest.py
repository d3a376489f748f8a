"""
Print the lowest version of each dependency that pyproject.toml admits, as constraints for pip.

    python .ci/lowest.py > lowest.txt
"""

import re
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]


def lowest() -> list[str]:
    """
    List the lowest versions.

    :return: constraints, such as "numpy==1.24"
    :raises ValueError: if a dependency has no lower bound
    """
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    constraints = []
    for dependency in dependencies:
        bound = re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", dependency)
        if bound is None:
            raise ValueError(
                f"{dependency!r} in pyproject.toml should be NAME>=VERSION, so that the lowest version can be tested"
            )
        constraints.append(f"{bound[1]}=={bound[2]}")
    return constraints


if __name__ == "__main__":
    print("\n".join(lowest()))
