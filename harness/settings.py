"""The settings: one strict typed model, and every default in exactly one place, here.

It knows the names, types and bounds of the settings, and what a path in one of them means.  It does not know
where a configuration comes from, nor what any stage does with it, and imports neither torch nor Snakemake.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness.config_errors import ConfigError, nearest
from harness.pocket.world import SUITES as POCKET_SUITES
from methods.recipes import RECIPES

ROOT = Path(__file__).resolve().parent.parent

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
SuiteSource = Literal["pocket", "gsm8k", "humaneval"]
#: What training prompts can come from, beside a .jsonl file.
TRAINING_SOURCES = ("pocket", *POCKET_SUITES, "gsm8k")


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values are fixed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class TargetConfig(Section):
    source: str = Field(min_length=1)
    """A hub id, a local folder, or a .gguf file.  A relative path is looked up from the project root."""
    revision: str | None = None
    """Commit or tag of a hub id; recorded, and part of what makes a result."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, or cuda:N."""
    thinking: bool | None = None
    """Value of enable_thinking for chat templates that have it; null leaves it out."""
    gguf_file: str | None = None
    """Name of the .gguf file inside a hub repository or folder."""


class SuiteConfig(Section):
    source: SuiteSource
    """Where the prompts come from; pocket suites are told apart by the name of the suite."""
    prompts: int = Field(gt=0)
    """How many prompts, sampled with sample_seed; never simply the first ones."""
    max_new_tokens: int = Field(gt=0)
    scored: bool = True
    sample_seed: int = Field(0, ge=0)
    shots: int | None = Field(None, ge=0)
    """Worked examples before the question; null: none with a chat template, else the suite's usual number."""
    stop_strings: list[str] | None = None
    """Texts that end a response; null: none with a chat template, else the suite's usual ones."""


class DecodeConfig(Section):
    batch_size: int = Field(1, gt=0)
    accept: Literal["exact", "rejection"] = "exact"
    """At T > 0.  exact: the target's own choice must equal the proposal; rejection: keep it with probability
    min(1, p/q), else draw from the residual.  At T = 0 it is always exact."""
    proposals: Literal["greedy", "sampled"] = "greedy"
    """At T > 0.  greedy: the drafter's argmax; sampled: drawn from its distribution at T, for accept: rejection."""
    trace: bool = True
    """Keep proposals and the target's choices of every round; the gauges and the relay columns need them."""

    @model_validator(mode="after")
    def sampled_proposals_are_judged_by_their_law(self) -> DecodeConfig:
        if self.proposals == "sampled" and self.accept != "rejection":
            raise ValueError(
                f"proposals is 'sampled' but accept {self.accept!r}; sampled proposals need accept: rejection, "
                "or leave proposals greedy"
            )
        return self


class DrafterSettings(Section):
    block_size: int = Field(16, ge=2)
    alignment: Literal["same", "next"] = "same"
    num_proposals: int | None = Field(None, gt=0)
    """Proposals a round; null: block_size - 1, in either alignment, though `next` could propose one more."""
    num_layers: int = Field(1, gt=0)
    taps: list[int] | None = None
    """Target layers whose outputs are read; null: spread evenly from layer 1 to the third from last."""
    mask_token_id: int | None = Field(None, ge=0)
    """Token whose embedding fills the slots to be denoised; null: an unused one is chosen and recorded."""
    intermediate_size: int | None = Field(None, gt=0)
    """Width of the drafter's feed-forward layers; null: as in the target."""
    draft_vocab_size: int | None = Field(None, gt=1)
    """Draft over the N most frequent tokens only (a large vocabulary on a small machine); null: over all."""

    @model_validator(mode="after")
    def block_holds_its_proposals(self) -> DrafterSettings:
        most = self.block_size - (self.alignment == "same")
        if self.num_proposals is not None and self.num_proposals > most:
            raise ValueError(
                f"num_proposals is {self.num_proposals}; a block of {self.block_size} slots with alignment "
                f"{self.alignment!r} proposes at most {most}"
            )
        return self


class TrajectoriesConfig(Section):
    source: str = "pocket"
    """pocket, one pocket suite, gsm8k (its training split), or a .jsonl file of prompts.  A relative path is looked up
    from the current folder, then from the project root."""
    prompts: int = Field(gt=0)
    max_new_tokens: int = Field(gt=1)
    temperatures: list[float] = [0.0, 1.0]
    """The prompts are shared out evenly over these: a drafter that serves T = 0 and T = 1 sees both."""
    batch_size: int = Field(32, gt=0)
    seed: int = Field(0, ge=0)

    @field_validator("source")
    @classmethod
    def known_source(cls, source: str) -> str:
        if source not in TRAINING_SOURCES and not source.endswith(".jsonl"):
            hint = nearest(source, TRAINING_SOURCES)
            raise ValueError(f"unknown{hint}; valid: {', '.join(TRAINING_SOURCES)}, or a .jsonl file of prompts")
        return source

    @field_validator("temperatures")
    @classmethod
    def usable(cls, values: list[float]) -> list[float]:
        return distinct(values, low=0.0)


