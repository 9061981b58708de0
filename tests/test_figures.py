"""Figures: the same files each time, what tells bars and curves apart, and that nothing lies on anything else."""

from __future__ import annotations

import io
from itertools import combinations, product

import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection

from harness.report.cells import build_cells
from harness.report.columns import COMPARED, POSITIONS
from harness.report.figures_acceptance import draw_acceptance
from harness.report.figures_dose import draw_dose, spread
from harness.report.figures_position import draw_position
from harness.report.figures_style import FORMATS, bar, save, stroke
from harness.report.figures_training import draw_training
from harness.report.inputs import ReportError
from tests.test_report import SETTINGS, cells, inputs, read  # noqa: F401  (fixtures)

FIVE = ["dflash", "dflow", "domino", "dflow_domino", "dflash_rounds"]
RESCUE = {"pocket_algebra": 0.08, "pocket_word": 0.15, "pocket_chat": 0.25, "pocket_synth": 0.26, "all_of_it": 0.28}


def curves(methods, seeds, targets=("tiny",)):
    rows = [{"step": str(i), "loss": str(3 - i), "accept_walk": str(i)} for i in range(3)]
    return dict.fromkeys(product(targets, methods, seeds), rows)


def positions(entrants, temperatures=("0", "1"), targets=("tiny",), suites=("a", "all")):
    rows = []
    for target, entrant, temperature, suite, m in product(targets, entrants, temperatures, suites, range(1, 16)):
        row = dict.fromkeys(POSITIONS, "") | {"target": target, "entrant": entrant, "temperature": temperature}
        share = (0.5 + 0.05 * entrants.index(entrant)) ** m if suite == "all" else 0.9
        row |= {"suite": suite, "position": str(m), "accepted_prefix": str(share)}
        rows.append(row | {"stale_right_share": "0.8" if m < 15 else "", "rescue_share": "0.2" if m < 15 else ""})
    return rows


def compared(firsts, temperatures=("0", "1"), second="dflash", seeds="3", flags=""):
    rows = []
    for temperature, first, (suite, rescue) in product(temperatures, firsts, RESCUE.items()):
        gain = rescue * (1 + firsts.index(first))
        row = dict.fromkeys(COMPARED, "") | {"target": "tiny", "temperature": temperature, "first": first}
        row |= {"second": second, "suite": suite, "seeds": seeds, "rescue_1_4": str(rescue), "flags": flags}
        rows.append(row | {"gain": str(gain), "gain_low": str(gain - 0.05), "gain_high": str(gain + 0.1)})
        rows.append(rows[-1] | {"suite": "avg"})
    return rows


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def words(artist):
    return [text.get_text() for text in artist.get_texts()]


def placed(figure):
    """The figure with everything where it will be."""
    figure.savefig(io.BytesIO())
    return figure


def panels(figure):
    return [axis for axis in figure.axes if axis.axison]


def overlapping(boxes):
    return [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


def test_figures_are_written_in_every_format_and_are_the_same_each_time(cells, tmp_path):  # noqa: F811
    drawn = {
        "acceptance": lambda: draw_acceptance(cells),
        "training": lambda: draw_training(curves(["dflash"], [0])),
        "position": lambda: draw_position(positions(["dflash"], temperatures=("0",)), ["dflash"]),
        "dose": lambda: draw_dose(compared(["dflow"], temperatures=("0",))),
    }
    for folder, (name, draw) in product((tmp_path / "one", tmp_path / "two"), drawn.items()):
        save(draw(), folder, name)
    for name, kind in product(drawn, FORMATS):
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
    for rows in ([], positions(["dflow"], suites=("a",))):
        with pytest.raises(ReportError, match="no row of dflash, dflow over all suites"):
            draw_position(rows, ["dflash", "dflow"])
    for rows in ([], compared(["dflow"], second="off"), [row | {"rescue_1_4": ""} for row in compared(["dflow"])]):
        with pytest.raises(ReportError, match="no gain over 'dflash' with a rescue rate"):
            draw_dose(rows)


def test_no_two_of_many_methods_look_alike():
    for look in (bar, stroke):
        looks = [tuple(sorted(look(index).items(), key=str)) for index in range(36)]
        assert len(set(map(str, looks))) == 36


def test_bars_of_five_methods_stand_side_by_side(cells):  # noqa: F811
    many = [cell | {"method": name} for name in FIVE for cell in cells if cell["method"] == "dflow"]
    figure = placed(draw_acceptance(many))
    boxes = [patch.get_window_extent().shrunk(0.98, 0.98) for patch in figure.axes[0].patches]
    assert len(boxes) == 5 * 3 and overlapping(boxes) == []
    assert not figure.axes[0].get_legend().get_window_extent().overlaps(figure.axes[0].get_window_extent())


@pytest.mark.parametrize("methods", [FIVE[:2], FIVE])
def test_no_two_curves_look_alike_and_no_curve_lies_under_the_legend(methods):
    figure = placed(draw_training(curves(methods, (0, 1, 2))))
    looks = [(line.get_linestyle(), line.get_color(), line.get_marker()) for line in figure.axes[0].get_lines()]
    assert len(set(looks)) == len(looks) == 3 * len(methods)
    assert {look[:2] for look in looks if look[2] == "o"} == {look[:2] for look in looks if look[2] == "^"}
    (legend,) = [axis.get_legend() for axis in figure.axes if axis.get_legend()]
    assert words(legend) == [*methods, "seed 0", "seed 1", "seed 2"]
    box = legend.get_window_extent()
    assert not any(box.overlaps(axis.get_window_extent()) for axis in panels(figure))


def test_each_target_has_panels_of_its_own():
    figure = draw_training(curves(["dflash"], (0,), ("tiny", "large")))
    assert [axis.get_title().split("\n")[0] for axis in panels(figure)] == ["tiny", "tiny", "large", "large"]


def test_curves_of_ablations_stand_below_those_of_methods():
    figure = draw_training(curves([*FIVE, "dflow_k1"], (0, 1)), methods=FIVE[:4])
    titles = [axis.get_title().split("\n")[0] for axis in panels(figure)]
    assert titles == ["methods", "methods", "ablations", "ablations"]
    assert [len(axis.get_lines()) for axis in panels(figure)] == [8, 8, 4, 4]
    legends = [axis.get_legend() for axis in figure.axes if axis.get_legend()]
    assert [words(legend)[:-2] for legend in legends] == [FIVE[:4], ["dflash_rounds", "dflow_k1"]]


def test_acceptance_by_position_has_a_curve_per_method_over_all_suites():
    figure = placed(draw_position(positions([*FIVE, "dflow_off"]), ["ar", *FIVE]))
    cold, warm, knew = figure.axes
    assert [axis.get_title() for axis in (cold, warm)] == ["tiny, T = 0", "tiny, T = 1"]
    for axis in (cold, warm):
        found = {tuple(line.get_ydata()[:2].round(4)) for line in axis.get_lines()}
        assert found == {(round(x, 4), round(x * x, 4)) for x in (0.5, 0.55, 0.6, 0.65, 0.7)}
        assert len({(line.get_linestyle(), line.get_color()) for line in axis.get_lines()}) == 5
    assert [len(line.get_xdata()) for line in knew.get_lines()] == [14] * 4  # the last position has no value
    assert {line.get_ydata()[0] for line in knew.get_lines()} == {0.2, 0.8}
    (legend,) = figure.legends
    assert words(legend)[:5] == FIVE and words(legend)[5] == "rejected row right, T = 0"
    assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)
    assert overlapping([text.get_window_extent() for text in (axis.title for axis in figure.axes)]) == []
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)


