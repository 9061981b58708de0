"""What the pipeline must make, and what each result depends on: settings, code, files.

It knows the layout of the results folder and, for every stage, its own slice of the configuration.
Snakemake records these slices and makes a result again when one of them changes, and only then; so a slice
holds everything that can change the result and nothing else.  It does not know how a stage works.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.config import (
    Config,
    ConfigError,
    dump,
    load_config,
    local_path,
    local_source,
    project_path,
    temperature_label,
)
from harness.fingerprints import check_file_names, content_digest, text
from harness.prompt_sections import CODE_SOURCES
from harness.provenance import origin_path
from harness.report.inputs import figure_names
from harness.sections import OF_LATER_ROUNDS
from harness.stage import digest
from methods.recipes import RECIPES, Recipe

#: Of a drafter that was trained.
CURVE = "learning_curve.csv"
#: Settings of training that only rounds after the first look at.
OF_ROUNDS = OF_LATER_ROUNDS | {"key_cache_gb"}


class Plan:
    """One configuration as the rules see it.  `jobs` are addressed by Snakemake's wildcards."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.out, self.figures, self.work = config.output_dir, config.figures_dir, config.work_dir
        entrants = [config.entrant(name) for name in config.entrants]
        self.entrants = config.entrants
        self.drafting = [e.name for e in entrants if RECIPES[e.recipe].drafts]
        #: Who has a drafter of its own, trained or imported, in the order they are needed.
        self.lenders = list(dict.fromkeys(e.weights for e in entrants if RECIPES[e.recipe].drafts))
        #: (target, lender) of the drafters that are imported; all others are trained.
        self.imported = [(t, name) for t in config.targets for name in self.lenders if config.pretrained_for(t, name)]
        pairs = [(t, name) for name in self.lenders for t in config.targets if (t, name) not in self.imported]
        #: Who is trained for at least one target.
        self.trained = list(dict.fromkeys(name for _, name in pairs))
        self.temperatures = [temperature_label(value) for value in config.temperatures]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Plan:
        """From Snakemake's `config`: `profile` names the base (default pocket), everything else is laid over it.

        Raises ConfigError for anything that cannot be used.
        """
        if "extends" in settings and "profile" not in settings:
            raise ConfigError("a configuration file that extends another needs a name of its own: add 'profile: mine'")
        profile = str(settings.get("profile", "pocket"))
        named = {"extends", "profile"} if profile.endswith((".yaml", ".yml")) else {"extends"}  # a file names itself
        over = {key: value for key, value in settings.items() if key not in named}
        config = load_config(settings.get("extends") or profile, over)
        check_file_names(config)
        return cls(config)

    # -- files ---------------------------------------------------------------------------------------------

    def write_config(self) -> Path:
        """The resolved configuration, for the stages to read: one file per content; an edited one is written again."""
        content = dump(self.config)
        path = Path(self.work) / f"config.{hashlib.sha256(content.encode()).hexdigest()[:12]}.yaml"
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            partial.write_text(content, encoding="utf-8")
            partial.replace(path)
        return path

    def drafter(self, target: str, method: str, seed: int | str) -> list[str]:
        """Files of the drafter an entrant decodes with; none for one that has no drafter."""
        weights = self.config.entrant(method).weights
        folder = f"{self.out}/drafters/{target}/{weights}-seed{seed}"
        return [f"{folder}/config.json", f"{folder}/model.safetensors"] if weights in self.lenders else []

    def drafters(self, target: str, seeds: Iterable[int]) -> list[str]:
        """Files of the drafters of Table 1."""
        files = [file for seed in seeds for name in self.config.methods for file in self.drafter(target, name, seed)]
        return list(dict.fromkeys(files))

    def marks(self, name: str, entrants: Iterable[str] | None = None) -> list[str]:
        """done.json or learning_curve.csv of the drafters behind `entrants` (default: the methods); those that are
        imported have no curve."""
        names = self.config.methods if entrants is None else entrants
        lenders = dict.fromkeys(self.config.entrant(entrant).weights for entrant in names)
        return [
            f"{self.out}/drafters/{target}/{weights}-seed{seed}/{name}"
            for target in self.config.targets
            for weights in lenders
            if weights in self.lenders and not (name == CURVE and (target, weights) in self.imported)
            for seed in self.config.seeds
        ]

    def targets_of(self, *, imported: bool) -> str:
        """A pattern for the wildcard `target` in a drafter's path, where that drafter is imported, or where it is
        trained.  No wildcard alone can tell, so it looks at the method behind it."""
        pairs = [re.escape(f"{target}/{name}-seed") + "[0-9]+/" for target, name in self.imported]
        ahead = f"(?{'=' if imported else '!'}{'|'.join(pairs)})" if pairs else "(?!)" * imported
        return f"{ahead}(?:{self.any_of(self.config.targets)})"

    def records_of(self, target: str, method: str, temperature: str, seed: int | str) -> list[str]:
        """What one decoding job writes: a file per suite."""
        folder = f"{self.out}/records/{target}/{method}"
        return [f"{folder}/{suite}-T{temperature}-seed{seed}.jsonl" for suite in self.config.suites]

    def origins_of(self, target: str, method: str, temperature: str, seed: int | str) -> list[str]:
        """What stands beside each of these files."""
        return [str(origin_path(Path(file))) for file in self.records_of(target, method, temperature, seed)]

    def records(self, entrants: Iterable[str] | None = None) -> list[str]:
        """All records of `entrants` (default: the methods)."""
        return [
            file
            for target in self.config.targets
            for method in (self.config.methods if entrants is None else entrants)
            for temperature in self.temperatures
            for seed in self.config.seeds
            for file in self.records_of(target, method, temperature, seed)
        ]

    def timings(self) -> list[str]:
        return [f"{self.out}/timing/{target}.jsonl" for target in self.config.targets]

    def tables(self) -> list[str]:
        """Tables beside Table 1, as far as there is something to put into them."""
        loaded = ["table2.csv", "table2.md", "concurrency.csv"] if self.config.concurrency.suites else []
        ablated = ["table3.csv", "table3.md", "comparisons.csv", "ablations.csv"] if self._ablated else []
        traced = ["positions.csv"] if self._traced else []
        return [f"{self.out}/{name}" for name in (*loaded, *ablated, *traced, "latency.csv", "reproduction.md")]

    def measured(self) -> list[str]:
        """What holds a row per target, entrant, temperature and suite."""
        return [f"{self.out}/cells.csv", *([f"{self.out}/ablations.csv"] if self._ablated else [])]

    def figures_made(self) -> list[str]:
        return [file for name in figure_names(self.config) for file in self.figure_files(name)]

    @property
    def _traced(self) -> bool:
        return bool(self.drafting) and self.config.decode.trace

    @property
    def _ablated(self) -> bool:
        return bool(self.config.ablations or self.config.comparisons)

    def figure_files(self, name: str) -> list[str]:
        return [f"{self.figures}/{name}.{kind}" for kind in self.config.report.figure_formats]

    def any_of(self, names: Iterable[str]) -> str:
        """A pattern for a wildcard that may take these values only."""
        return "|".join(re.escape(str(name)) for name in names) or "(?!)"

    # -- slices of the configuration, as text --------------------------------------------------------------

    def trajectories(self, wildcards) -> str:
        """Settings, and of every source the suite it is asked like and the file it is read from."""
        asked = self.config.trajectories
        behind = {source: self._behind(source) for source in asked.shares}
        files = {s: content_digest(project_path(file)) for s in asked.shares if (file := asked.file_of(s))}
        named = {s: asked.datasets[s].model_dump() for s in asked.shares if s in asked.datasets}
        if named:  # their rows are chosen with a look at what is evaluated
            fields = {"source", "prompts", "sample_seed", "shots"}
            named["evaluated"] = {name: one.model_dump(include=fields) for name, one in self.config.suites.items()}
        return text(
            target=self._trainer(wildcards.target),
            trajectories=asked.model_dump(exclude={"datasets"}),
            behind=behind,
            prompts=files,
            **({"datasets": named} if named else {}),
        )

    def _behind(self, source: str) -> dict[str, Any]:
        """What a training source takes over from the suite it is asked like."""
        twin = self.config.twin(source)
        # pocket prompts take no shots, which are what the seed draws
        fields = {"stop_strings"} if source == "pocket" else {"stop_strings", "shots", "sample_seed"}
        return {} if twin is None else twin.model_dump(include=fields)

    def train(self, wildcards) -> str:
        """Settings of the run, without those that only other methods look at."""
        config, chosen = self.config.settings_of(wildcards.method), self._recipe(wildcards.method)
        drafter, train = config.drafter.model_dump(), config.train.model_dump()
        if chosen.head == "plain":
            del drafter["head"], train["base_until"]
        if chosen.relay == "none":
            del drafter["relay"]
        if not config.train.rounds_with(chosen.relay != "none"):
            train = {key: value for key, value in train.items() if key not in OF_ROUNDS}
        return text(target=self._trainer(wildcards.target), drafter=drafter, train=train)

    def source(self, wildcards) -> str:
        """Where an imported drafter comes from, as configured."""
        return self.config.pretrained_for(wildcards.target, wildcards.method).source

    def pretrained(self, wildcards) -> str:
        given = self.config.pretrained_for(wildcards.target, wildcards.method)
        content = content_digest(local_path(given.source, "pretrained source"))
        return text(target=self._target(wildcards.target), pretrained=given.model_dump(), content=content)

    def decode(self, wildcards) -> str:
        suites = {name: suite.model_dump() for name, suite in self.config.suites.items()}
        entrant = self.config.entrant(wildcards.method)
        relay = {} if entrant.relay else {"relay": "off"}
        decode = self.config.decode.model_dump(exclude={"threads"})
        sources = {suite.source for suite in self.config.suites.values()}
        code = {"run_code": self.config.run_code} if CODE_SOURCES & sources else {}
        return text(target=self._target(wildcards.target), suites=suites, decode=decode, **relay, **code)

    def timing(self, wildcards) -> str:
        whole = self.config.model_dump(include={"suites", "methods", "decode", "timing"})
        off = [name for name in self.config.methods if not self.config.entrant(name).relay]
        more = {"relay_off": off} if off else {}
        return text(target=self._target(wildcards.target), seed=self.config.seeds[0], **whole, **more)

    def throughput(self, wildcards) -> str:
        """Prompts, and how they are decoded; not how many are decoded at a time where responses are recorded."""
        whole = self.config.model_dump(include={"methods", "concurrency"})
        suites = {
            name: self.config.suites[name].model_dump(exclude={"prompts"}) for name in self.config.concurrency.suites
        }
        decode = self.config.decode.model_dump(include={"max_proposals"})
        off = [name for name in self.config.methods if not self.config.entrant(name).relay]
        more = {"suites": suites, "decode": decode, "relay_off": off, "seed": self.config.seeds[0]}
        return text(target=self._target(wildcards.target), **more, **whole)

    def latency(self, _wildcards=None) -> str:
        """What the breakdown of a round is about."""
        whole = {"methods": self.config.methods, "temperatures": self.config.timing.temperatures}
        return text(targets=list(self.config.targets), **whole)

    def concurrency(self, _wildcards=None) -> str:
        """What Table 2 is about."""
        return text(targets=list(self.config.targets), **self.config.model_dump(include={"methods", "concurrency"}))

    def cells(self, _wildcards=None) -> str:
        listed = {"suites": list(self.config.suites), "targets": list(self.config.targets)}
        whole = self.config.model_dump(include={"methods", "temperatures", "seeds"})
        return text(report=self.config.report.model_dump(exclude={"figure_formats"}), **listed, **whole)

    def ablations(self, _wildcards=None) -> str:
        """What Table 3 is about, and how each of its entrants differs."""
        variants = {name: found.model_dump() for name, found in self.config.variants.items() if name in self.entrants}
        more = self.config.model_dump(include={"ablations", "comparisons"})
        return text(base=self.cells(), variants=variants, **more)

    def positions(self, _wildcards=None) -> str:
        listed = {"suites": list(self.config.suites), "targets": list(self.config.targets), "entrants": self.drafting}
        return text(**listed, **self.config.model_dump(include={"temperatures", "seeds"}))

    def figure(self, name: str) -> str:
        """What a figure shows beside the tables it is drawn from."""
        whole = self.config.model_dump(include={"methods", "seeds"})
        if name in ("concurrency", "latency_breakdown"):
            del whole["seeds"]  # speed is that of the first seed's drafters
        more = {"ablations": self.config.ablations} if name in ("training", "dose") else {}
        return text(targets=list(self.config.targets), confidence=self.config.report.confidence, **whole, **more)

    def code(self, stage: str, methods: Iterable[str] | None = None, suites: Iterable[str] | None = None) -> str:
        """Digest of the code behind a stage, with the components of `methods` and the loaders of `suites` (default:
        all in use)."""
        names = self.config.suites if suites is None else suites
        sources = {self.config.suites[name].source for name in names}
        recipes = {self.config.entrant(name).recipe for name in (self.entrants if methods is None else methods)}
        return digest(stage, recipes, sources=sources)

    def threads(self, stage: str, all_of_them: int) -> int:
        """CPU threads of one job of a stage (`train`, `decode`); with fewer than all, jobs run side by side."""
        asked = {"train": self.config.train.threads, "decode": self.config.decode.threads}[stage]
        return min(asked or all_of_them, all_of_them)

    def train_length(self, wildcards) -> int:
        """Roughly how long a training takes beside the others, in steps of a plain drafter: the longest start first, so
        that no core waits for one at the end."""
        train, chosen = self.config.settings_of(wildcards.method).train, self._recipe(wildcards.method)
        rounds = train.rounds_with(chosen.relay != "none")
        return round(train.steps * (1 + rounds) * (1 if chosen.head == "plain" else 1.25))

    @property
    def before_training(self) -> int:
        """A priority above that of every training."""
        lengths = [self.train_length(SimpleNamespace(method=name)) for name in self.lenders]
        return 1 + max(lengths, default=0)

    def _recipe(self, entrant: str) -> Recipe:
        return RECIPES[self.config.entrant(entrant).recipe]

    def trajectories_code(self) -> str:
        """Digest of the code behind the trajectories, with the loaders of their prompts; no method takes part."""
        sources = self.config.trajectories.shares
        return digest("trajectories", sources={"pocket" if s.startswith("pocket_") else s for s in sources})

    @lru_cache  # noqa: B019  (one plan per run)
    def _target(self, name: str) -> dict[str, Any]:
        """What a target decodes as."""
        target = self.config.targets[name]
        return {**target.model_dump(exclude={"training_dtype"}), "content": content_digest(local_source(target))}

    def _trainer(self, name: str) -> dict[str, Any]:
        """What it is trained as."""
        return self._target(name) | {"dtype": self.config.targets[name].in_training.dtype}
