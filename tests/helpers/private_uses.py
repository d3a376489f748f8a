"""
Find what the package uses of other packages without being public, by reading its code.

    python -m tests.helpers.private_uses

brings the table of ``docs/developer_guide.md`` up to date: it writes the files of each name, adds a row for a new name, whose
other columns you fill in, and removes names that are no longer used.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.helpers.project import ROOT

PACKAGE = ROOT / "sb3_per"
PAGE = ROOT / "docs" / "developer_guide.md"

# One underscore and a letter. Names with two at both ends belong to Python.
_PRIVATE = re.compile(r"_[A-Za-z]\w*")

# Begin with an underscore, and are public or Python's own.
_NOT_MEANT = {"_asdict", "_field_defaults", "_fields", "_make", "_replace", "_abc_impl"}

# Have no underscore, and are in no documentation.
NOT_DOCUMENTED = frozenset(
    "stacked_obs sub_stacked_observations channels_first obs_rms ret_rms actor_state qf_state qf1_state qf2_state "
    "ent_coef_state reset_idx initial_qf_learning_rate inner_state create_struct_proxy __ray_ready__ get_dataset_path "
    "her_kwargs using_her_replay_buffer".split()
)

# Of RL Zoo, the package itself documents its names; those of its modules are not public.
_OF_ZOO = re.compile(r"rl_zoo3\.[\w.]+")

_HEAD = "| name | where | why | if it goes |\n|---|---|---|---|\n"

#: Files in which a name is used, by name. A name that is assigned anew ends in ``=``.
Uses = dict[str, set[str]]


def is_private(name: str) -> bool:
    """Say whether a name begins with one underscore, and is not public all the same."""
    return _PRIVATE.fullmatch(name) is not None and name not in _NOT_MEANT


def is_of_others(package: str) -> bool:
    """Say whether a package is neither this one nor Python's."""
    return package != "sb3_per" and package not in sys.stdlib_module_names and package != "__future__"


@cache
def members_of(cls: type) -> frozenset[str]:
    """List the names that a class defines: those of its body, and attributes of ``self`` that its methods set."""
    try:
        tree: ast.AST = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # it is compiled
        tree = ast.Module([], [])
    return frozenset(vars(cls)) | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_set(node)}


def is_set(attribute: ast.Attribute) -> bool:
    """Say whether an attribute is one of ``self`` that is assigned."""
    return isinstance(attribute.ctx, ast.Store) and ast.unparse(attribute.value) == "self"


def inherited(cls: type) -> set[str]:
    """List the private names that a class has from other packages."""
    parents = [base for base in cls.__mro__ if is_of_others(base.__module__.partition(".")[0])]
    return {name for base in parents for name in members_of(base) if is_private(name)}


@cache
def modules() -> dict[str, ast.Module]:
    """Parse all modules of the package, by file."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def classes_of(file: str, tree: ast.Module) -> dict[ast.ClassDef, type]:
    """Import a module, and find the classes that it defines outside of functions."""
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    name = ".".join(("sb3_per", *Path(file).with_suffix("").parts)).removesuffix(".__init__")
    return {node: getattr(importlib.import_module(name), node.name) for node in nodes}


def names_of(tree: ast.Module) -> Iterator[str]:
    """List the names that a module defines: functions, classes, variables, and attributes of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and is_set(node):
            yield node.attr


