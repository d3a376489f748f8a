"""
List the public names with their signatures, by the tiers of ``docs/compatibility.md``.

    python -m tests.helpers.public_api

writes them to ``tests/data/public_api.txt``.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import sb3_per
from sb3_per.buffers.settings import SETTING_NAMES, BufferSettings
from sb3_per.cli import compare, convert, doctor
from sb3_per.persistence.generations import FORMAT
from sb3_per.utils.origin import package_of
from sb3_per.zoo import commands
from tests.helpers.project import ROOT

PAGE = ROOT / "docs" / "compatibility.md"
FILE = ROOT / "tests" / "data" / "public_api.txt"

TIERS = ("Stable", "May change")

#: Modules all of whose names in ``__all__`` have a tier.
MODULES = ("sb3_per", "sb3_per.distributed", "sb3_per.integrations", "sb3_per.sbx", "sb3_per.zoo")


def rows_of(tier: str) -> list[tuple[list[str], list[str]]]:
    """Read the table of a tier: names, with the module of each, and the members that they have."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {tier}\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:3] for line in section.splitlines() if line.startswith("| `")]
    found = [[re.findall(r"`([\w.]+)`", cell) for cell in row] for row in rows]
    return [([name if "." in name else f"sb3_per.{name}" for name in names], members) for names, members in found]


def object_of(name: str) -> Any:
    """Import what a name stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def signature_of(function: Callable[..., Any], stock: inspect.Signature | None = None) -> str:
    """
    Write a signature with names and defaults, which do not depend on the version of Python.

    :param function: function or class
    :param stock: signature of the stock class; what it has, with the same default, is left out
    """
    parameters = list(inspect.signature(function).parameters.values())
    if stock is not None:
        known = stock.parameters
        parameters = [each for each in parameters if each.name not in known or known[each.name].default != each.default]
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters if each.name not in ("self", "cls")]
    # Arguments that are left out do not stand between the others.
    text = ", ".join([*(["..."] if stock is not None else []), *map(str, plain)])
    return f"({text})"


def line_of(name: str, thing: Any) -> str:
    """Write the line of a name."""
    if isinstance(thing, type) and issubclass(thing, Warning | Exception):
        return name
    if isinstance(thing, type):
        of_others = [base for base in thing.__mro__ if package_of(base) in ("stable_baselines3", "sb3_contrib", "sbx")]
        stock = of_others[0] if of_others else None
        return name + signature_of(thing, None if stock is None else inspect.signature(stock))
    return name + signature_of(thing) if callable(thing) else name


def member_line_of(name: str, cls: type, member: str) -> str:
    """Write the line of a member of a class."""
    fields = getattr(cls, "_fields", ())
    thing = inspect.getattr_static(cls, member, None)
    if thing is None and member not in fields:
        raise ValueError(f"{PAGE.name} names {member} beside {name}, which has no such member")
    if isinstance(thing, classmethod | staticmethod):
        thing = thing.__func__
    return f"{name}.{member}{signature_of(thing) if inspect.isfunction(thing) else ''}"


def lines_of_commands() -> Iterator[str]:
    """List the commands with the options of this package."""
    parsers = {command: commands.parser_of(command, command) for command in commands.COMMANDS}
    parsers.update({module.__name__.rpartition(".")[2]: module.parser_of("") for module in (compare, convert, doctor)})
    for command, parser in sorted(parsers.items()):
        options = sorted(
            "/".join(action.option_strings) or action.dest.upper() for action in parser._actions if action.dest != "help"
        )
        yield f"sb3-per {command} {' '.join(options)}"


def lines() -> list[str]:
    """List all that is public."""
    result = []
    for tier in TIERS:
        result += ["", f"# {tier}"]
        for names, members in rows_of(tier):
            for name in names:
                thing = object_of(name)
                result.append(line_of(name, thing))
                if isinstance(thing, type):
                    result += [member_line_of(name, thing, member) for member in members]
        if tier == "Stable":
            defaults = {field.name: f"={field.default!r}" for field in dataclasses.fields(BufferSettings)}
            result += [f"setting {name}{defaults.get(name, '')}" for name in sorted(SETTING_NAMES)]
            result += lines_of_commands()
            result.append(f"format of a .buffer directory: {FORMAT}")
    return result[1:]


def names() -> list[str]:
    """List all names that have a tier, as often as they have one."""
    return [name for tier in TIERS for row, _ in rows_of(tier) for name in row]


def exported() -> set[str]:
    """List the names that the package offers."""
    return {f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__}


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{FILE} has the public names of sb3_per {sb3_per.__version__}")
