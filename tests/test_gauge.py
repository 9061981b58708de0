"""Gauges on hand-made traces: every count can be checked by eye."""

import json
import math

import pytest

from harness.gauge import POSITION_COUNTS, POSITION_RATES, by_position, gauge, knowledge, main, rates, tally


def record(**changes):
    """K = 3.  Output 10..17; round 1 at index 0, round 2 at index 2.

    Round 1 proposes 11, 99, 98: one accepted, so the next anchor is 12 (index 2).  Its rows 2 and 3 are stale: their
    argmax 13 (right, committed at index 3) and 77 (wrong, 14 is committed).
    Round 2 proposes 55 (wrong; the stale row knew), 14 (right), 15 (right): none accepted.
    """
    base = {
        "prompt_id": "p",
        "suite": "s",
        "target": "t",
        "method": "dflash",
        "temperature": 0.0,
        "output_ids": [10, 11, 12, 13, 14, 15, 16, 17],
        "accepted": [1, 0],
        "committed": [2, 1],
        "trace": {
            "proposals": [[11, 99, 98], [55, 14, 15]],
            "argmax": [[11, 12, 13, 77], [13, 70, 71, 72]],
        },
    }
    return base | changes


def test_counts_of_a_hand_made_record():
    counts = tally(record())
    assert counts["rounds"] == 2 and counts["committed"] == 3 and counts.get("full", 0) == 0
    assert counts["relays"] == 1 and counts["live"] == 2  # only round 2 begins with states: masks 1 and 2
    assert counts["relayed"] == 2 and counts["stale_right"] == 1
    assert counts["rescued"] == 1 and counts["draft_wrong"] == 1


def test_oracle_takes_the_leading_run_of_either():
    # Round 1: plain run 1, no state, 2 tokens.  Round 2: stale, draft, draft are right: run 3, 4 tokens.
    assert tally(record())["oracle_committed"] == 2 + 4
    result = knowledge([record()])
    assert result["tau"] == 1.5 and result["oracle_tau"] == 3.0 and result["oracle_gain"] == 1.0
    assert result["rescue"] == 0.5 and result["rescue_given_wrong"] == 1.0 and result["stale_right"] == 0.5


def test_without_stale_states_the_oracle_equals_the_drafter():
    trace = {"proposals": [[11, 12, 13], [15, 16, 9]], "argmax": [[11, 12, 13, 14], [15, 16, 17, 1]]}
    result = knowledge([record(accepted=[3, 2], committed=[4, 3], trace=trace)])
    assert result["tau"] == result["oracle_tau"] == 3.5
    assert result["relay_rounds"] == 0 and result["full_acceptance"] == 0.5 and math.isnan(result["rescue"])


def test_masks_past_the_end_of_the_output_are_not_counted():
    full, short = tally(record()), tally(record(output_ids=[10, 11, 12, 13]))
    assert full["relayed"] == 2 and short["relayed"] == 1
    assert short["oracle_committed"] == 2 + 1  # one token is left, so one is all an oracle can commit


def test_oracle_never_commits_less_than_the_drafter():
    wrong = {"proposals": [[11, 99, 98], [13, 14, 15]], "argmax": [[11, 12, 1, 2], [13, 14, 15, 16]]}
    result = knowledge([record(accepted=[1, 3], committed=[2, 4], trace=wrong)])
    assert result["oracle_tau"] == result["tau"] == 3.0 and result["stale_right"] == 0


def test_only_masks_one_to_four_are_near():
    output = list(range(10, 30))
    trace = {
        "proposals": [[0] * 6, [0] * 6],
        "argmax": [[11, 12, 13, 14, 15, 16, 17], [12, 0, 0, 0, 0, 0, 0]],
    }
    result = tally(record(output_ids=output, accepted=[0, 0], committed=[1, 1], trace=trace))
    assert result["relayed"] == 6 and result["relayed_near"] == 4
    assert result["rescued"] == 6 and result["rescued_near"] == 4


def test_knowledge_adds_counts_and_never_averages_averages():
    other = record(accepted=[0], committed=[1], trace={"proposals": [[0, 0, 0]], "argmax": [[11, 0, 0, 0]]})
    both = knowledge([record(), other])
    assert both["tau"] == pytest.approx((3 + 1) / 3)
    assert both == rates(tally(record()) + tally(other)) | {"oracle_gain": both["oracle_gain"]}


def counted(rows):
    """Counts by position, zeros left out."""
    return [{name: row[name] for name in POSITION_COUNTS if row[name]} for row in rows]


def test_counts_by_position_of_a_hand_made_record():
    # Round 1 is bare; its first proposal is right, so masks 1 and 2 decide.  In round 2 masks 1 and 2 are relayed and
    # the first decides, wrongly, though the rejected row knew; 14 and 15 are right but come too late.
    rows = by_position([record()])
    assert [row["position"] for row in rows] == [1, 2, 3]
    assert counted(rows) == [
        {"rounds": 2, "accepted": 1, "bare": 1, "bare_draft_right": 1, "bare_tried": 1, "bare_accepted": 1}
        | {"relayed": 1, "relayed_tried": 1, "stale_right": 1, "rescued": 1},
        {"rounds": 2, "bare": 1, "bare_tried": 1, "relayed": 1, "relayed_draft_right": 1},
        {"rounds": 2, "bare": 2, "bare_draft_right": 1},
    ]
    assert rows[0]["accepted_prefix"] == 0.5 and rows[0]["rescue_share"] == 1.0
    assert rows[0]["relayed_acceptance"] == 0.0 and rows[0]["bare_acceptance"] == 1.0
    assert rows[1]["relayed_draft_right_share"] == 1.0 and rows[2]["bare_draft_right_share"] == 0.5
    assert math.isnan(rows[1]["relayed_acceptance"]) and math.isnan(rows[2]["stale_right_share"])


