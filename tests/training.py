"""A tiny corpus, target and trainer for the tests of harness/train: real classes, seconds at most."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.target import Target
from harness.train.build import build_drafter, build_rounds
from harness.train.corpus import Corpus, Trajectory, split
from harness.train.features import FeatureStore
from harness.train.guard import Stopped
from harness.train.loop import Stores, Trainer
from methods.objectives import objective
from methods.recipes import RECIPES
from tests.drafting import METHODS


class StopAt:
    """A `between` that stops the run the n-th time it is asked."""

    def __init__(self, count):
        self.left = count

    def __call__(self):
        self.left -= 1
        if self.left < 0:
            raise Stopped(15, "test")


def config(work: Path, drafter: dict[str, Any] | None = None, **train: Any) -> Config:
    """A configuration for the tiny target; keyword arguments go into the ``train`` section, `drafter` into its own."""
    settings = {
        "steps": 12,
        "batch_sequences": 3,
        "anchors": 4,
        "eval_every": 6,
        "checkpoint_every": 4,
        "max_length": 64,
        "heldout_prompts": 4,
        "walk_prompts": 2,
        "head_chunk": 16,
        "learning_rate": 3e-3,
        "warmup_ratio": 0.1,
    }
    return Config.model_validate(
        {
            "profile": "tiny",
            "output_dir": str(work / "out"),
            "work_dir": str(work / "work"),
            "targets": {"tiny": {"source": "nowhere"}},
            "suites": {"pocket_word": {"source": "pocket", "prompts": 1, "max_new_tokens": 8}},
            "methods": METHODS,
            "drafter": {
                "block_size": 6,
                "num_layers": 1,
                "taps": [0, 2],
                "head": {"gru_size": 12, "rank": 6},
            }
            | (drafter or {}),
            "trajectories": {"source": "pocket", "prompts": 6, "max_new_tokens": 12, "batch_size": 4},
            "train": settings | train,
        }
    )


def trajectories(count: int = 14, seed: int = 0) -> list[Trajectory]:
    """Responses that count upwards: something a drafter can learn, whatever the target thinks of it."""
    draw = random.Random(seed)
    made = []
    for i in range(count):
        prompt = tuple(draw.randrange(100) for _ in range(draw.randint(3, 9)))
        start = draw.randrange(100)
        response = tuple((start + k) % 100 for k in range(draw.randint(6, 20)))
        made.append(Trajectory(f"p{i}", prompt, response, float(i % 2)))
    return made


def corpus(cfg: Config, lines: list[Trajectory] | None = None) -> Corpus:
    manifest = {"max_new_tokens": 12, "stop_strings": [], "shards": []}
    train = cfg.train
    return split(lines or trajectories(), manifest, train.max_length, train.heldout_prompts, train.walk_prompts)


def trainer(
    target: Target,
    cfg: Config,
    work: Path,
    seed: int = 0,
    data: Corpus | None = None,
    method: str = "dflash",
    **kwargs: Any,
) -> Trainer:
    data = data or corpus(cfg)
    drafter = build_drafter(cfg, target, method, seed, data.train)
    budgets = {"budget_gb": cfg.train.feature_cache_gb, "key_budget_gb": cfg.train.key_cache_gb}
    parts = (data.train, data.heldout, data.greedy)
    stores = Stores(*(FeatureStore(target, drafter.config.taps, part, **budgets) for part in parts))
    rounds = build_rounds(cfg.train, drafter, target, seed)
    return Trainer(
        drafter,
        objective(RECIPES[method].objective, cfg.train.gamma),
        data,
        stores,
        rounds,
        cfg.train,
        seed,
        work,
        {"target": target.fingerprint},
        **kwargs,
    )
