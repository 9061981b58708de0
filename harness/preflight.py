"""What would stop a later stage, asked before the first long one: a mistake found after an hour of responses is late.

    python -m harness.preflight --config paper      # can this run here, and what will it cost?

Before a target's first long stage `refuse_unusable` asks the code that will run, with what is known by then, and keeps
no rule of its own.  It refuses and makes nothing, so it is no part of what the trajectories depend on
(`harness/stage.py`).
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace

from harness.config import Config, load_config
from harness.data import Task, build_prompts, refuse_overlong, suite_prompts
from harness.score.grade import Limits, self_test
from harness.target import Target
from harness.train.build import drafter_config, refuse_mask_in_text
from harness.train.corpus import Trajectory, split
from methods.recipes import recipe

#: A response just long enough to be trained on: an anchor and a label.
SHORTEST = (0, 0)


def refuse_unusable(config: Config, target: Target, tasks: Sequence[Task]) -> None:
    """Raise ``ValueError`` for suites, drafters or a training split that this target and these training tasks cannot
    have: prompts past the context or without a plain form, blocks, taps or mask tokens outside the target, all prompts
    held out or longer than ``train.max_length``; ``GraderError`` for a grader that fails its own test."""
    refuse_suites(config, target)
    trained = dict.fromkeys(config.entrant(name).weights for name in config.entrants)
    trained = [
        name
        for name in trained
        if recipe(config.entrant(name).recipe).drafts and config.pretrained_for(target.name, name) is None
    ]
    if not trained:
        return
    prompts = build_prompts(tasks, target, config.trajectories.max_new_tokens)
    shortest = [Trajectory(prompt.id, prompt.ids, SHORTEST, 0.0) for prompt in prompts]
    for name in trained:
        own = config.settings_of(name)
        split(shortest, {}, own.train.max_length, own.train.heldout_prompts, own.train.walk_prompts)
        mask = drafter_config(own.drafter, target, config.entrant(name).recipe).mask_token_id
        refuse_mask_in_text(mask, [replace(one, response_ids=()) for one in shortest])


def refuse_suites(config: Config, target: Target) -> None:
    """The part of it that concerns the suites alone: they may change when the trajectories are there already."""
    for name, suite in config.suites.items():
        asked = suite_prompts(name, suite, config.data_root)
        if suite.scored:
            self_test(asked, Limits(run_code=config.run_code))
        build_prompts(asked, target, suite.max_new_tokens)
        for task in asked:
            refuse_overlong(task, target, suite.max_new_tokens)


def main(argv: Sequence[str] | None = None) -> None:
    """Say what a configuration needs and whether it is here.  Code 0 if all of it is, 2 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m harness.preflight", description="Can it run here, at what cost?")
    parser.add_argument("--config", default="pocket", help="a profile or a YAML file")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    try:
        config = load_config(arguments.config, check=False)  # files that are not there are findings, below
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    from harness import readiness  # with torch and the hub's client, which a mistake above need not wait for

    found = readiness.devices(config)
    missing = [finding for finding in found if finding.fault]
    if missing:  # nothing can be measured, and nothing else matters
        more = f" (and {len(missing) - 1} more targets)" if len(missing) > 1 else ""
        parser.exit(2, f"{config.profile} cannot run here: {missing[0].fault}{more}\n")
    models = readiness.models(config)
    offline = any(finding.fault.startswith(readiness.SILENCE) for finding in models)
    found += [*models, *readiness.data(config, offline)]
    budget = readiness.budget(config)
    found += readiness.room(config, budget)
    width = max(len(finding.what) for finding in found)
    for finding in found:
        print(f"{'fault' if finding.fault else 'ok':6} {finding.what:{width}}  {finding.said}")
    print()
    print(readiness.table(budget))
    faults = [finding for finding in found if finding.fault]
    if faults:
        parser.exit(2, "\n" + "".join(f"{finding.what}: {finding.fault}\n" for finding in faults))


if __name__ == "__main__":
    main()
