"""A data folder with small files of every suite, pinned for one test."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.data import files


def gsm_rows(count: int, tag: str) -> list[dict[str, Any]]:
    return [
        {"question": f"{tag}: what is {i} + 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"} for i in range(count)
    ]


def humaneval_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": f"def f{i}(x):\n    '''Add {i}.'''\n",
            "entry_point": f"f{i}",
            "canonical_solution": f"    return x + {i}\n",
            "test": f"def check(candidate):\n    assert candidate(1) == {i + 1}\n",
        }
        for i in range(count)
    ]


def math_rows(count: int) -> list[dict[str, Any]]:
    answers = ("\\frac{1}{2}", "7", "\\text{east}", "x + 3")
    return [
        {
            "problem": f"Find $x_{i}.$",
            "solution": "Look.",
            "answer": answers[i % 4],
            "subject": "Algebra",
            "level": 1,
            "unique_id": f"test/algebra/{i}.json",
        }
        for i in range(count)
    ]


def mbpp_rows(ids: list[int], text: str) -> list[dict[str, Any]]:
    """text: "prompt" for the sanitized file, "text" for the full one, which has other line ends too."""
    end = "\n" if text == "prompt" else "\r\n"
    return [
        {
            "task_id": i,
            text: f"Write a function to add {i}.",
            "code": f"import math{end}def add_{i}(x):{end}    return x + {i}",
            "test_imports": ["import math"],
            "test_list": [f"assert math.floor(add_{i}(1)) == {i + 1}", f"assert add_{i}(2) == {i + 2}"],
        }
        for i in ids
    ]


def talks(count: int, tag: str, turns: int) -> list[dict[str, Any]]:
    fields = {"category": "stem", "question_id": 0}
    return [
        {"id": f"{tag}/{i}", **fields, "turns": [f"{tag} {i}, turn {t}?" for t in range(turns)]} for i in range(count)
    ]


CONTENTS: dict[str, list[dict[str, Any]]] = {
    "gsm8k/test": gsm_rows(30, "test"),
    "gsm8k/train": gsm_rows(40, "train"),
    "humaneval/test": humaneval_rows(9),
    "math500/test": math_rows(12),
    "mbpp/sanitized": mbpp_rows([2, 3, 4, 6, *range(11, 25), 601], "prompt"),
    "mbpp/full": mbpp_rows([1, 2, 11, 12, *range(511, 520), 569, *range(601, 610)], "text"),
    "mt_bench/test": talks(8, "talk", 2),
    "alpaca/test": talks(6, "alpaca", 1),
    "instructions/self_instruct_seed": talks(5, "seed", 1),
    "instructions/llms_from_scratch": talks(6, "scratch", 1),
    "instructions/dolly_sample": talks(4, "dolly", 1),
}


def pinned_folder(folder: Path, monkeypatch: Any) -> Path:
    """Write `CONTENTS` into `folder` and pin these files in place of the real ones."""
    contents = CONTENTS | {f"mbpp_bare/{name}": CONTENTS[f"mbpp/{name}"] for name in ("sanitized", "full")}
    for name, rows in contents.items():
        path = folder / files.SOURCES[name].file
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        pinned = replace(files.SOURCES[name], rows=len(rows), sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        monkeypatch.setitem(files.SOURCES, name, pinned)
    monkeypatch.delenv(files.DATA_DIR_VARIABLE, raising=False)
    return folder
