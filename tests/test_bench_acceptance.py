"""Scripted acceptance: distributions are what they are said to be, and scripts are drawn from them."""

import json

import pytest
import torch

from harness.bench.acceptance import geometric, given, read_acceptance, recorded


def records(path, *rounds, method="dflow"):
    path.write_text("".join(json.dumps({"method": method, "accepted": list(accepted)}) + "\n" for accepted in rounds))
    return path


@pytest.mark.parametrize("mean", [0, 0.5, 3.5, 7, 14.9, 15])
def test_the_truncated_geometric_law_has_its_mean_and_one_chance_for_every_proposal(mean):
    law = geometric(mean, 15)
    assert law.mean == pytest.approx(mean, abs=1e-6) and sum(law.chances) == pytest.approx(1)
    reached = [sum(law.chances[k:]) for k in range(16)]
    if 0 < mean < 15:  # the chance of one more, given all before it, is the same everywhere, the last one included
        again = [after / before for before, after in zip(reached, reached[1:], strict=False)]
        assert again == pytest.approx([again[0]] * 15)


def test_recorded_rounds_are_counted_over_all_records(tmp_path):
    law = recorded(records(tmp_path / "word.jsonl", [0, 2, 2], [3], []), 5)
    assert law.chances == (0.25, 0, 0.5, 0.25, 0, 0) and law.mean == 1.75
    assert law.said == f"scripted acceptance: recorded in {tmp_path.name}/word.jsonl, 4 rounds, mean 1.75 of 5"


def test_given_chances_are_filled_up_and_rounded_to_a_sum_of_one():
    law = given([0.333, 0.333, 0.333], 4)
    assert law.chances == pytest.approx((1 / 3, 1 / 3, 1 / 3, 0, 0)) and sum(law.chances) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("text", "mean", "kind"), [("2.5", 2.5, "geometric"), ("0.25,0,0.75", 1.5, "given")])
def test_one_number_is_a_mean_and_several_are_chances(text, mean, kind):
    law = read_acceptance(text, 5)
    assert law.mean == pytest.approx(mean) and law.said.startswith(f"scripted acceptance: {kind}")


def test_a_script_is_drawn_from_its_law_and_is_the_same_for_the_same_seed():
    law = given([0.5, 0.2, 0.0, 0.3], 5)
    script = law.script(5000, 4, seed=1)
    assert script.shape == (5000, 4) and script.dtype == torch.int64
    shares = torch.bincount(script.flatten(), minlength=6) / script.numel()
    assert torch.allclose(shares.double(), torch.tensor(law.chances, dtype=torch.float64), atol=0.02)
    assert shares[2] == shares[4] == shares[5] == 0
    assert torch.equal(script, law.script(5000, 4, seed=1)) and not torch.equal(script, law.script(5000, 4, seed=2))
    assert not torch.equal(script[:, 0], script[:, 1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty distribution; name at least"),
        (",", "empty distribution"),
        ("15.5", r"mean of 15.5; a round makes 15 proposals here, so take 0 to 15"),
        ("-1", "mean of -1.*take 0 to 15"),
        ("nan", "mean of nan.*take 0 to 15"),
        ("0.5,0.4", "sum 0.9; they must sum to 1"),
        ("1.5,-0.5", "chance of -0.5; chances are numbers from 0 to 1"),
        (",".join(["0.05"] * 20), "20 chances, for 0 to 19 accepted.*15 proposals here; give 16 at most"),
        ("word", "'word'.*a .jsonl of the pipeline, chances such as"),
    ],
)
def test_what_is_no_distribution_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read_acceptance(text, 15)


def test_records_that_say_nothing_of_such_rounds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="empty.jsonl: 0 records without a round; give records of a drafter"):
        read_acceptance(str(records(tmp_path / "empty.jsonl")), 5)
    with pytest.raises(ValueError, match="records of ar, which proposes nothing"):
        read_acceptance(str(records(tmp_path / "ar.jsonl", [0, 0], method="ar")), 5)
    with pytest.raises(ValueError, match="accepted 9 proposals, and one makes 5 here"):
        read_acceptance(str(records(tmp_path / "long.jsonl", [9])), 5)
    with pytest.raises(FileNotFoundError, match="nowhere.jsonl"):
        read_acceptance(str(tmp_path / "nowhere.jsonl"), 5)
