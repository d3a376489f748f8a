"""
Count the functions and files of the package that one call passes: what a reader must follow to understand it. Comprehensions
and compiled kernels count as functions. A function counts once, however often it is called. The exit status is 1 if an aim is
missed.

    python benchmarks/calls.py                    # the table
    python benchmarks/calls.py --list sample      # the functions of one row, in the order of their first call
"""

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from targets import FIRST, target_of

import sb3_per
from sb3_per import PERSAC, PrioritizedReplayBuffer

PACKAGE = Path(sb3_per.__file__).parent


class Passed(NamedTuple):
    n_calls: int
    functions: list[CodeType]

    @property
    def files(self) -> list[str]:
        """Names of the files, in the order in which they are entered."""
        return list(dict.fromkeys(file_of(code) for code in self.functions))

    @property
    def n_of_algorithms(self) -> int:
        """Number of functions of the folder ``algorithms``."""
        return sum(file_of(code).startswith("algorithms/") for code in self.functions)


def file_of(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(PACKAGE))


def passed_by(call: Callable[[], Any]) -> Passed:
    """Run a call, and note the functions of the package that it passes."""
    called: list[CodeType] = []
    prefix = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            called.append(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Passed(len(called), list(dict.fromkeys(called)))


def rows() -> Iterator[tuple[str, Callable[[], Any]]]:
    """List what is counted. A call has been made before, so that nothing is made or compiled for the first time."""
    make = functools.partial(PERSAC, "MlpPolicy", "Pendulum-v1", buffer_size=1_000, learning_starts=20, batch_size=16, seed=0)
    model = make()
    model.learn(60)
    buffer = model.replay_buffer
    assert isinstance(buffer, PrioritizedReplayBuffer)
    obs = np.zeros((1, 3), np.float32)
    step = (obs, obs, np.zeros((1, 1), np.float32), np.zeros(1), np.zeros(1), [{}])
    td_errors = np.ones((16, 1))
    buffer.add(*step)
    ids = buffer.sample(16).indices
    buffer.update_priorities(ids, td_errors)

    yield "add", lambda: buffer.add(*step)
    yield "sample after an add", lambda: buffer.sample(16)  # the row before has added
    yield "update_priorities", lambda: buffer.update_priorities(ids, td_errors)
    buffer.add(*step)
    yield "PERSAC.train(1)", lambda: model.train(1)
    with tempfile.TemporaryDirectory() as folder:
        yield "save_replay_buffer", lambda: model.save_replay_buffer(f"{folder}/x.buffer")
        yield "construct", make
        yield "save", lambda: model.save(f"{folder}/model")
        yield "load", lambda: PERSAC.load(f"{folder}/model", env=model.get_env())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", default="", metavar="WORD", help="print the functions of the rows that contain this word")
    word = parser.parse_args().list
    counted = [(name, passed_by(call)) for name, call in rows()]
    is_missed = False
    print("| call | calls | functions | files | of `algorithms/` | aim | |\n|---|---|---|---|---|---|---|")
    for name, passed in counted:
        n_functions = len(passed.functions)
        n_files = len(passed.files)
        aim = result = ""
        if f"{name}, files" in FIRST["calls"]:
            most_functions, most_files = (target_of("calls", f"{name}, {what}") for what in ("functions", "files"))
            aim = f"{most_functions:g}, {most_files:g}"
            is_met = n_functions <= most_functions and n_files <= most_files
        elif f"{name}, algorithms" in FIRST["calls"]:
            most = target_of("calls", f"{name}, algorithms")
            aim = f"{most:g} of `algorithms/`"
            is_met = passed.n_of_algorithms <= most
        if aim:
            result = "met" if is_met else "**missed**"
            is_missed |= not is_met
        print(f"| `{name}` | {passed.n_calls} | {n_functions} | {n_files} | {passed.n_of_algorithms} | {aim} | {result} |")
    for name, passed in counted:
        if word and word in name:
            print(f"\n{name}:")
            for code in passed.functions:
                print(f"  {file_of(code)}:{code.co_firstlineno} {getattr(code, 'co_qualname', code.co_name)}")
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
