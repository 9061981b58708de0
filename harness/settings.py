"""The settings of one run: all sections together, and who takes part.

It knows how sections agree, what a name among the methods stands for, and what a path in a setting means.  It
does not know where a configuration comes from, nor what any stage does with it, and imports neither torch nor
Snakemake.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from harness.config_errors import ConfigError, nearest
from harness.prompt_sections import ASKED_LIKE, SuiteConfig, TrajectoriesConfig
from harness.sections import (
    ConcurrencyConfig,
    DecodeConfig,
    DrafterSettings,
    Name,
    Pretrained,
    ReportConfig,
    Section,
    Seed,
    TargetConfig,
    TimingConfig,
    TrainConfig,
    Variant,
    distinct,
)
from methods.recipes import RECIPES

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Entrant:
    """What one name in `methods` or `ablations` stands for."""

    name: str
    recipe: str
    weights: str
    """The entrant whose training made the drafter: itself, or whom it borrows from."""
    relay: bool
    label: str


class Config(Section):
    """One run of the pipeline, whole."""

    profile: Name
    output_dir: str | None = None
    """null: results for the pocket profile, results/<profile> for every other."""
    figures_dir: str | None = None
    """null: figures for the pocket profile, figures/<profile> for every other."""
    work_dir: str | None = None
    """Checkpoints and partial lines, kept between runs, never an output of a rule; null: work/<profile>."""
    data_dir: str | None = None
    """Folder with the real suites' files; null: the environment variable HARNESS_DATA_DIR, else a hub."""
    run_code: bool = False
    """Run the code that a target wrote, to grade it: in a process with limits, which is no security sandbox.  Off: its
    answers are kept and have no score."""
    targets: dict[Name, TargetConfig] = Field(min_length=1)
    suites: dict[Name, SuiteConfig] = Field(min_length=1)
    methods: list[Name]
    """Of Table 1: recipes (methods/recipes.py; ar is the target alone) and variants."""
    variants: dict[Name, Variant] = {}
    """Controls and ablations by name; one is trained and decoded if `methods` or `ablations` names it."""
    pretrained: dict[Name, dict[Name, Pretrained]] = {}
    """By target and method (a recipe or a variant that is trained): the checkpoint to import instead of training."""
    ablations: list[Name] = []
    """Of Table 3, in its order."""
    comparisons: list[tuple[Name, Name]] = []
    """Pairs whose gain, first over second, Table 3 states; one with a side that is not decoded is named there."""
    temperatures: list[float] = [0.0, 1.0]
    seeds: list[Seed] = [0]
    """A seed makes a drafter, and the draws at T > 0."""
    decode: DecodeConfig = DecodeConfig()
    drafter: DrafterSettings = DrafterSettings()
    trajectories: TrajectoriesConfig
    train: TrainConfig
    timing: TimingConfig = TimingConfig()
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    report: ReportConfig = ReportConfig()

    @model_validator(mode="before")
    @classmethod
    def fill_folders(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("profile"), str):
            return data
        name = data["profile"]
        under = "" if name == "pocket" else f"/{name}"
        folders = {
            "output_dir": f"results{under}",
            "figures_dir": f"figures{under}",
            "work_dir": f"work/{name}",
        }
        return {**data, **{key: data.get(key) or value for key, value in folders.items()}}

    @field_validator("suites")
    @classmethod
    def named_apart(cls, suites: dict[str, SuiteConfig]) -> dict[str, SuiteConfig]:
        if "avg" in suites:
            raise ValueError("a suite named 'avg' would be taken for the average over suites; name it otherwise")
        return suites

    @field_validator("methods", "seeds")
    @classmethod
    def distinct_names(cls, values: list) -> list:
        return distinct(values)

    @field_validator("temperatures")
    @classmethod
    def usable_temperatures(cls, values: list[float]) -> list[float]:
        for value in values:
            if float(f"{value:g}") != value:
                raise ValueError(f"{value!r} has more than the six digits of a file name; write {value:g}")
        return distinct(values, low=0.0)

    @model_validator(mode="after")
    def variants_are_usable(self) -> Config:
        for name, variant in self.variants.items():
            if name in RECIPES:
                raise ValueError(f"variants: {name!r} is the name of a recipe; name the variant otherwise")
            for key in ("train", "drafter"):
                lay_over(getattr(self, key), getattr(variant, key), f"variants.{name}.{key}")
            if variant.method is not None and variant.method not in trained_recipes():
                raise ValueError(f"variants.{name}: {_unknown(variant.method, trained_recipes())}")
            self._refuse_empty(name, variant)
            lenders = [*trained_recipes(), *(other for other, v in self.variants.items() if v.method)]
            if variant.weights is not None and variant.weights not in lenders:
                raise ValueError(f"variants.{name}.weights: {_unknown(variant.weights, lenders)}")
        return self

    def _refuse_empty(self, name: str, variant: Variant) -> None:
        """A control that changes nothing would stand in a table under a name that says it does."""
        if name in ("avg", "generate"):
            raise ValueError(f"variants: {name!r} has a meaning in the tables; name the variant otherwise")
        lender = self.variants.get(variant.weights or "", variant)
        found = RECIPES.get(variant.method or lender.method or variant.weights or "")
        if found is None:
            return  # named wrongly, which is said elsewhere
        if found.relay == "none" and ("relay" in variant.drafter or variant.relay == "off"):
            raise ValueError(f"variants.{name}: {found.name!r} has no relay to change; remove the setting")
        if found.head == "plain" and "head" in variant.drafter:
            raise ValueError(f"variants.{name}: {found.name!r} has a head without settings; remove drafter.head")

    @model_validator(mode="after")
    def imports_are_usable(self) -> Config:
        for target, drafters in self.pretrained.items():
            if target not in self.targets:
                hint, known = nearest(target, self.targets), ", ".join(self.targets)
                raise ValueError(f"pretrained: no target {target!r}{hint}; the configuration has {known}")
            for name, given in drafters.items():
                self._refuse_import(f"pretrained.{target}.{name}", name, given)
        return self

    def _refuse_import(self, place: str, name: str, given: Pretrained) -> None:
        """A checkpoint can stand in for a training, of the recipe that its format holds, and nowhere else."""
        lenders = [*trained_recipes(), *(other for other, v in self.variants.items() if v.method)]
        if name not in lenders:
            raise ValueError(f"{place}: {_unknown(name, lenders)}")
        variant = self.variants.get(name)
        found = variant.method if variant else name
        if found != given.format:  # a format is named after the recipe whose drafters it holds
            raise ValueError(f"{place}: format {given.format!r} holds no drafter of recipe {found!r}")
        if variant and (variant.train or variant.drafter):
            raise ValueError(f"{place}: it is imported, so its settings of train and drafter would change nothing")

    @model_validator(mode="after")
    def entrants_are_known(self) -> Config:
        valid = [*method_names(), *self.variants]
        named = {"methods": self.methods, "ablations": self.ablations}
        for key, names in (named | {"comparisons": [name for pair in self.comparisons for name in pair]}).items():
            for name in names:
                if name not in valid:
                    raise ValueError(f"{key}: {_unknown(name, valid)}")
        same = next((pair for pair in self.comparisons if pair[0] == pair[1]), None)
        if same:
            raise ValueError(f"comparisons: {same[0]!r} is compared with itself")
        if len(set(self.ablations)) < len(self.ablations):
            raise ValueError(f"ablations names a method twice: {self.ablations}")
        return self

    @model_validator(mode="after")
    def load_is_of_known_suites(self) -> Config:
        for name in self.concurrency.suites:
            if name not in self.suites:
                hint, known = nearest(name, self.suites), ", ".join(self.suites)
                raise ValueError(f"concurrency.suites: no suite {name!r}{hint}; name one of {known}, or none of them")
        return self

    def entrant(self, name: str) -> Entrant:
        """What `name` stands for.  Raises ConfigError that lists the names there are."""
        if name in RECIPES:
            return Entrant(name, name, name, True, name)
        if name not in self.variants:
            raise ConfigError(_unknown(name, [*method_names(), *self.variants]))
        variant = self.variants[name]
        if variant.method is not None:
            return Entrant(name, variant.method, name, variant.relay == "on", variant.label)
        return Entrant(
            name, self.entrant(variant.weights).recipe, variant.weights, variant.relay == "on", variant.label
        )

    def pretrained_for(self, target: str, name: str) -> Pretrained | None:
        """The checkpoint that an entrant's drafter for `target` is imported from, or None where it is trained."""
        return self.pretrained.get(target, {}).get(self.entrant(name).weights)

    @property
    def entrants(self) -> list[str]:
        """Everything that is decoded: the methods, then what only Table 3 shows."""
        return list(dict.fromkeys([*self.methods, *self.ablations]))

    def settings_of(self, name: str) -> Config:
        """This configuration with an entrant's own settings of `train` and `drafter` in place."""
        variant = self.variants.get(self.entrant(name).weights)
        if variant is None:
            return self
        own = {key: lay_over(getattr(self, key), getattr(variant, key), key) for key in ("train", "drafter")}
        return self.model_copy(update=own)

    def target(self, name: str) -> TargetConfig:
        """The settings of one target.  Raises ConfigError that lists the targets there are."""
        if name not in self.targets:
            known = ", ".join(self.targets)
            raise ConfigError(f"no target {name!r}{nearest(name, self.targets)}; the configuration has {known}")
        return self.targets[name]

    def suite(self, name: str) -> SuiteConfig:
        """The settings of one suite.  Raises ConfigError that lists the suites there are."""
        if name not in self.suites:
            known = ", ".join(self.suites)
            raise ConfigError(f"no suite {name!r}{nearest(name, self.suites)}; the configuration has {known}")
        return self.suites[name]

    def twin(self, source: str) -> SuiteConfig | None:
        """The first suite whose prompts have the form of a training source's: shots and stop strings are its."""
        alike = ASKED_LIKE.get(source, (source,))
        return next((suite for suite in self.suites.values() if suite.source in alike), None)

    @property
    def data_root(self) -> Path | None:
        """The folder with the real suites' files, or None for a hub."""
        folder = self.data_dir or os.environ.get("HARNESS_DATA_DIR")
        return project_path(folder) if folder else None


def lay_over(section: Section, over: dict[str, Any], place: str) -> Section:
    """`section` with the values of `over` in place, nested ones too, checked like any other settings."""

    def merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
        nested = {
            k: merged(base[k], v) for k, v in top.items() if isinstance(v, dict) and isinstance(base.get(k), dict)
        }
        return {**base, **top, **nested}

    try:
        return type(section).model_validate(merged(section.model_dump(), over))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([place, *map(str, first["loc"])])
        raise ValueError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def _unknown(name: str, valid: list[str]) -> str:
    return f"unknown method {name!r}{nearest(name, valid)}; valid methods: {', '.join(valid)}"


def trained_recipes() -> list[str]:
    return [name for name in method_names() if RECIPES[name].drafts]


def method_names() -> list[str]:
    """The recipes by name; `methods.recipes` imports no torch."""
    return sorted(RECIPES)


def project_path(text: str | Path) -> Path:
    """A path as the user means it: absolute, or from the current folder, or from the project root."""
    path = Path(text).expanduser()
    return path if path.is_absolute() or path.exists() else ROOT / path
