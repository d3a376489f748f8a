"""Run long campaigns. Each run becomes a row of a CSV file as soon as it ends, so that a stopped campaign continues."""

import csv
import io
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

# Name and arguments of a job.
Job = tuple[dict[str, Any], Sequence[Any]]


def read(path: Path) -> list[dict[str, str]]:
    """
    Read the rows of a file. A row that a full disk or a kill has cut, and one that was appended to it, are left out.

    :param path: path of a CSV file, which need not exist
    :return: its complete rows
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    rows = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    # Too many values stand under the name None, and missing ones are None.
    return [row for row in rows if None not in row and None not in row.values()]


def missing(path: Path, jobs: Iterable[Job]) -> list[Job]:
    """
    List the jobs that have not run.

    :param path: path of the CSV file
    :param jobs: name and arguments of each job; names are compared as strings
    :return: jobs that the file has no row for
    """
    rows = read(path)
    return [job for job in jobs if not any(all(row[key] == str(value) for key, value in job[0].items()) for row in rows)]


def processes(n: int) -> Executor:
    """
    Make a pool of processes. They are spawned: a process that has used PyTorch's threads must not be forked.

    :param n: number of processes
    :return: the pool
    """
    return ProcessPoolExecutor(n, mp_context=get_context("spawn"))


def run_missing(
    path: Path,
    jobs: Iterable[Job],
    function: Callable[..., dict[str, Any]],
    workers: int,
    deadline: float | None = None,
    show: Callable[[str], None] | None = None,
    make_pool: Callable[[int], Executor] = processes,
) -> int:
    """
    Run the jobs that the file has no row for. Append a row as soon as a job ends: its name, seconds and results.

    :param path: path of the CSV file; made, with its folder, if it does not exist
    :param jobs: as in :func:`missing`
    :param function: function that takes the arguments and returns the results, with the same columns for all jobs
    :param workers: number of workers of the pool, one job in each at a time
    :param deadline: in seconds since the epoch; no job begins later, and jobs under way go on to their end
    :param show: takes a line for each job that has ended; ``None``: print the number of runs that are there, then these lines
    :param make_pool: makes the pool of workers
    :return: number of jobs that ran
    :raises Exception: the error of a job. The file keeps its rows, jobs under way are stopped, and no other begins
    """
    jobs = list(jobs)
    lacking = missing(path, jobs)
    if show is None:
        print(f"{path}: {len(jobs) - len(lacking)} of {len(jobs)} runs are there", flush=True)
    if not lacking:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    start, n_done = time.time(), 0
    with make_pool(workers) as pool:
        futures = {pool.submit(_timed, function, arguments): name for name, arguments in lacking}
        try:
            for future in as_completed(futures):
                if future.cancelled():
                    continue
                n_done += 1
                row = {**futures[future], **future.result()}
                append(path, row)
                left = (time.time() - start) / n_done * (len(lacking) - n_done)
                values = ", ".join(str(value) for value in futures[future].values())
                (show or print)(f"{n_done}/{len(lacking)} {values}: {row['seconds']} s; {left / 60:.0f} min left")
                if deadline is not None and time.time() > deadline:
                    for each in futures:  # runs that have begun cannot be cancelled, and go on
                        each.cancel()
        except BaseException:
            # Otherwise the remaining jobs run and their results are lost.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise
    return n_done


def _timed(function: Callable[..., dict[str, Any]], arguments: Sequence[Any]) -> dict[str, Any]:
    start = time.perf_counter()
    results = function(*arguments)
    return {"seconds": round(time.perf_counter() - start, 1), **results}


def append(path: Path, row: dict[str, Any]) -> None:
    """
    Append a row to a CSV file, in place of what an earlier write has left of one. A new file begins with the column names.

    :param path: path of the file
    :param row: value of each column
    """
    path.touch()
    with path.open("r+b") as file:
        end = file.read().rfind(b"\n") + 1
        lines = io.StringIO()
        writer = csv.DictWriter(lines, list(row), lineterminator="\n")
        if end == 0:
            writer.writeheader()
        writer.writerow(row)
        file.seek(end)
        file.truncate()
        file.write(lines.getvalue().encode())
