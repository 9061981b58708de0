"""Greedy decoding by z-lab's released package, for `tests/cross/zlab_parity.py`; it imports nothing of this project.

    ENVIRONMENT/bin/python tests/cross/zlab_decode.py JOB.json ANSWER.json

The environment has ``dflash[local]==0.1.0``.  A job names the folders of target and drafter and lists prompts; each is
decoded twice: as released, and past its stops and its budget by one block, so that no step is cut short and every
`acceptance_lengths` entry is raw accepted + 1.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from dflash import model as released
from transformers import AutoModelForCausalLM


def main(job_path: str, answer_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    released._cuda_time = time.perf_counter  # its statistics wait for a GPU, which is not needed
    options = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    target = AutoModelForCausalLM.from_pretrained(job["target"], **options).eval()
    draft = released.DFlashDraftModel.from_pretrained(job["drafter"], **options).eval()
    answers = [
        {
            "released": _decode(draft, target, prompt, prompt["max_new_tokens"], prompt["stop_ids"]),
            "unstopped": _decode(draft, target, prompt, prompt["max_new_tokens"] + draft.block_size, None),
        }
        for prompt in job["prompts"]
    ]
    versions = {name: version(name) for name in ("dflash", "torch", "transformers")}
    Path(answer_path).write_text(json.dumps({"versions": versions, "answers": answers}), encoding="utf-8")


def _decode(draft, target, prompt: dict, budget: int, stops: list[int] | None) -> dict:
    found = released.dflash_generate(
        draft, target, torch.tensor([prompt["ids"]]), budget, stops, temperature=0.0, return_stats=True
    )
    return {
        "output_ids": found.output_ids[0, found.num_input_tokens :].tolist(),
        "acceptance_lengths": found.acceptance_lengths,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
