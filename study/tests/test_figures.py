"""Figures of the documentation can be read on white, on black and with colour blindness, and their files are small."""

from itertools import combinations

import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from sb3_per.utils.colours import MAGENTA, ORANGE
from study import campaign, figures, learning

BACKGROUNDS = ("#ffffff", "#131416")
COLORS = {look[0] for look in figures.LOOKS.values()}

# Machado et al. 2009, severity 1: how colours look to people without one of the three kinds of cones, in linear RGB.
SEEN_BY = {
    "all cones": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    rgb = np.array(matplotlib.colors.to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Compute the contrast ratio of WCAG 2."""
    dark, light = sorted((TO_XYZ @ linear(color))[1] for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(color: str, seen_by: str) -> np.ndarray:
    """Convert a colour to CIE L*a*b*."""
    x, y, z = np.cbrt(TO_XYZ @ np.clip(np.array(SEEN_BY[seen_by]) @ linear(color), 1e-6, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_text_and_colors_stand_out_from_the_background(background):
    assert contrast(figures.INK, background) > 4
    for color in COLORS:
        assert contrast(color, background) > 2.7, color


@pytest.mark.parametrize("background", ["#ffffff", "#000000"])
def test_text_has_the_contrast_that_wcag_requires(background):
    assert contrast(figures.INK, background) >= 4.5


@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_lines_differ_in_color_or_in_style(seen_by):
    """Different colours are more than ten times the just noticeable difference apart."""
    for one, other in combinations(figures.LOOKS.values(), 2):
        distance = np.linalg.norm(lab(one[0], seen_by) - lab(other[0], seen_by))
        if one[0] != other[0]:
            assert distance > 14, (one, other)
        else:
            assert one[1:] != other[1:] or one == other


def test_the_style_cycles_through_the_colors_of_the_looks():
    with matplotlib.style.context(figures.STYLE):
        style = dict(matplotlib.rcParams)
    cycle = [matplotlib.colors.to_hex(color) for color in style["axes.prop_cycle"].by_key()["color"]]
    assert cycle[0] == figures.LOOKS["defaults"][0]
    assert set(cycle) < COLORS


def test_looks_have_fixed_colors_for_roles_and_different_ones_for_the_rest():
    roles = {"PERDQN": "defaults", "PERDQN, LAP": "LAP", "another": "", "PERSAC": "defaults"}
    found = figures.looks(roles)
    assert [found[name]["color"] for name in roles][:2] == [ORANGE, MAGENTA]
    assert len({look["color"] for look in found.values()}) == 4


CURVES = [name for name, each in learning.CAMPAIGNS.items() if each.figure == "curves"]


@pytest.mark.parametrize("name", CURVES)
def test_learning_curves_can_be_told_apart_without_their_colors(name):
    """The lines of a figure differ in style or in marker."""
    arms = learning.CAMPAIGNS[name].arms
    found = figures.looks({arm: figures.role_of(arm) for arm in arms})
    assert len({(look["linestyle"], look["marker"]) for look in found.values()}) == len(arms)


def test_spare_lines_can_be_told_apart_without_their_colors():
    found = figures.looks({"stock DQN": "stock", "twin": "uniform", "a": "defaults", **{str(i): "" for i in range(5)}})
    assert len({(look["linestyle"], look["marker"]) for look in found.values()}) == 8


def test_learning_curves_have_markers(tmp_path, monkeypatch):
    """Markers stand at some evaluations of each line, and in the legend."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    estimates = {arm: np.arange(3 * 8.0).reshape(3, 8) for arm in ("DQN", "PERDQN", "PERDQN, LAP", "other")}
    figures.draw_curves({"task": estimates}, list(range(8)), "return", tmp_path / "x.png")
    (axes,) = drawn[0].axes
    assert len({line.get_marker() for line in axes.lines}) == 4
    for line in axes.lines:
        first, every = line.get_markevery()
        assert first < every < 8 / 2


def test_published_figures_are_small_wide_and_transparent():
    """A page is 700 pixels wide, so figures of 1,400 pixels are sharp on screens of double density."""
    paths = list((campaign.ROOT / "results").glob("*.png"))
    assert len(paths) > 10
    for path in paths:
        image = matplotlib.image.imread(path)
        assert image.shape[1:] == (1400, 4), path
        assert image[0, 0, 3] == 0, path
        assert path.stat().st_size < 150_000, path
