"""Whether the real suites and their graders can be trusted on this machine, from the local files alone.

    python -m harness.suites check --data FOLDER

All suites and training prompts are loaded and counted, no training prompt may be an evaluated one, every gold answer
must be graded right and every broken one wrong, and programs that misbehave must be held. It knows how many prompts
each suite has; how they are loaded, worded and graded is the affair of `harness/data` and `harness/score`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

from harness.data import DataError, Task, files, gsm8k, mbpp, refuse_overlap, suite_prompts, training_tasks
from harness.score.grade import broken_response, gold_response, grade
from harness.score.hostile import HOSTILE, Hostile, faults

#: Prompts of each evaluated source, and of each source of training prompts.
SUITES = {"gsm8k": 1319, "humaneval": 164, "math500": 500, "mbpp": 257, "mbpp_bare": 257, "mt_bench": 80, "alpaca": 80}
TRAINING = {"gsm8k": 7473 - gsm8k.USUAL_SHOTS, "mbpp": 459, "mbpp_bare": 459, "instructions": 1398}
#: A licence keeps these files out of releases, so a folder may lack them.
OPTIONAL = frozenset({"alpaca"})
MOST_SHOWN = 5

Respond = Callable[[Task], str | None]


@dataclass(frozen=True)
class Result:
    """One check: how many of how many were as they should be. faults: what was not, a line each."""

    name: str
    right: int
    of: int
    seconds: float
    note: str = ""
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.right == self.of and not self.faults

    def lines(self) -> Iterator[str]:
        counts = f"{self.right}/{self.of}"
        yield f"{'ok' if self.ok else 'FAIL':<5}{self.name:<48}{counts:>10}{self.seconds:>8.1f} s  {self.note}".rstrip()
        shown = self.faults[:MOST_SHOWN]
        yield from (f"       {fault}" for fault in shown)
        if len(self.faults) > len(shown):
            yield f"       and {len(self.faults) - len(shown)} more"


def checks(
    data_dir: Path,
    suites: Mapping[str, int] = SUITES,
    training: Mapping[str, int] = TRAINING,
    hostile: Sequence[Hostile] = HOSTILE,
    workers: int | None = None,
) -> Iterator[Result]:
    """All checks of a data folder, each when it is done.  workers: programs that run at one time; None: a core each."""
    yield from _pinned_files(data_dir)
    asked: dict[str, list[Task]] = {}
    for source, expected in suites.items():
        if source in OPTIONAL and _absent(data_dir, source):
            continue
        cfg = SimpleNamespace(source=source, prompts=None, sample_seed=0, shots=None)
        yield _loaded(f"suite {source}", expected, partial(suite_prompts, source, cfg, data_dir), source, asked)
    trained: dict[str, list[Task]] = {}
    for source, expected in training.items():
        load = partial(training_tasks, source, None, 0, data_dir)
        yield _loaded(f"training prompts {source}", expected, load, source, trained)
    yield _apart(trained, asked)
    with ThreadPoolExecutor(workers or _cores()) as pool:
        for source in ("gsm8k", "math500", "humaneval"):
            if source in asked:
                yield from _graders(source, asked[source], pool)
        if "mbpp" in asked:
            yield from _mbpp_graders(data_dir, asked["mbpp"], pool)
        yield _hostile(hostile, pool)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _absent(data_dir: Path, source: str) -> bool:
    return not (data_dir / files.SOURCES[f"{source}/test"].file).is_file()


def _pinned_files(data_dir: Path) -> Iterator[Result]:
    pinned: dict[str, str] = {}
    for name, source in files.SOURCES.items():
        pinned.setdefault(source.file, name)  # two sources may read one file
    for file, name in pinned.items():
        source, start = files.SOURCES[name], time.monotonic()
        if name.split("/")[0] in OPTIONAL and not (data_dir / file).is_file():
            yield Result(f"file {file}", 0, 0, 0.0, "not there, and not needed")
            continue
        try:
            rows, wrong = files.load_rows(name, data_dir), ()
        except (DataError, OSError) as error:
            rows, wrong = [], (str(error),)
        same = files.rows_digest(rows, source.fields) == source.rows_sha256
        if rows and not same:
            wrong = (f"{file}: its rows have another digest than the pinned {source.rows_sha256[:16]}",)
        yield Result(
            f"file {file}", len(rows), source.rows, time.monotonic() - start, f"sha256 {source.sha256[:16]}", wrong
        )


def _loaded(
    name: str, expected: int, load: Callable[[], list[Task]], source: str, into: dict[str, list[Task]]
) -> Result:
    """Load, count, and hash the wording, so that a changed one is seen."""
    start = time.monotonic()
    try:
        tasks = load()
    except (DataError, OSError) as error:
        return Result(name, 0, expected, time.monotonic() - start, faults=(str(error),))
    into[source] = tasks
    words = json.dumps([[task.id, task.turns, task.few_shot, task.plain] for task in tasks])
    turns = sum(len(task.turns) for task in tasks)
    note = f"wording {hashlib.sha256(words.encode()).hexdigest()[:16]}"
    note += f", {turns} turns" if turns > len(tasks) else ""
    twice = len(tasks) - len({task.id for task in tasks})
    wrong = (f"{twice} ids occur twice",) if twice else ()
    return Result(name, len(tasks), expected, time.monotonic() - start, note, wrong)


def _apart(trained: Mapping[str, Sequence[Task]], asked: Mapping[str, Sequence[Task]]) -> Result:
    """No training prompt is an evaluated one, source by source."""
    start, right, wrong = time.monotonic(), 0, []
    pairs = [(t, e) for t in trained for e in asked]
    for t, e in pairs:
        try:
            refuse_overlap(trained[t], asked[e])
            right += 1
        except DataError as error:
            wrong.append(f"{t} and {e}: {error}")
    return Result("training and evaluation apart", right, len(pairs), time.monotonic() - start, faults=tuple(wrong))


def _mbpp_graders(data_dir: Path, tested: Sequence[Task], pool: ThreadPoolExecutor) -> Iterator[Result]:
    """Those of the test split, then of the whole file."""
    known = {int(task.id.rsplit("/", 1)[1]) for task in tested}
    every = mbpp.every_reference(data_dir)
    rest = [Task(f"mbpp/any/{i:04d}", "mbpp", ("",), every[i]) for i in every if i not in known]
    first = []
    for result in _graders("mbpp", tested, pool):
        first.append(result)
        yield result
    for ours, more in zip(first, _graders("mbpp", rest, pool), strict=True):
        counts = {"right": ours.right + more.right, "of": ours.of + more.of, "faults": ours.faults + more.faults}
        name = ours.name.replace("mbpp:", "mbpp, all splits:")
        yield replace(more, name=name, note=f"{ours.of} of them graded above", **counts)


def _graders(name: str, tasks: Sequence[Task], pool: ThreadPoolExecutor) -> Iterator[Result]:
    """Gold answers right, broken ones wrong; of a suite with answers in LaTeX, those of other problems wrong too."""
    said = {"python": "reference solutions"}.get(tasks[0].reference["kind"], "gold answers")
    yield _graded(f"{name}: {said} right", tasks, gold_response, 1.0, pool)
    yield _graded(f"{name}: broken answers wrong", tasks, broken_response, 0.0, pool)
    if tasks[0].reference["kind"] == "math":
        golds = [task.reference["answer"].split("=")[-1].strip() for task in tasks]  # x=5 is as good as 5
        others = {
            task.id: next(gold for gold in [*golds[i:], *golds] if gold != golds[i]) for i, task in enumerate(tasks)
        }
        name = f"{name}: answers to other problems wrong"
        yield _graded(name, tasks, lambda task: f"$\\boxed{{{others[task.id]}}}$", 0.0, pool)


def _graded(name: str, tasks: Sequence[Task], respond: Respond, score: float, pool: ThreadPoolExecutor) -> Result:
    start = time.monotonic()
    marks = pool.map(lambda task: grade(task, respond(task) or ""), tasks)
    wrong = [
        f"{task.id}: score {mark.score} ({mark.verdict}), expected {score}"
        for task, mark in zip(tasks, _shown(marks, name, len(tasks)), strict=True)
        if mark.score != score
    ]
    return Result(name, len(tasks) - len(wrong), len(tasks), time.monotonic() - start, faults=tuple(wrong))


def _hostile(programs: Sequence[Hostile], pool: ThreadPoolExecutor) -> Result:
    start = time.monotonic()
    found = pool.map(lambda program: list(faults(program)), programs)
    wrong = [one for one in _shown(found, "hostile programs", len(programs)) if one]
    said = tuple(fault for one in wrong for fault in one)
    held = len(programs) - len(wrong)
    return Result("hostile programs held", held, len(programs), time.monotonic() - start, faults=said)


def _shown(items: Iterable[Any], name: str, total: int) -> Iterable[Any]:
    return tqdm(items, total=total, desc=name, leave=False, mininterval=1)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.suites", description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=["check"], help="check: all suites, graders and limits")
    parser.add_argument("--data", help=f"folder with the suites' files; default: {files.DATA_DIR_VARIABLE}")
    arguments = parser.parse_args(argv)
    try:
        folder = files.data_folder(arguments.data)
    except DataError as error:
        parser.exit(2, f"{error}\n")
    if folder is None:
        parser.exit(2, f"no data folder is named; give --data FOLDER or set {files.DATA_DIR_VARIABLE}\n")
    start, failed = time.monotonic(), 0
    for result in checks(folder):
        failed += not result.ok
        for line in result.lines():
            tqdm.write(line)
    print(f"{'all checks passed' if not failed else f'{failed} checks failed'} in {time.monotonic() - start:.0f} s")
    if failed:
        parser.exit(1)


if __name__ == "__main__":
    main()
