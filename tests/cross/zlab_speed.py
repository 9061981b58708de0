"""How fast is z-lab's released loop beside this project's, on the same checkpoint and prompts?

    python3 -m venv zlab && zlab/bin/pip install 'dflash[local]==0.1.0'
    python -m tests.cross.zlab_speed --python zlab/bin/python --drafter results/drafters/pocket/dflash-seed0 \
        --out results/published/pocket/zlab-speed.json

A check, never a dependency: the package lives in an environment of its own and answers as a process of its own, which
waits while we decode.  Float32, T = 0, batch 1, the same number of threads, first turns of prompts of every suite, in
turns prompt by prompt; each side times its own loop, prefill included, and some prompts go ahead uncounted.
Plain decoding is timed on both sides too (their block size 1).  Speed is tokens over seconds of one repeat, a ratio is
of two speeds of the same repeat, the figure its median.  Required, or the exit code is 1: equal outputs.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from harness.arms import load_arm
from harness.checkpoint import export_drafter
from harness.clocks import turns
from harness.config import Config, load_config
from harness.decode import Decoder, DecodeSettings, Prompt
from harness.provenance import checkpoint_digest, provenance_short
from harness.target import Target
from harness.train.state import write_json
from tests.cross.zlab_parity import METHOD, asked_of, entry, local_target, options

THEIRS = Path(__file__).with_name("zlab_serve.py")
#: Which loop, and whether it drafts.
ARMS = ("ours", "theirs", "ours, plain", "theirs, plain")
Answer = tuple[float, list[int]]  # seconds, ids
Ask = Callable[[Prompt, DecodeSettings], Answer]


def arms(target: Target, drafter: Path, config: Config, server: subprocess.Popen) -> dict[str, Ask]:
    """What decodes one prompt, by name."""
    factory = load_arm(config, target, METHOD, drafter)

    def ours(arm) -> Ask:
        def ask(prompt: Prompt, settings: DecodeSettings) -> Answer:
            start = time.perf_counter()
            response = next(Decoder(target, arm, settings).run([prompt]))
            return time.perf_counter() - start, list(response.output_ids)

        return ask

    def theirs(block_size: int | None) -> Ask:
        def ask(prompt: Prompt, settings: DecodeSettings) -> Answer:
            server.stdin.write(json.dumps(entry(prompt, settings) | {"block_size": block_size}) + "\n")
            server.stdin.flush()
            answer = json.loads(server.stdout.readline())
            return answer["seconds"], answer["output_ids"]

        return ask

    return dict(zip(ARMS, (ours(factory), theirs(None), ours(None), theirs(1)), strict=True))


def measure(asks: Mapping[str, Ask], asked: Sequence[tuple[Prompt, DecodeSettings]], repeats: int) -> dict[str, Any]:
    """Speeds by arm and repeat, and how many outputs differ from the first arm's."""
    names, unlike = list(asks), dict.fromkeys(asks, 0)
    totals = {name: [[0.0, 0] for _ in range(repeats)] for name in names}
    for prompt, settings in asked[:: max(1, len(asked) // 5)]:
        for ask in asks.values():
            ask(prompt, settings)
    for repeat in range(repeats):
        for index, (prompt, settings) in enumerate(tqdm(asked, desc=f"repeat {repeat + 1}", mininterval=2)):
            outputs = {}
            for name in turns(names, index + repeat):
                seconds, outputs[name] = asks[name](prompt, settings)
                totals[name][repeat][0] += seconds
                totals[name][repeat][1] += len(outputs[name])
            for name in names:
                unlike[name] += outputs[name] != outputs[names[0]]
    speeds = {name: [tokens / seconds for seconds, tokens in rows] for name, rows in totals.items()}
    return {"tokens_per_s": speeds, "outputs_unlike_ours": unlike}


def ratio(speeds: Mapping[str, Sequence[float]], first: str, second: str) -> dict[str, float]:
    """Of two arms: median over repeats, and the smallest and the largest."""
    found = [a / b for a, b in zip(speeds[first], speeds[second], strict=True)]
    return {"median": median(found), "low": min(found), "high": max(found)}


def check(
    config: Config, name: str, drafter: Path, python: Path, count: int, repeats: int, threads: int
) -> dict[str, Any]:
    """The whole comparison, as it is written down."""
    torch.set_num_threads(threads)
    target, folder = local_target(config, name)
    asked = asked_of(config, target, count)
    with tempfile.TemporaryDirectory() as exported:
        export_drafter(drafter, METHOD, target, Path(exported))
        command = [python, THEIRS, folder, exported, str(threads)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            versions = json.loads(server.stdout.readline() or "null")
            if versions is None:
                raise ValueError(f"{python} ended without an answer; install dflash[local]==0.1.0 there")
            try:
                found = measure(arms(target, drafter, config, server), asked, repeats)
            finally:
                server.stdin.close()
    speeds = found["tokens_per_s"]
    return found | {
        "ours_over_theirs": ratio(speeds, "ours", "theirs"),
        "plain_ours_over_theirs": ratio(speeds, "ours, plain", "theirs, plain"),
        "ours_over_plain_ours": ratio(speeds, "ours", "ours, plain"),
        "theirs_over_plain_theirs": ratio(speeds, "theirs", "theirs, plain"),
        "prompts": len(asked),
        "repeats": repeats,
        "drafter_sha256": checkpoint_digest(drafter),
        "ours": provenance_short(dtype="float32"),
        "theirs": versions,
    }


def main(argv: list[str] | None = None) -> None:
    parser = options("zlab_speed", __doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each side, which takes turns with the other")
    arguments = parser.parse_args(argv)
    try:
        how = (arguments.python, arguments.prompts, arguments.repeats, arguments.threads)
        facts = check(load_config(arguments.config), arguments.target, arguments.drafter, *how)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")
    print(json.dumps(facts, indent=1))
    if arguments.out:
        write_json(arguments.out, facts)
    if any(facts["outputs_unlike_ours"].values()):
        parser.exit(1, "outputs differ, so the two did not do the same work\n")


if __name__ == "__main__":
    main()
