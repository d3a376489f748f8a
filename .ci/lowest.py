"""
Print the lowest version of each dependency that pyproject.toml admits, as constraints for pip: of the package, or of an extra.

    python .ci/lowest.py > lowest.txt
    python .ci/lowest.py sbx > lowest-sbx.txt
"""

import re
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]


def lowest(extra: str | None = None) -> list[str]:
    """
    List the lowest versions.

    :param extra: name of an extra, whose packages without a bound are left out; ``None``: the dependencies of the package
    :return: constraints, such as "numpy==1.24"
    :raises ValueError: if a dependency of the package has no lower bound, or none of the extra has one
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    constraints = []
    for dependency in dependencies:
        bound = re.match(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)", dependency)
        if bound is not None:
            constraints.append(f"{bound[1]}=={bound[2]}")
        elif extra is None:
            raise ValueError(
                f"{dependency!r} in pyproject.toml should be NAME>=VERSION, so that the lowest version can be tested"
            )
    if not constraints:
        raise ValueError(f"The extra {extra} in pyproject.toml has no lowest versions")
    return constraints


if __name__ == "__main__":
    print("\n".join(lowest(*sys.argv[1:])))
