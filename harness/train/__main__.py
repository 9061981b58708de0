"""The training stage: one drafter for one target, method and seed, checked against the decoder, then
exported.

    python -m harness.train --config pocket --target pocket --method dflash --seed 0 --out
    results/drafters/pocket/dflash-seed0

It knows the order of the stage and what lies in its two folders.  The work folder keeps the resumable state;
the output folder gets model.safetensors, config.json, learning_curve.csv and, last of all, done.json.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness import stage
from harness.config import Config, ConfigError, load_config
from harness.preflight import refuse_suites
from harness.provenance import provenance
from harness.score.grade import GraderError
from harness.target import Target
from harness.train.build import build_drafter, build_rounds
from harness.train.corpus import Corpus, read_trajectories, split
from harness.train.features import FeatureStore
from harness.train.guard import Lifeline, RunLocked, locked
from harness.train.loop import SAVED, Outcome, Stores, Trainer
from harness.train.prompts import refuse_unchosen, tasks_of
from harness.train.state import digest, refuse_damaged, write_bytes, write_json
from harness.train.walk import WalkMismatch, WalkReport, accept_walk, check
from methods.checkpoint import load_drafter, save_drafter
from methods.drafter import BlockDrafter
from methods.heads import DraftError
from methods.objectives import objective
from methods.recipes import recipe

log = logging.getLogger(__name__)

#: Held-out and walked trajectories are few; their features are always kept.
ALWAYS_KEPT = float("inf")


def run(config: Config, name: str, method: str, seed: int, trajectories: Path, out: Path) -> dict[str, Any]:
    """Train, check, export.  Returns what done.json holds.  method: a recipe or a variant that is trained.

    Raises before any long work for an unknown target, a method without a drafter, trajectories of another
    target, template or thinking mode, or a corpus without supervised tokens.
    """
    entrant = config.entrant(method)
    chosen = recipe(entrant.recipe)
    if not chosen.drafts:
        raise ConfigError(f"method {method!r} has no drafter to train; it is the target alone")
    if entrant.weights != method:
        raise ConfigError(f"{method!r} borrows the drafter of {entrant.weights!r}; train that one")
    config = config.settings_of(method)
    source = config.target(name).in_training
    settings = config.train
    if settings.threads:
        torch.set_num_threads(settings.threads)
    lines, manifest = read_trajectories(trajectories)
    corpus = split(lines, manifest, settings.max_length, settings.heldout_prompts, settings.walk_prompts)
    target = Target.load(source, name)
    other = refuse_strangers(target, corpus, source.allow_other)
    refuse_suites(config, target)  # they may be newer than the trajectories,
    refuse_unchosen(config, tasks_of(config, target), lines)  # and share prompts with them, which this refuses
    drafter = build_drafter(config, target, chosen.name, seed, corpus.train)
    rounds = build_rounds(settings, drafter, target, seed)
    describe(corpus, drafter)
    work = Path(config.work_dir) / "train" / name / f"{method}-seed{seed}"
    done = out / "done.json"
    with locked(work), Lifeline() as life:
        refuse_damaged(work / "state.pt", SAVED)
        done.unlink(missing_ok=True)  # it must not vouch for a run that is only beginning
        stores = Stores(
            *(
                FeatureStore(target, drafter.config.taps, part, budget, life.check, key_budget_gb=keys)
                for part, budget, keys in (
                    (corpus.train, settings.feature_cache_gb, settings.key_cache_gb * rounds.uses_past),
                    (corpus.heldout, ALWAYS_KEPT, 0.0),
                    (corpus.greedy, ALWAYS_KEPT, 0.0),
                )
            )
        )
        identity = {
            "method": method,
            "target": target.fingerprint,
            "corpus": digest(manifest["shards"]),
            "code": stage.digest("train", [chosen.name]),
            "dtype": str(target.dtype),
            "device": target.device.type,
        }
        trainer = Trainer(
            drafter,
            objective(chosen.objective, settings.gamma),
            corpus,
            stores,
            rounds,
            settings,
            seed,
            work,
            identity,
            life.check,
        )
        outcome = trainer.run()
        # The target would not decode the text of another one, so there the walk has nothing to be held against.
        report = export(target, drafter, corpus, outcome, work, out, walked=not other)
        trainer.curve.write(out / "learning_curve.csv")
        facts = summary(trainer, outcome, report, identity) | ({"other": other} if other else {})
        write_json(done, facts)
    log.info("%d steps (%s), accept_walk %s -> %s", outcome.steps, outcome.reason, facts["accept_walk"], out)
    return facts


def refuse_strangers(target: Target, corpus: Corpus, allowed: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Facts in which the trajectories are those of another target: what they have, and what this one has.

    Raises ``ValueError`` for one that is not `allowed`, naming both.
    """
    found = {}
    for key, ours in (
        ("fingerprint", target.fingerprint),
        ("template_hash", target.template_hash),
        ("thinking", target.thinking),
        ("dtype", str(target.dtype).removeprefix("torch.")),
    ):
        theirs = corpus.manifest[key]
        if theirs != ours:
            if key not in allowed:
                raise ValueError(
                    f"the trajectories were made with {key} {theirs!r}, target {target.name} has {ours!r}; generate "
                    f"them again, or name {key} in allow_other of the target if this is meant"
                )
            log.warning("trajectories made with %s %r, target %s has %r", key, theirs, target.name, ours)
            found[key] = [theirs, ours]
    return found