class Finder(ast.NodeVisitor):
    """
    Find the uses in one module.

    :param classes: classes of the module, by their nodes
    :param ours: private names that the package defines
    :param of_parents: private names of the classes of other packages that the package extends
    """

    def __init__(self, classes: dict[ast.ClassDef, type], ours: set[str], of_parents: set[str]):
        self.classes = classes
        self.ours = ours
        self.of_parents = of_parents
        self.found: set[str] = set()
        self.of_class: set[str] | None = None  # private names that the class around this node has from other packages
        self.imported: set[str] = set()  # names that come from other packages

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self.of_class
        if node in self.classes:
            self.of_class = inherited(self.classes[node])
            self.found |= vars(self.classes[node]).keys() & self.of_class
        self.generic_visit(node)
        self.of_class = outer

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_own = ast.unparse(node.value) in ("self", "cls", "super()") and self.of_class is not None
        foreign = self.of_class if is_own else self.of_parents
        if is_private(node.attr) and (node.attr in (foreign or set()) or node.attr not in self.ours):
            self.found.add(node.attr)
        if node.attr in NOT_DOCUMENTED:
            self.found.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # The name of an attribute, e.g. in a list or for getattr, or of a module.
        text = node.value if isinstance(node.value, str) else ""
        if (is_private(text) and text in self.of_parents) or text in NOT_DOCUMENTED or _OF_ZOO.fullmatch(text):
            self.found.add(text)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg in NOT_DOCUMENTED:
            self.found.add(node.arg)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._note_import(f"{node.module}.{alias.name}", alias.asname or alias.name)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note_import(alias.name, alias.asname or alias.name.partition(".")[0])

    def _note_import(self, origin: str, name: str) -> None:
        package, *parts = origin.split(".")
        if is_of_others(package):
            self.imported.add(name)
            is_of_zoo = package == "rl_zoo3" and len(parts) > 1
            if is_of_zoo or NOT_DOCUMENTED.intersection(parts) or any(map(is_private, parts)):
                self.found.add(origin)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Something of another package is replaced."""
        for target in node.targets:
            if isinstance(target, ast.Attribute | ast.Subscript) and ast.unparse(target.value) in self.imported:
                what = f".{target.attr}" if isinstance(target, ast.Attribute) else "[...]"
                self.found.add(f"{ast.unparse(target.value)}{what} =")
        self.generic_visit(node)


def uses_in(trees: dict[str, ast.Module]) -> Uses:
    """
    Find the uses in some modules.

    :param trees: modules of the package, by file
    """
    ours = {name for tree in modules().values() for name in names_of(tree) if is_private(name)}
    classes = {file: classes_of(file, tree) for file, tree in modules().items()}
    of_parents = {name for each in classes.values() for cls in each.values() for name in inherited(cls)}
    uses: Uses = defaultdict(set)
    for file, tree in trees.items():
        finder = Finder(classes.get(file, {}), ours, of_parents)
        finder.visit(tree)
        for name in finder.found:
            uses[name].add(file)
    return uses


def rows() -> list[list[str]]:
    """Read the table of the page: names, files, why, and what to do if it goes."""
    table = PAGE.read_text(encoding="utf-8").partition(_HEAD)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]


def names_in(row: list[str]) -> list[str]:
    """List the names of a row."""
    return re.findall(r"`([^`]+)`", row[0])


def renewed(table: list[list[str]], uses: Uses) -> list[list[str]]:
    """
    Bring the table up to date.

    :param table: rows
    :param uses: uses that were found
    :return: rows with the names that are used, and with their files; new names last
    """
    named = {name for row in table for name in names_in(row)}
    new = [[f"`{name}`", "", "", ""] for name in sorted(uses.keys() - named)]
    result = []
    for row in [*table, *new]:
        names = [name for name in names_in(row) if name in uses]
        if names:
            files = {file for name in names for file in uses[name]}
            result.append([", ".join(f"`{name}`" for name in names), listed(files), *row[2:]])
    return result


def listed(files: set[str]) -> str:
    """List files by folder, e.g. ``"sbx/{dqn,sac}.py"``."""
    by_folder = defaultdict(list)
    for file in sorted(files):
        folder, _, name = file.removesuffix(".py").partition("/")
        by_folder[folder].append(name)
    return ", ".join(
        f"{folder}/{names[0] if len(names) == 1 else '{' + ','.join(names) + '}'}.py" for folder, names in by_folder.items()
    )


def text_of(table: list[list[str]]) -> str:
    """Write rows as lines of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in table)


def main() -> None:
    """Renew the table in the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, head, after = page.partition(_HEAD)
    new = text_of(renewed(rows(), uses_in(modules())))
    rest = after.partition("\n\n")[2]
    PAGE.write_text(f"{before}{head}{new}\n\n{rest}", encoding="utf-8")


if __name__ == "__main__":
    main()