def test_positions_without_the_baseline_still_have_their_curves():
    figure = draw_position(positions(["dflow"], temperatures=("0",)), ["dflow"])
    assert [len(axis.get_lines()) for axis in figure.axes] == [1] and words(figure.legends[0]) == ["dflow"]


def test_a_dose_is_drawn_at_its_rescue_rate_with_its_interval():
    figure = draw_dose(compared(["dflow"]) + compared(["domino"], second="dflow"), confidence=0.9)
    assert [axis.get_title() for axis in figure.axes] == [
        "tiny, T = 0 (bars: 90 % interval)",
        "tiny, T = 1 (bars: 90 % interval)",
    ]
    (container,) = figure.axes[0].containers
    data = container.lines[0]
    assert list(data.get_xdata()) == pytest.approx([8, 15, 25, 26, 28]) == list(data.get_ydata())  # no average
    (bars,) = [part for part in container.lines[2] if isinstance(part, LineCollection)]
    assert [list(segment[:, 1]) for segment in bars.get_segments()][0] == pytest.approx([3, 18])


def test_entrants_of_a_suite_stand_side_by_side_and_suites_do_not_mix():
    figure = placed(draw_dose(compared(FIVE[1:])))
    axis = figure.axes[0]
    places = [container.lines[0].get_xdata() for container in axis.containers]
    assert len(places) == 4
    for before, behind in zip(range(4), range(1, 5), strict=False):
        assert max(x[before] for x in places) < min(x[behind] for x in places)
    assert [sum(x[at] for x in places) / 4 for at in range(5)] == pytest.approx([8, 15, 25, 26, 28])
    lines = [container.lines[0] for container in axis.containers]
    assert len({(line.get_linestyle(), line.get_color(), line.get_marker()) for line in lines}) == 4
    assert not axis.get_legend().get_window_extent().overlaps(axis.get_window_extent())


def test_every_suite_is_named_once_and_no_name_lies_on_the_title():
    axis = placed(draw_dose(compared(FIVE[1:]))).axes[0]
    assert sorted(text.get_text() for text in axis.texts) == sorted(RESCUE)
    title = axis.title.get_window_extent()
    assert not any(text.get_window_extent().overlaps(title) for text in axis.texts)


def test_the_dose_legend_names_one_seed_and_little_training():
    rows = compared(["dflow"], seeds="1", flags="dflash under-trained: x") + compared(
        ["domino"], flags="domino under-trained: x; dflash under-trained: x"
    )
    assert words(draw_dose(rows).axes[0].get_legend()) == [
        "dflow\n1 seed: prompts only",
        "domino\n3 seeds\nunder-trained",
    ]


def test_a_single_suite_without_intervals_can_be_drawn():
    one = [row | {"gain_low": "", "gain_high": ""} for row in compared(["dflow"]) if row["suite"] == "pocket_word"]
    assert placed(draw_dose(one)).axes


def test_names_are_spread_no_further_than_they_must_be():
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
    found = spread([0.1, 0.5, 0.55, 0.6, 0.9], 0.1)
    assert found == pytest.approx([0.1, 0.45, 0.55, 0.65, 0.9])
    close = spread([0.50, 0.51, 0.52, 0.53, 0.6], 0.05)
    assert all(b - a >= 0.05 - 1e-9 for a, b in zip(close, close[1:], strict=False))
