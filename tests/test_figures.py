"""Figures: the same files each time, and what tells bars and curves apart."""

from __future__ import annotations

import io
from itertools import product

import pytest
from matplotlib import pyplot as plt

from harness.report.cells import build_cells
from harness.report.figures import FORMATS, draw_acceptance, draw_training, save
from harness.report.inputs import ReportError
from tests.test_report import SETTINGS, cells, inputs, read  # noqa: F401  (fixtures)


def curves(methods, seeds, targets=("tiny",)):
    rows = [{"step": str(i), "loss": str(3 - i), "accept_walk": str(i)} for i in range(3)]
    return dict.fromkeys(product(targets, methods, seeds), rows)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def words(artist):
    return [text.get_text() for text in artist.get_texts()]


def test_figures_are_written_in_every_format_and_are_the_same_each_time(cells, tmp_path):  # noqa: F811
    for folder in (tmp_path / "one", tmp_path / "two"):
        save(draw_acceptance(cells), folder, "acceptance")
        save(draw_training(curves(["dflash"], [0])), folder, "training")
    for name, kind in product(("acceptance", "training"), FORMATS):
        one, two = ((tmp_path / f / f"{name}.{kind}").read_bytes() for f in ("one", "two"))
        assert len(one) > 1000 and (kind == "svg" or one == two)


def test_the_acceptance_legend_names_seeds_and_little_training_and_the_title_the_confidence(cells):  # noqa: F811
    axis = draw_acceptance(cells, confidence=0.9).axes[0]
    assert words(axis.get_legend()) == ["dflash\n2 seeds\nunder-trained", "dflow\n2 seeds"]
    assert "90 % interval" in axis.get_title()
    single = [cell | {"seeds": "1"} for cell in cells]
    assert words(draw_acceptance(single).axes[0].get_legend())[1] == "dflow\n1 seed: prompts only"


def test_a_figure_without_anything_to_draw_says_why(inputs):  # noqa: F811
    plain = [cell for cell in read(build_cells(inputs, SETTINGS)) if cell["method"] == "ar"]
    with pytest.raises(ReportError, match="holds only 'ar', which drafts nothing"):
        draw_acceptance(plain)
    with pytest.raises(ReportError, match="no learning curve"):
        draw_training({})


@pytest.mark.parametrize("methods", [["dflash", "dflow"], ["dflash", "dflow", "domino", "dflow_domino"]])
def test_no_two_curves_look_alike_and_no_curve_lies_under_the_legend(methods):
    figure = draw_training(curves(methods, (0, 1, 2)))
    looks = [(line.get_linestyle(), line.get_color(), line.get_marker()) for line in figure.axes[0].get_lines()]
    assert len(set(looks)) == len(looks) == 3 * len(methods)
    assert {look[0] for look in looks if look[2] == "o"} == {look[0] for look in looks if look[2] == "^"}
    (legend,) = figure.legends
    assert words(legend) == [*methods, "seed 0", "seed 1", "seed 2"]
    figure.savefig(io.BytesIO())  # places the legend
    box = legend.get_window_extent()
    assert not any(box.overlaps(axis.get_window_extent()) for axis in figure.axes)


def test_each_target_has_panels_of_its_own():
    figure = draw_training(curves(["dflash"], (0,), ("tiny", "large")))
    assert [axis.get_title().split("\n")[0] for axis in figure.axes] == ["tiny", "tiny", "large", "large"]
