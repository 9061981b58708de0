"""MBPP: write a Python function from a sentence, with its tests shown or without, as a chat message and as few-shot
text for base models.

Knows the wording of prompts, the splits and what the tests call. Does not run code. Evaluated is the test split
(task_id 11 to 510) of the sanitized file, 257 tasks; shots come from its prompt split (1 to 10), training prompts from
the validation and training splits (511 to 974) of the full file. A sentence alone leaves the names and the order of
arguments open, so the tests are part of the prompt; the source `mbpp_bare` asks as the DFlash code does, without them.
"""

from __future__ import annotations

import ast
import builtins
import os
from collections.abc import Sequence
from random import Random

from harness.data.files import DataError, load_rows, sample
from harness.data.tasks import Task

SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "train": range(511, 975)}
#: Training rows whose sentence is that of a test row, in one of the two files.
REPEATED = frozenset({569, 602, 704, 872, 928})
USUAL_SHOTS = 3
#: The plain form ends inside a fence, which the answer closes.
STOP_STRINGS = ("\n```", "\nTask:")


def tasks(
    split: str,
    count: int | None,
    seed: int,
    shots: int | None = None,
    data_dir: str | os.PathLike | None = None,
    source: str = "mbpp",
) -> list[Task]:
    """`count` tasks of a split (all if None), a seeded sample in order of ids; `split` is "test" or "train".

    shots: worked examples drawn by seed from the prompt split; None: `USUAL_SHOTS` in the plain form and none in a
    chat message. source: "mbpp", or "mbpp_bare" for prompts without tests. Raises DataError if more shots or prompts
    are asked for than there are.
    """
    in_chat, shots = bool(shots), USUAL_SHOTS if shots is None else shots
    with_tests = source == "mbpp"
    sanitized = _by_id(load_rows(f"{source}/sanitized", data_dir)) if shots or split == "test" else {}
    few_shot = "".join(_shot(sanitized[i], with_tests) for i in shot_ids(shots, seed, sanitized))
    rows = sanitized if split == "test" else _by_id(load_rows(f"{source}/full", data_dir))
    free = [i for i in rows if i in SPLITS[split] and i not in REPEATED]
    chosen = sample(free, count, f"mbpp/{split}/{seed}")
    made = []
    for i in chosen:
        chat = f"{few_shot if in_chat else ''}{_message(rows[i], with_tests)}"
        graded = reference(rows[i]) if split == "test" else {"kind": "none", "question": rows[i]["prompt"]}
        plain = (_question(rows[i], with_tests),)
        made.append(Task(f"{source}/{split}/{i:04d}", source, (chat,), graded, plain, few_shot, STOP_STRINGS))
    return made


def shot_ids(count: int, seed: int, rows: dict[int, dict]) -> list[int]:
    """Ids of the prompt split that serve as shots, drawn by seed."""
    there = [i for i in rows if i in SPLITS["prompt"]]
    if count > len(there):
        raise DataError(f"{count} shots asked for, the prompt split of mbpp has {len(there)} tasks; lower shots")
    return Random(f"mbpp-shots/{seed}").sample(there, count)


def entry_point(tests: Sequence[str], imports: Sequence[str] = ()) -> str:
    """The function that the tests are about: what every one of them calls, imported names aside, and builtins too,
    unless they call nothing else (one task redefines `sum`).

    Raises DataError if that is not exactly one name.
    """
    known = {alias.asname or alias.name.split(".")[0] for line in imports for alias in _aliases(line)}
    called = [_called(test) for test in tests]
    names = set.intersection(*called) - known if called else set()
    names = names - set(dir(builtins)) or names
    if len(names) != 1:
        raise DataError(
            f"tests call {', '.join(sorted(names)) or 'no function'} throughout, where one function was expected "
            f"({tests[0] if tests else 'there are none'}); correct the row"
        )
    return names.pop()


def _aliases(line: str) -> list[ast.alias]:
    nodes = ast.walk(ast.parse(line))
    return [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]


def _called(test: str) -> set[str]:
    nodes = ast.walk(ast.parse(test))
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def _by_id(rows: list[dict]) -> dict[int, dict]:
    """Rows of either file under the names of the sanitized one, line ends alike."""
    found = {}
    for row in rows:
        text = row["prompt"] if "prompt" in row else row["text"]
        plain = {"prompt": _unix(text), "code": _unix(row["code"]), "test_list": [_unix(t) for t in row["test_list"]]}
        found[row["task_id"]] = {"test_imports": row.get("test_imports", []), **plain}
    return found


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _message(row: dict, with_tests: bool) -> str:
    if not with_tests:
        return row["prompt"]
    return (
        f"{row['prompt'].strip()}\nYour code must pass these tests:\n```python\n{_tests(row)}\n```\n"
        "Answer with the whole function in one fenced code block."
    )


def _question(row: dict, with_tests: bool) -> str:
    shown = f"Tests:\n{_tests(row)}\n" if with_tests else ""
    return f"Task: {row['prompt'].strip()}\n{shown}Solution:\n```python\n"


def _tests(row: dict) -> str:
    return "\n".join([*row["test_imports"], *row["test_list"]])


def _shot(row: dict, with_tests: bool) -> str:
    return f"{_question(row, with_tests)}{row['code'].strip()}\n```\n\n"


def every_reference(data_dir: str | os.PathLike | None = None) -> dict[int, dict]:
    """What the grader needs, by task_id, for all 427 sanitized tasks, whatever their split."""
    return {i: reference(row) for i, row in _by_id(load_rows("mbpp/sanitized", data_dir)).items()}


def reference(row: dict) -> dict:
    """What the grader needs of one row."""
    return {
        "kind": "python",
        "prompt": "",
        "setup": "\n".join(row["test_imports"]),
        "entry_point": entry_point(row["test_list"], row["test_imports"]),
        "test": "\n".join(row["test_list"]),
        "solution": row["code"],
        "stop_strings": STOP_STRINGS,
        "question": row["prompt"],
    }
