"""The rules of the house: who may import whom, and that each folder lists its files."""

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "sb3_per"
FILES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}

# A folder imports only those before it. Those after `distributed` may import public names from `sb3_per`.
FOLDERS = ("utils sampling buffers monitoring persistence integrations algorithms sbx distributed zoo compare cli").split()


def is_module(name: str) -> bool:
    return name in FILES or f"{name}.__init__" in FILES


def imports_of(name: str, with_types: bool = True) -> Iterator[str]:
    """Modules of the package that a module imports: at its top, in a function, or ``with_types`` for type checkers alone."""
    for_types = {
        part
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
    }
    for node in ast.walk(TREES[name]):
        if node in for_types and not with_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [part if is_module(part) else node.module for part in parts]
        elif isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            continue
        yield from filter(is_module, found)


def test_nothing_is_loose_at_the_top_level():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "public.py", "py.typed"}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(FOLDERS)


def test_the_docstring_of_a_folder_lists_its_files():
    for name, path in FILES.items():
        folder, _, module = name.rpartition(".")
        if not module.startswith("__"):
            listed = ast.get_docstring(TREES[f"{folder}.__init__"])
            assert listed is not None and f"``{path.name}``" in listed, f"the __init__.py of its folder does not list {path}"


def test_folders_import_only_those_below_them():
    for name in FILES:
        folder = name.split(".")[1]
        if folder in FOLDERS:
            for module in imports_of(name):
                other = module.split(".")[1] if "." in module else "distributed"
                allowed = FOLDERS[: FOLDERS.index(folder) + 1]
                assert other in allowed, f"{name} imports {module}"


def test_no_modules_import_each_other_in_a_circle():
    def without_init(name: str) -> str:
        return name.removesuffix(".__init__")

    # What a folder offers in its __init__ is imported from there: the file is a module like any other. A part may name the
    # type of the buffer that it is given.
    graph = {without_init(name): set(imports_of(name, with_types=False)) - {without_init(name)} for name in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_test_module_imports_another():
    """What tests share stands in ``tests/helpers``."""
    for path in Path(__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names] if node.level == 0 else ["tests."]
            else:
                names = []
            for name in names:
                assert not name.startswith("tests.") or name.startswith("tests.helpers."), f"{path} imports {name}"


def loaded_by(name: str) -> Iterator[str]:
    """What a module imports when it is loaded, so not in its functions."""
    todo: list[ast.AST] = [TREES[name]]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
        elif isinstance(node, ast.Try):
            todo += [*node.handlers, *node.orelse, *node.finalbody]  # what is tried may be missing
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def test_importing_the_package_loads_only_its_dependencies():
    """Other packages are extras, which are imported where they are used. The environment of the tests has them all."""
    table = re.search(r"^dependencies = \[(.*?)^\]", (PACKAGE.parent / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    allowed = {name.replace("-", "_") for name in re.findall(r'^ +"([\w-]+)', table[1], re.MULTILINE)}
    allowed |= {"sb3_per", "cloudpickle", "llvmlite"}  # SB3 and numba need the last two
    assert "torch" in allowed and "matplotlib" not in allowed
    todo, seen = ["sb3_per.public", "sb3_per.distributed.__init__"], set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            for module in loaded_by(name):
                package = module.partition(".")[0]
                assert package in allowed | sys.stdlib_module_names, f"{name} imports {module}"
                todo += [each for each in (module, f"{module}.__init__") if each in FILES]
    assert len(seen) > 60
