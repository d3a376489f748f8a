"""
A ``KeyboardInterrupt`` at any place of any operation loses no transition: afterwards exactly the transitions that the
definitions name can be drawn, or the operation has not happened.
"""

import functools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_per import PrioritizedReplayBuffer
from sb3_per.buffers.slots import read_slots
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from tests.helpers.buffers import fill, make_buffer
from tests.helpers.drawable import agrees, assert_as_recorded
from tests.helpers.game import KINDS, KINDS_TO_PLAY, Game
from tests.helpers.interrupts import interrupted
from tests.helpers.saved import Player, make

pytestmark = pytest.mark.filterwarnings("ignore")

# What has happened before the interrupt: numbers of steps that the tree knows, and of steps that it does not know yet.
PASTS = {"never drawn": (0, 6), "drawn": (5, 2), "full": (13, 3), "full, all known": (13, 0)}


def games(kind: str, folder: Path, past: str) -> Iterator[Game]:
    """Make equal games, as often as asked."""
    n_known, n_new = PASTS[past]
    number = 0
    while True:
        game = Game(kind, folder / str(number), zlib.crc32(past.encode()))
        if n_known > 0:
            game.play_on(n_known)
        for _ in range(n_new):
            game.play("add")
        number += 1
        yield game


def assert_safe(kind: str, past: str, name: str, folder: Path, n_places: int | None) -> None:
    """
    Interrupt an operation at one place after the other.

    :param n_places: of how many places, drawn at random; ``None``: all
    """
    made = games(kind, folder, past)
    n = interrupted(next(made).moves[name]().call)
    places = np.arange(n)
    if n_places is not None and n_places < n:
        places = np.random.default_rng(n).choice(n, n_places, replace=False)
    for place in places.tolist():
        game = next(made)
        call, records = game.moves[name]()
        # A save and a pickle take a few steps more or less from run to run, so they may end before the place.
        assert interrupted(call, place) > place or name in ("copy", "save_and_load", "convert")
        possible = [record for record in (game.record, *records) if agrees(game.buffer, record)]
        assert possible, f"interrupted at place {place}"
        game.record = possible[-1]
        assert_as_recorded(game.buffer, game.record)
        game.play(name)
        assert_as_recorded(game.buffer, game.record)
        game.play_on(game.buffer.buffer_size + 2)
        assert_as_recorded(game.buffer, game.record)


def moves_of(kind: str, folder: Path) -> list[str]:
    return sorted(Game(kind, folder).moves)


@pytest.mark.parametrize("kind", KINDS_TO_PLAY)
def test_an_interrupt_loses_nothing(kind, tmp_path):
    """At one place of each operation, drawn at random."""
    pasts = list(PASTS)
    for i, name in enumerate(moves_of(kind, tmp_path)):
        assert_safe(kind, pasts[i % len(pasts)], name, tmp_path / name, 1)


def test_an_interrupt_at_any_place_of_add_loses_nothing(tmp_path):
    """A row is counted twice, by the sampler and by the ring: a place drawn at random is seldom the one in between."""
    assert_safe("plain", "drawn", "add", tmp_path, None)


@pytest.mark.slow
@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_many_places_loses_nothing(kind, past, tmp_path):
    for name in moves_of(kind, tmp_path):
        assert_safe(kind, past, name, tmp_path / name, 20)


def _filled() -> PrioritizedReplayBuffer:
    buffer = make_buffer(10)
    fill([buffer], 6)
    return buffer


def test_an_interrupt_in_the_first_draw_does_not_empty_the_buffer():
    n = interrupted(functools.partial(_filled().sample, 4))
    assert n > 20
    for place in range(n):
        buffer = _filled()
        interrupted(functools.partial(buffer.sample, 4), place)
        assert set(buffer.sample(60).indices.tolist()) == set(range(6))


@pytest.mark.parametrize("kind", ["her", "sequences", "demonstrations in frames"])
def test_an_interrupted_load_leaves_the_buffer_as_it_was(kind, tmp_path):
    saved = Game(kind, tmp_path / "saved", 1)
    saved.play_on(11)
    save_buffer(saved.buffer, tmp_path / "x.buffer")
    n = interrupted(functools.partial(load_buffer, Game(kind, tmp_path / "new").buffer, tmp_path / "x.buffer"))
    for place in np.random.default_rng(0).choice(n, 4, replace=False).tolist():
        game = Game(kind, tmp_path / str(place), 2)
        game.play_on(5)
        interrupted(functools.partial(load_buffer, game.buffer, tmp_path / "x.buffer"), place)
        assert agrees(game.buffer, game.record) or agrees(game.buffer, saved.record)


def test_frames_stay_exact_after_interrupts():
    """The steps that were counted come out as they came in, whatever was half written before."""
    framed, plain = (make("frames", 7, 1, frames=frames) for frames in (dict.fromkeys(("image", "a/../b"), 3), None))
    player = Player(framed, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        newest = framed.transition_ids.max()
        obs, player.obs = player.obs, player.observation(player.obs)
        arguments = (obs, player.obs, rng.uniform(-1, 1, (1, 2)), rng.normal(size=1), np.zeros(1), [{}])
        interrupted(functools.partial(framed.add, *arguments), int(rng.integers(40)))
        if framed.transition_ids.max() == newest:
            continue
        plain.add(*arguments)
        slots = np.sort(plain.transition_ids.ravel())[::-1][: min(plain.size(), 6)] % 7
        for name in ("observations", "next_observations"):
            actual, expected = (read_slots(getattr(buffer, name), slots) for buffer in (framed, plain))
            for key in expected:
                np.testing.assert_array_equal(actual[key], expected[key])


def test_transitions_after_an_interrupt_do_not_have_the_masses_of_those_that_they_overwrote(monkeypatch):
    buffer = make_buffer(4, alpha=1.0)
    fill([buffer], 4)
    buffer.sample(2)
    buffer.update_priorities(np.arange(4), np.full(4, 0.01))

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    fill([buffer], 2)
    with monkeypatch.context() as patched:
        patched.setattr(buffer.priority_sampler, "insert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            buffer.sample(2)
    assert buffer.transition_ids.ravel().tolist() == [4, 5, 2, 3]
    np.testing.assert_allclose(buffer.masses.ravel(), [1.0, 1.0, 0.010001, 0.010001])


def test_new_transitions_have_the_largest_mass_after_an_interrupted_update(monkeypatch):
    buffer = make_buffer(6, alpha=1.0)
    fill([buffer], 4)
    buffer.sample(2)
    write = buffer.priority_sampler.tree.write

    def write_and_interrupt(slots: np.ndarray, values: np.ndarray) -> None:
        write(slots, values)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(buffer.priority_sampler.tree, "write", write_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            buffer.update_priorities([0], [100.0])
    fill([buffer], 1)
    assert buffer.masses[4, 0] == buffer.masses.max() > 100.0