def describe(corpus: Corpus, drafter: BlockDrafter) -> None:
    """Say what is about to be trained on what."""
    log.info(
        "corpus: %d trajectories to train on, %d held out (%d walked), %d too short, %.0f %% supervised",
        len(corpus.train),
        len(corpus.heldout),
        len(corpus.greedy),
        corpus.dropped,
        100 * corpus.supervised_share,
    )
    count = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    config = drafter.config
    log.info(
        "drafter: %s, %.2fM trainable parameters, %d layers, block %d, taps %s, mask token %d, %d threads",
        config.recipe,
        count / 1e6,
        config.num_layers,
        config.block_size,
        list(config.taps),
        config.mask_token_id,
        torch.get_num_threads(),
    )


def export(
    target: Target,
    drafter: BlockDrafter,
    corpus: Corpus,
    outcome: Outcome,
    work: Path,
    out: Path,
    *,
    walked: bool,
) -> WalkReport | None:
    """Write the checkpoint, read it back, decode with it, and only then move it to `out`.

    Returns the decoder's report; None where no greedy trajectory was held out or `walked` is False (then there is
    nothing that it should agree with).
    """
    folder = work / "export"
    shutil.rmtree(folder, ignore_errors=True)
    save_drafter(folder, drafter)
    expected = {"recipe": drafter.config.recipe, "target_fingerprint": target.fingerprint}
    saved = load_drafter(folder, target.binding, expected, dtype=target.dtype, device=target.device).eval()
    report = None
    if corpus.greedy and walked:
        manifest = corpus.manifest
        report = check(
            target,
            saved,
            corpus.greedy,
            outcome.walks,
            max_new_tokens=manifest["max_new_tokens"],
            stop_strings=manifest["stop_strings"],
        )
        log.info(
            "decoded %d held-out prompts: %d steps, %.3f tokens a step, as walked (%d near ties)",
            report.prompts,
            report.steps,
            report.accept,
            len(report.near_ties),
        )
    else:
        log.warning("no greedy trajectory is held out, so the walk cannot be checked against the decoder")
    for file in sorted(folder.iterdir()):
        write_bytes(out / file.name, file.read_bytes())
    return report


def summary(trainer: Trainer, outcome: Outcome, report: WalkReport | None, identity: dict[str, Any]) -> dict[str, Any]:
    """What done.json says.  plateau: the curve is flat; walk_gain: relative gain of accept_walk since the
    evaluation before the last third."""
    last = trainer.curve.rows[-1] if trainer.curve.rows else {}
    gain = trainer.curve.walk_gain()
    return {
        "steps": outcome.steps,
        "planned_steps": trainer.settings.steps,
        "stopped_by": outcome.reason,
        "plateau": outcome.plateau,
        "plateau_percent": trainer.settings.plateau_percent,
        "walk_gain_last_third": gain if gain == gain else None,
        "seconds": round(outcome.seconds, 1),
        "supervised_blocks": outcome.blocks,
        "seed": trainer.seed,
        "accept_walk": accept_walk(outcome.walks) if outcome.walks else None,
        "last": {key: value for key, value in last.items() if value == value},
        "check": report.to_dict() if report else None,
        "identity": identity,
        "made_by": provenance(),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.train", description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    parser.add_argument("--target", required=True, help="a name under targets:")
    parser.add_argument("--method", required=True, help="a recipe or variant that is trained, e.g. dflash")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trajectories", type=Path, help="their folder; default <output_dir>/trajectories/<target>")
    parser.add_argument("--out", required=True, type=Path, help="folder for the trained drafter")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        config = load_config(arguments.config)
        folder = arguments.trajectories or Path(config.output_dir) / "trajectories" / arguments.target
        run(config, arguments.target, arguments.method, arguments.seed, folder, arguments.out)
    except (ValueError, OSError, FloatingPointError, DraftError, GraderError, RunLocked, WalkMismatch) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