class TrainConfig(Section):
    steps: int = Field(gt=0)
    batch_sequences: int = Field(8, gt=0)
    anchors: int = Field(16, gt=0)
    """Random anchors (blocks) a sequence and step."""
    learning_rate: float = Field(6e-4, gt=0)
    warmup_ratio: float = Field(0.04, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip: float = Field(1.0, gt=0)
    gamma: float = Field(7.0, gt=0)
    """Slot k weighs exp(-(k-1)/gamma): 7 for block 16, 5 for 10, 4 for 8."""
    max_length: int = Field(3072, gt=1)
    """Longer trajectories are cut here."""
    head_chunk: int = Field(1024, gt=0)
    """Supervised slots whose logits exist at one time."""
    feature_cache_gb: float = Field(1.0, ge=0)
    """Target features of the training set are kept in memory if they fit into this; 0 never keeps them."""
    checkpoint_every: int = Field(100, gt=0)
    eval_every: int = Field(100, gt=0)
    heldout_prompts: int = Field(48, gt=0)
    """Prompts never trained on: held-out cross-entropy, accuracy and the walk use their trajectories."""
    walk_prompts: int = Field(16, gt=0)
    """Greedy ones among heldout_prompts for accept_walk and its check against the decoder."""
    threads: int = Field(0, ge=0)
    """CPU threads of the trainer; 0: as many as torch chooses.  Sums depend on it in their last bit."""
    plateau_percent: float = Field(2.0, gt=0)
    """At its plateau: held-out cross-entropy improves by less over the last quarter of the steps, and accept_walk
    over the last third."""
    stop_at_plateau: bool = False
    """Stop there; otherwise the plateau is only recorded."""
    wall_time_minutes: float | None = Field(None, gt=0)
    """Stop after this much training, all resumes together; null: only the steps count."""

    @model_validator(mode="after")
    def walks_are_held_out(self) -> TrainConfig:
        if self.walk_prompts > self.heldout_prompts:
            raise ValueError(
                f"walk_prompts is {self.walk_prompts} but heldout_prompts only {self.heldout_prompts}; "
                "walked trajectories are held-out ones, so lower the first or raise the second"
            )
        return self


class TimingConfig(Section):
    prompts: int = Field(4, gt=0)
    """Prompts of each suite."""
    repeats: int = Field(3, gt=0)
    """Interleaved passes over all methods."""
    warmup: int = Field(1, ge=0)
    generate: bool = True
    """Also time `generate` of transformers, so that the baseline is seen not to be slow: at T = 0, for suites without
    stop strings and shared prefix, where it does the same work."""
    temperatures: list[float] = [0.0]

    @field_validator("temperatures")
    @classmethod
    def usable(cls, values: list[float]) -> list[float]:
        return distinct(values, low=0.0)


class ReportConfig(Section):
    bootstrap: int = Field(2000, gt=0)
    """Resamples of the prompts behind each interval; the spread between seeds enters by Student's t."""
    confidence: float = Field(0.95, gt=0, lt=1)
    figure_formats: list[Literal["png", "pdf", "svg"]] = ["png", "pdf", "svg"]


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
    targets: dict[Name, TargetConfig] = Field(min_length=1)
    suites: dict[Name, SuiteConfig] = Field(min_length=1)
    methods: list[Name]
    """Recipes, see methods/recipes.py; ar is the target alone."""
    temperatures: list[float] = [0.0, 1.0]
    seeds: list[Seed] = [0]
    """A seed makes a drafter, and the draws at T > 0."""
    decode: DecodeConfig = DecodeConfig()
    drafter: DrafterSettings = DrafterSettings()
    trajectories: TrajectoriesConfig
    train: TrainConfig
    timing: TimingConfig = TimingConfig()
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

    @field_validator("methods")
    @classmethod
    def known_methods(cls, values: list[str]) -> list[str]:
        valid = method_names()
        for name in values:
            if name not in valid:
                hint = nearest(name, valid)
                raise ValueError(f"unknown method {name!r}{hint}; valid methods: {', '.join(valid)}")
        return values

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

    @property
    def data_root(self) -> Path | None:
        """The folder with the real suites' files, or None for a hub."""
        folder = self.data_dir or os.environ.get("HARNESS_DATA_DIR")
        return project_path(folder) if folder else None


def distinct(values: list, low: float | None = None) -> list:
    """`values`, not empty, without repeats, none below `low`."""
    if not values:
        raise ValueError("is empty; give at least one value")
    if len(set(values)) != len(values):
        raise ValueError(f"names a value twice: {values}")
    if low is not None and min(values) < low:
        raise ValueError(f"{min(values)} is below {low}")
    return values


def method_names() -> list[str]:
    """The recipes by name; `methods.recipes` imports no torch."""
    return sorted(RECIPES)


def project_path(text: str | Path) -> Path:
    """A path as the user means it: absolute, or from the current folder, or from the project root."""
    path = Path(text).expanduser()
    return path if path.is_absolute() or path.exists() else ROOT / path