def test_masks_after_full_acceptance_are_bare_and_those_past_the_end_are_nowhere():
    trace = {"proposals": [[11, 12, 13], [15, 16, 17]], "argmax": [[11, 12, 13, 14], [15, 16, 17, 18]]}
    ended = {"output_ids": [10, 11, 12, 13, 14, 15, 16], "accepted": [3, 3], "committed": [4, 2], "trace": trace}
    rows = by_position([record(**ended)])  # a stop cut the last round to two of its four tokens
    assert [row["rounds"] for row in rows] == [2, 2, 1] == [row["accepted"] for row in rows]
    assert [row["bare"] for row in rows] == [2, 2, 1] and not any(row["relayed"] for row in rows)


def test_positions_sum_to_the_gauges_over_all_masks_and_shares_to_their_counts():
    trace = {"proposals": [[99, 12, 13], [12, 13, 99]], "argmax": [[11, 12, 77, 14], [12, 13, 14, 1]]}
    other = record(output_ids=[10, 11, 12, 13, 14], accepted=[0, 2], committed=[1, 3], trace=trace)
    rows, whole = by_position([record(), other]), tally(record()) + tally(other)
    for name in ("relayed", "stale_right", "rescued"):
        assert sum(row[name] for row in rows) == whole[name]
    assert sum(row["relayed_draft_right"] for row in rows) == whole["draft_right"]
    for row in rows:
        assert row["relayed"] + row["bare"] == row["rounds"]
        assert row["relayed_accepted"] + row["bare_accepted"] == row["accepted"]
        for name, above, below in POSITION_RATES:
            assert row[name] == row[above] / row[below] if row[below] else math.isnan(row[name])
    for before, row in zip(rows, rows[1:], strict=False):  # whoever tries m has accepted m - 1
        assert row["relayed_tried"] + row["bare_tried"] <= before["accepted"]


def test_nothing_drafted_has_no_positions_and_a_missing_trace_is_refused():
    assert by_position([]) == by_position([record(trace={"proposals": [[], []], "argmax": [[11], [12]]})]) == []
    with pytest.raises(ValueError, match="'p'.*decode.trace"):
        by_position([record(trace=None)])


def test_gauge_gives_each_suite_and_an_overall_row():
    rows = gauge([record(), record(suite="u")])
    assert [row["suite"] for row in rows] == ["s", "u", "overall"]
    assert rows[-1]["rounds"] == 4


def test_a_record_without_a_trace_is_refused_by_name():
    with pytest.raises(ValueError, match="'p'.*decode.trace"):
        tally(record(trace=None))
    with pytest.raises(ValueError, match="2 steps but 1 traced"):
        tally(record(trace={"proposals": [[1, 2, 3]], "argmax": [[1, 2, 3, 4]]}))


def test_command_line_skips_the_baseline_and_reads_folders(tmp_path, capsys):
    lines = [record(), record(method="ar", trace={"proposals": [[], []], "argmax": [[11], [12]]})]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = main([str(tmp_path), "--format", "json"])
    assert [row["method"] for row in rows] == ["dflash", "dflash"]
    assert json.loads(capsys.readouterr().out)[0]["tau"] == 1.5


def test_command_line_finds_the_records_of_a_profile(tmp_path, capsys):
    folder = tmp_path / "out" / "records" / "pocket" / "dflash"
    folder.mkdir(parents=True)
    for seed in (0, 1):  # the profile has seed 0 alone; the other was left by an earlier run
        line = json.dumps(record() | {"seed": seed}) + "\n"
        (folder / f"pocket_word-T0-seed{seed}.jsonl").write_text(line)
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"extends: smoke\nprofile: mine\noutput_dir: {tmp_path / 'out'}\n")
    rows = main(["--config", str(profile), "--format", "csv"])
    assert rows[-1]["suite"] == "overall" and rows[-1]["responses"] == 1
    assert capsys.readouterr().out.startswith("target,method,temperature,suite,")
    apart = main([str(folder), "--by-seed", "--format", "json"])
    assert [row["method"] for row in apart if row["suite"] == "overall"] == ["dflash, seed 0", "dflash, seed 1"]
    with pytest.raises(SystemExit):
        main([])


def test_a_damaged_line_is_named_with_its_file(tmp_path, capsys):
    (tmp_path / "r.jsonl").write_text('{"a": 1}\n{"b"\n')
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert f"{tmp_path / 'r.jsonl'}, line 2" in capsys.readouterr().err
    for text, words in (("3", "line 1 is no record"), ('{"trace": {}, "accepted": []}', "traced")):
        (tmp_path / "r.jsonl").write_text(text + "\n")
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path)])
        assert words in capsys.readouterr().err + str(ended.value)
    (tmp_path / "r.jsonl").write_text('{"trace": {"proposals": []}, "accepted": []}\n')
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "it has no output_ids" in capsys.readouterr().err


def test_a_profile_without_records_is_told_where_they_would_be(tmp_path, capsys):
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"extends: smoke\nprofile: mine\noutput_dir: {tmp_path / 'out'}\n")
    with pytest.raises(SystemExit):
        main(["--config", str(profile)])
    assert f"{tmp_path / 'out'}/records" in capsys.readouterr().err
