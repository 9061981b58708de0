"""Timed greedy decoding by z-lab's released package, for `tests/cross/zlab_speed.py`; imports nothing of this project.

    ENVIRONMENT/bin/python tests/cross/zlab_serve.py TARGET DRAFTER THREADS

The environment has ``dflash[local]==0.1.0``.  A line of JSON comes in for every prompt and one goes out: the ids of the
response and the seconds of the released loop, prefill included, nothing else.  The first line out has the versions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version

import torch
from dflash import model as released
from transformers import AutoModelForCausalLM


def main(target_folder: str, drafter_folder: str, threads: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    torch.set_num_threads(int(threads))
    options = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    target = AutoModelForCausalLM.from_pretrained(target_folder, **options).eval()
    draft = released.DFlashDraftModel.from_pretrained(drafter_folder, **options).eval()
    _say(answers, {name: version(name) for name in ("dflash", "torch", "transformers")})
    for line in sys.stdin:
        asked = json.loads(line)
        ids = torch.tensor([asked["ids"]])
        start = time.perf_counter()
        with torch.inference_mode():
            found = released.dflash_generate(
                draft, target, ids, asked["max_new_tokens"], asked["stop_ids"], block_size=asked["block_size"]
            )
        seconds = time.perf_counter() - start
        _say(answers, {"seconds": seconds, "output_ids": found[0, ids.shape[1] :].tolist()})


def _say(answers, value: dict) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
