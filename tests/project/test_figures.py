"""The figures that README and documentation quote are filled in from files."""

import re

import pytest

from tests.helpers.project import benchmark

figures = benchmark("figures")


def test_every_figure_can_be_looked_up():
    for name, look_up in figures.FIGURES.items():
        assert look_up(), name


def test_pages_are_filled_and_no_figure_begins_a_line_of_a_paragraph():
    """Markdown takes a line that begins with a comment for a block of its own."""
    figures.main(["--check"])
    for path in figures.PAGES:
        for line in path.read_text().splitlines():
            assert re.fullmatch("(?!<!--figure).*|<!--figure [^>]*-->", line), (path.name, line)


def test_a_figure_is_replaced_by_that_of_its_file(monkeypatch):
    monkeypatch.setitem(figures.FIGURES, "mine", lambda: "7%")
    text = "takes <!--figure mine-->99% <!--/figure-->, and <!--figure mine--><!--/figure-->"
    expected = "takes <!--figure mine-->7%<!--/figure-->, and <!--figure mine-->7%<!--/figure-->"
    assert figures.filled(text) == figures.filled(expected) == expected
    with pytest.raises(KeyError, match="nothing"):
        figures.filled("<!--figure nothing-->1<!--/figure-->")


def test_a_cell_that_is_missing_raises_an_error():
    with pytest.raises(KeyError, match="no row 'nobody'"):
        figures.studied("chain-sizes", "nobody", "5 states")
