"""The sections of a configuration about prompts: suites that are measured, and prompts that are trained on.

It knows the names, types, bounds and defaults of these settings, as `harness.sections` does of the others.  It reads no
prompt, and imports neither torch nor Snakemake.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness.config_errors import nearest
from harness.pocket.world import SUITES as POCKET_SUITES
from harness.sections import Name, Section, distinct

SuiteSource = Literal["pocket", "gsm8k", "humaneval", "math500", "mbpp", "mbpp_bare", "mt_bench", "alpaca"]
#: What training prompts can come from, beside a .jsonl file.
TRAINING_SOURCES = ("pocket", *POCKET_SUITES, "gsm8k", "mbpp", "mbpp_bare", "instructions")
#: Sources of suites whose form a training source shares, where they are not called as it is.
ASKED_LIKE = {"instructions": ("mt_bench", "alpaca")}
#: Sources of suites some of whose answers are code.
CODE_SOURCES = frozenset({"pocket", "humaneval", "mbpp", "mbpp_bare"})


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


class DatasetConfig(Section):
    """Conversations that others collected (ShareGPT and the like), of which the user's words are asked.

    A row holds `conversations` (from, value), `messages` (role, content), `turns` or `prompt`; other columns are passed
    over."""

    source: str = Field(min_length=1)
    """A data set's hub id, or a local .json or .jsonl file, looked up as trajectories.source is."""
    revision: str | None = None
    """Commit or tag of a hub id."""
    file: str | None = None
    """A .json or .jsonl file of the hub's repository, for one that the hub itself cannot read; null: its `split`."""
    config: str | None = None
    split: str = "train"
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """Of the file; another one is refused."""
    column: str | None = None
    """Column to read; null: the first of the four above that a row has."""
    max_turns: int | None = Field(None, gt=0)
    """Questions of one conversation that are asked at most; null: all.  Every turn makes a trajectory."""

    @property
    def is_file(self) -> bool:
        return self.source.endswith((".json", ".jsonl"))

    @model_validator(mode="after")
    def file_can_be_read(self) -> DatasetConfig:
        if self.file is not None and not self.file.endswith((".json", ".jsonl")):
            raise ValueError(
                f"file is {self.file!r}; name a .json or .jsonl file, or null for the split {self.split!r}"
            )
        if self.sha256 and not (self.is_file or self.file):
            raise ValueError("sha256 is that of a file, and none is named; set file, or leave sha256 out")
        given = [key for key in ("revision", "file", "config") if getattr(self, key) is not None]
        if self.is_file and given:
            raise ValueError(f"source {self.source!r} is a local file, so {', '.join(given)} would change nothing")
        return self


class TrajectoriesConfig(Section):
    """Training prompts: `source` and `prompts`, or `sources` for several at once."""

    datasets: dict[Name, DatasetConfig] = {}
    """Data sets that `source` or `sources` may name."""
    source: str | None = None
    """pocket, one pocket suite, gsm8k (its training split), mbpp or mbpp_bare (its validation and training splits),
    instructions, a name under `datasets`, or a .jsonl file of prompts.  A relative path is looked up from the current
    folder, then from the project root."""
    prompts: int | None = Field(None, gt=0)
    sources: dict[str, Annotated[int, Field(gt=0)]] = {}
    """Source -> prompts, in place of the two above; each is asked in the form of the suite that evaluates it."""
    max_new_tokens: int = Field(gt=1)
    max_prompt_tokens: int | None = Field(None, gt=0)
    """A later turn whose prompt is longer, answers before it included, is not asked and ends its dialogue, and rows of
    `datasets` that begin longer are left out; null: what the target's context holds beside an answer, for these rows
    alone."""
    temperatures: list[float] = [0.0, 1.0]
    """The prompts are shared out evenly over these: a drafter that serves T = 0 and T = 1 sees both."""
    batch_size: int = Field(32, gt=0)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def one_form(self) -> TrajectoriesConfig:
        single = self.source is not None and self.prompts is not None
        if bool(self.sources) == single or (self.sources and (self.source, self.prompts) != (None, None)):
            said = f"source is {self.source!r}, prompts {self.prompts!r} and sources {self.sources!r}"
            raise ValueError(f"{said}; give source and prompts, or sources alone, and set the others to null")
        return self

    @field_validator("datasets")
    @classmethod
    def named_apart(cls, datasets: dict[str, DatasetConfig]) -> dict[str, DatasetConfig]:
        taken = next((name for name in datasets if name in TRAINING_SOURCES), None)
        if taken:
            raise ValueError(f"{taken!r} is a source of its own; name the data set otherwise")
        return datasets

    @field_validator("source", "sources")
    @classmethod
    def known_sources(cls, value: Any, info: ValidationInfo) -> Any:
        if "datasets" not in info.data:  # refused itself
            return value
        known = (*TRAINING_SOURCES, *info.data["datasets"])
        for source in [value] if isinstance(value, str) else value or ():
            if source not in known and not source.endswith(".jsonl"):
                valid = f"valid: {', '.join(known)}, or a .jsonl file of prompts"
                raise ValueError(f"source {source!r} is unknown{nearest(source, known)}; {valid}")
        return value

    def file_of(self, source: str) -> str | None:
        """The local file that a source is read from, if it is one."""
        dataset = self.datasets.get(source)
        path = source if dataset is None else dataset.source
        return path if path.endswith(".jsonl") or (dataset is not None and dataset.is_file) else None

    @property
    def shares(self) -> dict[str, int]:
        """Prompts of each source, in either form; in one order, however they were written."""
        return dict(sorted(self.sources.items())) if self.sources else {self.source: self.prompts}

    @field_validator("temperatures")
    @classmethod
    def usable(cls, values: list[float]) -> list[float]:
        return distinct(values, low=0.0)
