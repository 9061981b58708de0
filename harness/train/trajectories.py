"""Trajectories: prompts answered by the target itself, the labels of everything that is trained.

It knows how prompts become responses (through the one decoder, without a drafter) and how they are kept: a
line per response in the work folder while they are made, hashed shards and a manifest once they are whole.
It does not know how they are trained on.  Responses are generated again only if something that could change
them changed; asking for more prompts keeps those there are.

    python -m harness.train.trajectories --config pocket --target pocket --out results/trajectories/pocket
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from harness import stage
from harness.config import Config, load_config
from harness.data import (
    DataError,
    StopStrings,
    Task,
    first_messages,
    next_turn,
    prompt_of,
    shared_prefix,
    stop_strings,
    stops_of,
)
from harness.decode import Decoder, DecodeSettings, Prompt
from harness.preflight import refuse_unusable
from harness.prompt_sections import TrajectoriesConfig
from harness.provenance import provenance
from harness.records import read_records, write_records
from harness.score.grade import GraderError
from harness.stops import trim
from harness.target import Target
from harness.train.guard import Lifeline, RunLocked, locked
from harness.train.prompts import refuse_unaskable, tasks_of, too_long
from harness.train.state import digest, write_bytes, write_json

log = logging.getLogger(__name__)

SHARD_LINES = 10_000
Key = tuple[str, int, float]  # prompt id, turn, temperature


def generate(
    target: Target,
    tasks: Sequence[Task],
    settings: TrajectoriesConfig,
    partial: Path,
    stops: StopStrings = (),
    life: Lifeline | None = None,
) -> list[dict[str, Any]]:
    """Answer every turn of every task, task ``i`` at ``settings.temperatures[i mod n]``; lines in the order of `tasks`.

    partial: JSON lines of responses finished so far; each new response is appended to it, so an interrupted
    call goes on where it was.  stops: strings that end a response; by suite of the task where these are several
    sources, and then each line names its own.
    A dialogue ends where its next prompt is longer than `prompts.longest` allows.
    Raises before the first response `DataError` for no tasks, `TaskError` for one that cannot be asked.
    """
    if not tasks:
        raise DataError("there are no training prompts; set trajectories.prompts to at least 1")
    for task in tasks:
        refuse_unaskable(task, target, settings)
    temperatures = [settings.temperatures[i % len(settings.temperatures)] for i in range(len(tasks))]
    done = {(r["prompt_id"], r["turn"], r["temperature"]): r for r in read_records(partial, repair=True)}
    talks = {task.id: first_messages(task) for task in tasks}
    lines: dict[Key, dict[str, Any]] = {}
    waiting = list(zip(tasks, temperatures, strict=True))
    turn = 0
    while waiting:
        for temperature in settings.temperatures:
            for chosen, ends in _alike([task for task, t in waiting if t == temperature], stops):
                prompts = [prompt_of(task, talks[task.id], target, settings.max_new_tokens) for task in chosen]
                sources = {task.id: task.suite for task in chosen} if isinstance(stops, Mapping) else {}
                for prompt in prompts:
                    old = done.get((prompt.id, turn, temperature))
                    if old and tuple(old["prompt_ids"]) == prompt.ids:
                        lines[prompt.id, turn, temperature] = old
                missing = [p for p in prompts if (p.id, turn, temperature) not in lines]
                prefix = shared_prefix(chosen, prompts, target)
                decode = DecodeSettings(
                    temperature=temperature,
                    seed=settings.seed,
                    max_new_tokens=settings.max_new_tokens,
                    stop_ids=target.stop_ids,
                    stop_strings=ends,
                )
                for line in _answer(target, missing, decode, settings.batch_size, prefix, sources, partial, life):
                    lines[line["prompt_id"], turn, temperature] = line
        for task, temperature in waiting:
            whole = target.decode(lines[task.id, turn, temperature]["response_ids"])
            answer = trim(whole, stops_of(stops, task.suite))
            talks[task.id] = [*talks[task.id], {"role": "assistant", "content": answer}]
        following = [(task, t, next_turn(task, talks[task.id])) for task, t in waiting]
        following = [(task, t, messages) for task, t, messages in following if messages is not None]
        waiting = [(task, t) for task, t, messages in following if not too_long(task, messages, target, settings)]
        talks.update({task.id: messages for task, _, messages in following})
        turn += 1
    order = {task.id: i for i, task in enumerate(tasks)}
    return [lines[key] for key in sorted(lines, key=lambda key: (order[key[0]], key[1]))]


def _alike(tasks: Sequence[Task], stops: StopStrings) -> list[tuple[list[Task], tuple[str, ...]]]:
    """Tasks that one decoder can answer, behind the same few-shot text and up to the same stop strings."""
    groups: dict[tuple[str, tuple[str, ...]], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.few_shot, stops_of(stops, task.suite)), []).append(task)
    return [(found, ends) for (_, ends), found in groups.items()]


def _answer(
    target: Target,
    prompts: list[Prompt],
    decode: DecodeSettings,
    rows: int,
    prefix: tuple[int, ...],
    sources: Mapping[str, str],
    partial: Path,
    life: Lifeline | None,
) -> Iterable[dict[str, Any]]:
    """Decode `prompts`, shortest first, appending each response to `partial` as it comes."""
    if not prompts:
        return
    decoder = Decoder(target, None, decode, rows=min(rows, len(prompts)), shared_prefix=prefix)
    prompts = sorted(prompts, key=lambda p: (len(p.ids), p.id))
    partial.parent.mkdir(parents=True, exist_ok=True)
    tokens = 0
    with (
        partial.open("a", encoding="utf-8") as file,
        tqdm(total=len(prompts), desc=f"trajectories T={decode.temperature:g}", unit="resp", mininterval=2) as bar,
    ):
        for response in decoder.run(prompts):
            line = {
                "prompt_id": response.prompt_id,
                "turn": response.turn,
                "temperature": decode.temperature,
                "prompt_ids": list(response.prompt_ids),
                "response_ids": response.output_ids,
                "stop": response.stop,
            }
            if response.prompt_id in sources:
                line["source"] = sources[response.prompt_id]
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            tokens += len(response.output_ids)
            bar.update()
            bar.set_postfix(tokens=tokens, refresh=False)
            yield line
            if life is not None:
                life.check()


def publish(out: Path, lines: Sequence[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """Write shards, then the manifest that names and hashes them.  Raises ``ValueError`` if nothing is supervised."""
    supervised = sum(len(line["response_ids"]) for line in lines)
    if not supervised:
        raise ValueError(f"the target answered none of {len(lines)} prompts with a token; there is nothing to train on")
    shards = []
    for number, start in enumerate(range(0, len(lines), SHARD_LINES)):
        path = out / f"shard-{number:05d}.jsonl"
        part = lines[start : start + SHARD_LINES]
        write_records(path, part)
        sha = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append({"file": path.name, "lines": len(part), "sha256": sha})
    by_source = Counter(line["source"] for line in lines if "source" in line)
    manifest = facts | {
        "responses": len(lines),
        "prompt_tokens": sum(len(line["prompt_ids"]) for line in lines),
        "response_tokens": supervised,
        "by_temperature": {f"{t:g}": n for t, n in sorted(Counter(line["temperature"] for line in lines).items())},
        "stops": dict(sorted(Counter(line["stop"] for line in lines).items())),
        **({"by_source": dict(sorted(by_source.items()))} if by_source else {}),
        "shards": shards,
    }
    write_json(out / "manifest.json", manifest)
    return manifest


def facts_of(target: Target, config: Config, name: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """What a response depends on, beside its prompt."""
    settings, source = config.trajectories, config.target(name).in_training
    by_source = {
        asked: list(_stops_at(config, asked, [t for t in tasks if t.suite == asked], target))
        for asked in settings.sources
    }
    return {
        "stop_strings": by_source or list(_stops_at(config, settings.source, tasks, target)),
        "source": settings.source or sorted(settings.sources),
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
        "temperatures": settings.temperatures,
        "target": name,
        "target_source": source.source,
        "revision": source.revision,
        "fingerprint": target.fingerprint,
        "dtype": source.dtype,
        "template_hash": target.template_hash,
        "thinking": target.thinking,
        "stop_ids": list(target.stop_ids),
    }


def _stops_at(config: Config, source: str, tasks: Sequence[Task], target: Target) -> Sequence[str]:
    """Strings that end a response to prompts of a source, as in the suite that is asked alike."""
    twin = config.twin(source)
    return stop_strings(tasks, target, None if twin is None else twin.stop_strings)


def sample_text(target: Target, line: dict[str, Any]) -> str:
    """One trajectory as text with its supervised part marked, special tokens visible, for a human to look at."""
    prompt, response = (target.tokenizer.decode(line[k]) for k in ("prompt_ids", "response_ids"))
    return f"prompt {line['prompt_id']}, T={line['temperature']:g}\n{prompt}\n[[supervised:]]\n{response}\n"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.train.trajectories", description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:")
    parser.add_argument("--out", required=True, type=Path, help="folder for shards and manifest.json")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        config = load_config(arguments.config)
        run(config, arguments.target, arguments.out)
    except (ValueError, OSError, GraderError, RunLocked) as error:
        parser.exit(2, f"{error}\n")


def run(config: Config, name: str, out: Path) -> dict[str, Any]:
    """Generate (or finish generating) the trajectories of one target and publish them in `out`."""
    target = Target.load(config.target(name).in_training, name)
    made_by = provenance()  # now: a commit made during a long run is not the one that runs
    counts: dict[str, dict[str, int]] = {}
    tasks = tasks_of(config, target, counts)
    refuse_unusable(config, target, tasks)
    facts = facts_of(target, config, name, tasks)
    out.mkdir(parents=True, exist_ok=True)  # a path that cannot be one is no news for after the responses
    work = Path(config.work_dir) / "trajectories" / name
    partial = work / f"{digest([facts, stage.digest('trajectories')])[:12]}.jsonl"
    with locked(work), Lifeline() as life:
        lines = generate(target, tasks, config.trajectories, partial, facts["stop_strings"], life)
    more = {"datasets": counts} if counts else {}
    manifest = publish(out, lines, facts | more | {"made_by": made_by})
    write_bytes(out / "sample.txt", sample_text(target, lines[0]).encode())
    log.info(
        "%d responses, %d response tokens, stops %s -> %s",
        manifest["responses"],
        manifest["response_tokens"],
        manifest["stops"],
        out,
    )
    return manifest


if __name__ == "__main__":
    main()
