"""
Print versions and facts of the machine, and test the installation. Begin a bug report with its output::

    sb3-per doctor

The self-test takes about ten seconds, compilation included. Only numba's cache changes.
"""

import warnings
from collections.abc import Sequence

from sb3_per.utils.arguments import Parser


def main(arguments: Sequence[str] | None = None, prog: str = "sb3-per doctor") -> int:
    """
    Print the facts and run the checks.

    :param arguments: arguments of the command line; ``None``: those of the process
    :param prog: program name shown in usage and errors
    :return: exit status: 0 if all checks pass, else 1
    """
    parser = Parser(prog, description="Print versions, cache and threads, and test the installation")
    parser.add_argument("--no-test", action="store_true", help="print the facts only")
    options = parser.parse_args(arguments)
    import torch as th  # after --help, which needs no PyTorch

    from sb3_per.cli.checks import CHECKS, facts

    for name, fact in facts().items():
        print(f"{name:18} {fact}")
    if options.no_test:
        return 0
    failed = []
    th.set_num_threads(1)  # on busy cores, threads that wait for each other can take a hundred times as long
    for name, check in CHECKS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                outcome = check()
        except Exception as error:  # any failure belongs into the report
            failed.append(name)
            outcome = f"FAILED: {type(error).__name__}: {error}"
        print(f"{'check ' + name:18} {outcome}", flush=True)
    print(f"{len(failed)} of {len(CHECKS)} checks failed: {', '.join(failed)}" if failed else "All checks passed")
    return int(bool(failed))
