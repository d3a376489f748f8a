"""Read options of the command line: errors in one line, and numbers of a range."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2, and name what was wrong."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


@contextlib.contextmanager
def missing_packages_in_one_line(prog: str) -> Iterator[None]:
    """
    Exit with one line instead of a traceback where a package is missing.

    :param prog: program name shown in the line
    :raises SystemExit: with status 1, for an error that names the command that installs the package
    """
    try:
        yield
    except Exception as error:  # Gymnasium's error about a missing package is no ImportError
        if "pip install" not in str(error):
            raise
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _number(read: Callable[[str], Any], what: str, takes: Callable[[Any], bool]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        with contextlib.suppress(ValueError, ArithmeticError):
            if takes(value := read(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return number


# Types of options, for `add_argument`.
count = _number(int, "an integer of at least 1", lambda value: value >= 1)
multiple = _number(int, "an integer of at least 2", lambda value: value >= 2)
share = _number(float, "a share above 0 and at most 1", lambda value: 0.0 < value <= 1.0)
factor = _number(lambda text: float(Fraction(text)), "a number above 0, e.g. 1/3", lambda value: value > 0.0)
