"""After any operations on any kind of buffer, exactly the transitions that the definitions name can be drawn."""

import warnings
from pathlib import Path

import pytest

from tests.helpers.drawable import assert_as_recorded
from tests.helpers.game import KINDS, KINDS_TO_PLAY, Game

pytestmark = pytest.mark.filterwarnings("ignore")


def play_at_random(kind: str, folder: Path, seed: int, n_moves: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        game = Game(kind, folder, seed)
        rare = {"reset", "pos", "full"}
        names = sorted(game.moves)
        chances = [0.2 if name in rare else 4.0 if name == "add" else 1.0 for name in names]
        for name in game.rng.choice(names, size=n_moves, p=[chance / sum(chances) for chance in chances]):
            game.play(str(name))
            assert_as_recorded(game.buffer, game.record)


@pytest.mark.parametrize("kind", KINDS_TO_PLAY)
def test_exactly_what_the_definitions_name_can_be_drawn(kind, tmp_path):
    play_at_random(kind, tmp_path, 0, 80)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_long_random_sequences(kind, tmp_path):
    for seed in range(1, 13):
        play_at_random(kind, tmp_path / str(seed), seed, 400)
