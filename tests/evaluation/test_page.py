"""The page: everything in one file, everything escaped, every byte the same on every machine."""

import re
from html.parser import HTMLParser

import pytest
from attrs import evolve

from kri_core.evaluation.board import leaderboard
from kri_core.evaluation.page import to_html
from kri_core.evaluation.plots import Line, Mark, interval_plot, number, scale, ticks
from kri_core.evaluation.plots_kept import family
from kri_core.evaluation.verifying import read_all

EVIL = "A1R2K1(<script>alert(1)</script>)"


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def page_of(folder):
    return to_html(leaderboard(read_all([folder])))


def test_names_are_text_wherever_they_stand(results, made):
    """A stack and a model that are scripts: the page's own is the only one."""
    made.write(results, evolve(made.stack, stack=EVIL), made.right)
    found = leaderboard(read_all([results]))
    page = to_html(evolve(found, model='"><script>alert(2)</script>'))

    assert len([tag for tag, _ in Tags(page).found if tag == "script"]) == 1
    assert "alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page


def test_the_page_asks_nothing_of_the_network(results):
    page = page_of(results)

    assert not [attrs for _, attrs in Tags(page).found if {"src", "href"} & set(attrs)]
    assert not re.search("https?:|url\\(|@import|fetch", page)


def test_every_row_is_in_the_table_and_in_both_plots(results):
    """The stack's mean with its kept fraction, and its gap recovered, 0.525 / 0.625 = .84."""
    page = page_of(results)
    label = "A1R2K1(kri-d), generic probes"

    assert f'<tr data-row="{label}">' in page
    assert re.search(rf"<title>{re.escape(label)}: 0\.750 ± 0\.112 \[.*\], 20\.0% kept", page)
    assert re.search(rf"<title>{re.escape(label)}: 0\.84 \[", page)
    assert "<title>full attention: 0.850</title>" in page
    assert "<title>chance: 0.125</title>" in page


def test_placement_is_drawn_where_it_was_run(results, made):
    assert "Placement and content, per stack" not in page_of(results)
    made.write(results, evolve(made.stack, role="placement"), made.right)
    unpinned = evolve(made.random, stack="A0R0K4(random)", anchor=0, recent=0)
    made.write(results, unpinned, lambda n, _: n % 4 == 3)

    assert "generic probes: placement +0.500 ± " in page_of(results)


def test_a_number_edited_on_the_page_is_found(results, kri, tmp_path):
    path = tmp_path / "board.html"
    assert kri("eval", "leaderboard", results, "--out", path).code == 0
    assert kri("eval", "verify", results, path).code == 0
    path.write_text(path.read_text().replace("0.750 ±", "0.850 ±", 1))

    done = kri("eval", "verify", results, path)

    assert done.code == 4
    assert "the records give" in done.err


def test_a_coordinate_has_one_digit_and_no_negative_zero():
    assert [number(value) for value in (-0.04, 1.26, 3)] == ["0.0", "1.3", "3.0"]


def test_what_lies_beyond_an_axis_is_drawn_at_its_edge():
    across = scale(0, 1, 100, 200)

    assert [across(value) for value in (-1, 0, 0.5, 9)] == [100, 100, 150, 200]


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0, 1, (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)), (-0.5, 1.5, (-0.4, 1.4))],
)
def test_ticks_are_round(low, high, wanted):
    found = ticks(low, high)

    assert (found[0], found[-1]) == (wanted[0], wanted[-1])
    assert len(found) == 11 if len(wanted) > 2 else len(found) == 10


def test_an_interval_is_drawn_to_scale():
    """310 to 740 pixels are −1 to 1: 0 is at 525, ½ at 632.5."""
    mark = Mark(0.0, 0.5, 1.0, "c0", "circle", "said")
    picture = interval_plot("a plot", [Line("x", (mark,))], -1, 1, (0,))

    assert '<line x1="525.0" y1="32.0" x2="740.0" y2="32.0" class="whisker"/>' in picture
    assert '<circle cx="632.5" cy="32.0" r="3.5"/>' in picture


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("A1R2K13(kri-d)+xa25, generic probes", "A1R2(kri-d)+xa25, generic probes"),
        ("recency[budget=16]", "recency"),
        ("hybrid[anchor=4,recent=12]", "hybrid"),
    ],
)
def test_a_family_is_a_stack_without_its_budget(label, name):
    assert family(label) == name
