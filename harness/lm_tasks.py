"""The suites as task files of lm-eval, so that any model of theirs can be asked the very same prompts.

    python -m harness.lm_tasks --config pocket --target pocket --out tasks
    lm_eval --include_path tasks --tasks blockdraft_pocket_word --model hf ... --apply_chat_template

A suite becomes a JSONL file of its prompts, a YAML file that names it as `dataset_path`, and `grading.py`, which calls
this project's graders.  It knows lm-eval's task format.  Dialogues stay out: their second turn is asked after the
model's own first answer, which lm-eval's tasks cannot say.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from harness.config import Config, load_config
from harness.data import Task, first_messages, plain_text, prompt_of, stop_strings, suite_prompts
from harness.score.grade import Limits, gold_response, grade
from harness.target import Target
from harness.train.state import write_bytes

log = logging.getLogger(__name__)

PREFIX = "blockdraft_"
GRADING = '''"""Called by lm-eval for each answer; the graders are those of the pipeline."""

from harness.lm_tasks import process_results

__all__ = ["process_results"]
'''


class _Function(str):
    """Written as lm-eval's `!function` tag."""


def _represent(dumper: yaml.SafeDumper, value: _Function) -> yaml.ScalarNode:
    return dumper.represent_scalar("!function", str(value))


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(_Function, _represent)


def write_tasks(config: Config, target: Target, out: Path) -> list[str]:
    """Task files for every single-turn suite of `config`, worded for `target`; the names of the tasks.

    Raises ``ValueError`` for a suite that this target cannot be asked.
    """
    out.mkdir(parents=True, exist_ok=True)
    names = []
    for suite, spec in config.suites.items():
        tasks = suite_prompts(suite, spec, config.data_root)
        if any(len(task.turns) > 1 for task in tasks):
            log.warning("suite %s is a dialogue and stays out", suite)
            continue
        data = (out / f"{suite}.jsonl").resolve()
        lines = [
            json.dumps(document(task, target, spec.max_new_tokens, spec.scored, config.run_code)) for task in tasks
        ]
        write_bytes(data, "".join(f"{line}\n" for line in lines).encode())
        until = stop_strings(tasks, target, spec.stop_strings)
        content = task_file(suite, data, until, spec.max_new_tokens)
        write_bytes(out / f"{suite}.yaml", yaml.dump(content, Dumper=_Dumper, sort_keys=False).encode())
        names.append(f"{PREFIX}{suite}")
    write_bytes(out / "grading.py", GRADING.encode())
    return names


def document(task: Task, target: Target, max_new_tokens: int, scored: bool, run_code: bool) -> dict[str, Any]:
    """One line: what is asked, and what its grader needs."""
    messages = first_messages(task)
    prompt_of(task, messages, target, max_new_tokens)  # refuses what cannot be asked
    text = messages[0]["content"] if target.has_template else plain_text(task, messages)
    return {
        "id": task.id,
        "text": text,
        "gold": gold_response(task) or "",
        "scored": scored,
        "run_code": run_code,
        "task": json.dumps(asdict(task)),  # as text: the columns of a data set have one type each
    }


def task_file(suite: str, data: Path, until: Sequence[str], max_new_tokens: int) -> dict[str, Any]:
    """What the YAML file says; `doc_to_text` names a column, so nothing renders the prompt anew."""
    metric = {"aggregation": "mean", "higher_is_better": True}
    return {
        "task": f"{PREFIX}{suite}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "text",
        "doc_to_target": "gold",
        "process_results": _Function("grading.process_results"),
        "generation_kwargs": {"until": list(until), "max_gen_toks": max_new_tokens, "do_sample": False},
        "num_fewshot": 0,
        "metric_list": [{"metric": "accuracy", **metric}, {"metric": "no_answer", **metric, "higher_is_better": False}],
        "metadata": {"version": 1.0},
    }


def process_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Accuracy and whether no answer was found, of one document and its one answer; nothing for what is not graded."""
    task = _task(json.loads(doc["task"]))
    mark = grade(task, results[0], 0, Limits(run_code=doc["run_code"])) if doc["scored"] else None
    if mark is None or mark.score is None:
        return {}
    return {"accuracy": mark.score, "no_answer": float(mark.verdict == "no_answer")}


def _task(fields: dict[str, Any]) -> Task:
    return Task(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.lm_tasks", description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:, for whose template prompts are worded")
    parser.add_argument("--out", type=Path, required=True, help="folder for the task files")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        config = load_config(arguments.config)
        target = Target.load(config.target(arguments.target), arguments.target, check=False)
        names = write_tasks(config, target, arguments.out)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")
    print("\n".join(names))


if __name__ == "__main__":
    main()
