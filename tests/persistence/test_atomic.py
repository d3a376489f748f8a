"""Several writers may save to one name at the same time, and a killed writer leaves nothing for long."""

import io
import itertools
import os
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sb3_per import PERSAC
from sb3_per.persistence import atomic
from sb3_per.persistence.atomic import write_file
from sb3_per.persistence.checkpoint_callback import BufferCheckpointCallback
from tests.helpers.saved import names_of

# It reads the module by its path, because the whole package takes seconds to import.
WRITER = f"""
import runpy, sys
from pathlib import Path

def write(file):
    file.write(b"half")
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()

runpy.run_path({str(Path(atomic.__file__))!r})["write_file"](Path(sys.argv[1]), write)
"""


def start_writer(path: Path) -> subprocess.Popen:
    """Start a process that has written half of a file. It finishes after a line on its stdin."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"half\n"
    return writer


def finish(writer: subprocess.Popen) -> int:
    writer.communicate(b"\n")
    return writer.returncode


def kill(writer: subprocess.Popen) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.communicate()


def write_zip(path: Path, seed: int) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("data", np.random.default_rng(seed).bytes(200_000))

    def write(file) -> None:
        for start in range(0, len(content.getvalue()), 10_000):
            file.write(content.getvalue()[start : start + 10_000])
            file.flush()

    write_file(path, write)


def test_two_threads_write_one_name_and_a_reader_sees_only_whole_files(tmp_path):
    path, is_over, n_written = tmp_path / "model.zip", threading.Event(), {1: 0, 2: 0}
    write_zip(path, 0)

    def write(seed: int) -> None:
        try:
            for i in itertools.count():
                write_zip(path, 1000 * seed + i)
                n_written[seed] += 1
                if is_over.is_set():
                    break
        finally:  # also after an error, which ends the others
            is_over.set()

    def read() -> None:
        """Read whole files while both writers write, until each has written many."""
        try:
            while min(n_written.values()) < 40 and not is_over.is_set():
                with zipfile.ZipFile(path) as archive:
                    assert archive.testzip() is None
        finally:
            is_over.set()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(read), *(pool.submit(write, seed) for seed in n_written)]:
            done.result()
    assert min(n_written.values()) >= 40
    assert names_of(tmp_path) == {"model.zip"}


def test_the_last_of_two_processes_to_finish_wins(tmp_path):
    path = tmp_path / "model.zip"
    writer = start_writer(path)
    write_file(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole"
    assert finish(writer) == 0
    assert path.read_bytes() == b"half"
    assert names_of(tmp_path) == {"model.zip"}


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    """Files that other processes still write stay, and so do files of other names."""
    (tmp_path / "model.backup.zip").write_bytes(b"mine")
    killed, alive, other = (start_writer(tmp_path / name) for name in ("model.zip", "model.zip", "model2.zip"))
    kill(killed)
    assert len(names_of(tmp_path)) == 4
    write_file(tmp_path / "model.zip", lambda file: file.write(b"whole"))
    assert len(names_of(tmp_path)) == 4  # model.zip in place of what the killed process left
    assert finish(alive) == finish(other) == 0
    assert names_of(tmp_path) == {"model.backup.zip", "model.zip", "model2.zip"}


def test_a_resumed_run_removes_what_its_killed_process_left(tmp_path):
    """Files of other runs in the folder stay, and the one that another process of the same prefix still writes."""
    others = {"run[1]_b_20_steps.zip.tmp", "run1_20_steps.zip.tmp", "run[1]_20_steps.zip", "run[1]_notes.tmp"}
    for name in ("run[1]_10_steps.zip.tmp", "run[1]_vecnormalize_20_steps.pkl.tmp", *others):
        (tmp_path / name).touch()
    killed, alive = (start_writer(tmp_path / f"run[1]_{steps}_steps.zip") for steps in (20, 30))
    kill(killed)
    model = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=10)
    BufferCheckpointCallback(10, str(tmp_path), name_prefix="run[1]").init_callback(model)
    assert finish(alive) == 0
    assert names_of(tmp_path) == {"run[1]_30_steps.zip", *others}


def test_the_permissions_of_a_file_follow_the_umask(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_file(tmp_path / "model.zip", lambda file: file.write(b"whole"))
    assert (tmp_path / "model.zip").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o660, 0o664, 0o666, 0o700, 0o755, 0o604, 0o2664])
def test_a_new_file_has_the_mode_of_the_one_that_it_replaces(mode, tmp_path):
    """As a file that is written into. So others can still read it, or still not."""
    path = tmp_path / "model.zip"
    before = os.umask(0o027)
    try:
        for _ in range(2):
            write_file(path, lambda file: file.write(b"whole"))
            os.chmod(path, mode)
        write_file(path, lambda file: file.write(b"again"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"again"


def test_a_new_file_has_the_group_of_the_one_that_it_replaces(tmp_path):
    path = tmp_path / "model.zip"
    path.write_bytes(b"old")
    others = [group for group in (*os.getgroups(), 12_345) if group != path.stat().st_gid]
    for group in others:
        try:
            os.chown(path, -1, group)
        except PermissionError:
            continue
        write_file(path, lambda file: file.write(b"new"))
        assert path.stat().st_gid == group


def test_a_file_without_the_right_to_write_is_not_replaced(tmp_path, monkeypatch):
    """A rename would need rights in the directory alone."""
    path = tmp_path / "best.zip"
    path.write_bytes(b"old")
    path.chmod(0o444)
    monkeypatch.setattr(atomic.os, "access", lambda path, mode: bool(Path(path).stat().st_mode & 0o222))  # root may always
    with pytest.raises(PermissionError, match=r"best\.zip"):
        write_file(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"old"
    assert names_of(tmp_path) == {"best.zip"}


def test_an_error_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "model.zip"
    write_file(path, lambda file: file.write(b"old"))
    with pytest.raises(ZeroDivisionError):
        write_file(path, lambda file: 1 / 0)
    assert path.read_bytes() == b"old"
    assert names_of(tmp_path) == {"model.zip"}
