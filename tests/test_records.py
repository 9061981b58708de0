"""Records: what survives a kill, and what is refused.

pytest tests/test_records.py
"""

from __future__ import annotations

import json

import pytest

from harness.decode import DecodeSettings, Response
from harness.records import Record, append_record, prompt_sha, read_records, write_records


def record(number: int) -> Record:
    response = Response(f"p{number}", 0, (1, 2, 3), [5, 6, 7], [1], [2], "budget")
    return Record.of(
        response,
        DecodeSettings(1.0, 0, 3, (7,), ("\n\n",), accept="rejection", proposals="sampled"),
        target="t",
        method="ar",
        suite="s",
        text="é\n",
        score=None,
        verdict=None,
        seconds=0.1,
    )


def test_lines_read_back_as_written(tmp_path):
    path = tmp_path / "deep" / "partial.jsonl"
    for number in range(3):
        append_record(path, record(number))
    read = read_records(path)
    assert [r["prompt_id"] for r in read] == ["p0", "p1", "p2"]
    made_by = {name: read[0][name] for name in ("temperature", "seed", "accept", "proposals")}
    assert made_by == {"temperature": 1.0, "seed": 0, "accept": "rejection", "proposals": "sampled"}
    assert (read[0]["stop_ids"], read[0]["stop_strings"]) == ([7], ["\n\n"]), "the stop set is part of what made it"
    assert read[0]["text"] == "é\n" and read[0]["prompt_sha"] == prompt_sha([1, 2, 3])


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_line_cut_by_a_kill_is_dropped_and_the_next_one_stands_alone(tmp_path, cut):
    path = tmp_path / "partial.jsonl"
    append_record(path, record(0))
    append_record(path, record(1))
    path.write_bytes(path.read_bytes()[:-cut])
    assert [r["prompt_id"] for r in read_records(path, repair=True)] == ["p0"]
    append_record(path, record(2))
    assert [r["prompt_id"] for r in read_records(path)] == ["p0", "p2"]


def test_a_damaged_finished_file_names_the_line(tmp_path):
    path = tmp_path / "records.jsonl"
    write_records(path, [{"a": 1}, {"a": 2}])
    path.write_text(path.read_text() + "{broken\n")
    for repair in (False, True):
        with pytest.raises(ValueError, match="line 3"):
            read_records(path, repair=repair)


def test_missing_records_are_an_error_unless_they_are_about_to_be_made(tmp_path):
    with pytest.raises(FileNotFoundError, match="decode stage"):
        read_records(tmp_path / "none.jsonl")
    assert read_records(tmp_path / "none.jsonl", repair=True) == []


def test_a_finished_file_appears_whole_or_not_at_all(tmp_path):
    def broken():
        yield {"a": 1}
        raise RuntimeError

    path = tmp_path / "records.jsonl"
    with pytest.raises(RuntimeError):
        write_records(path, broken())
    assert not path.exists()
    write_records(path, [json.loads('{"a": 1}')])
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["records.jsonl"]
