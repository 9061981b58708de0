"""The sections of a configuration, strict and typed, and every default in exactly one place, here and in
`harness.prompt_sections`.

It knows the names, types and bounds of the settings of each section.  It does not know how sections form a run
(`harness.settings`), nor what any stage does with them, and imports neither torch nor Snakemake.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
#: Layouts of released checkpoints, as `methods.published` knows them.
CheckpointFormat = Literal["dflash", "domino"]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values are fixed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class TargetConfig(Section):
    source: str = Field(min_length=1)
    """A hub id, a local folder, or a .gguf file.  A relative path is looked up from the project root."""
    revision: str | None = None
    """Commit or tag of a hub id; recorded, and part of what makes a result."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    training_dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """While trajectories are written and drafters trained, target and drafter alike; null: dtype, which is that of
    decoding and timing.  bfloat16 saves half the time or more on processors that multiply in it."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, or cuda:N."""
    thinking: bool | None = None
    """Value of enable_thinking for chat templates that have it; null leaves it out."""
    gguf_file: str | None = None
    """Name of the .gguf file inside a hub repository or folder."""
    allow_other: list[Literal["fingerprint", "template_hash", "thinking", "dtype"]] = []
    """Facts in which trajectories and drafters may differ from this target, where they are else refused: a drafter of
    one fine-tuned model for another, say, or of another thinking mode.  The tables name what differs."""

    @property
    def in_training(self) -> TargetConfig:
        """The same target as trajectories and training load it."""
        return self.model_copy(update={"dtype": self.training_dtype or self.dtype, "training_dtype": None})


class DecodeConfig(Section):
    batch_size: int = Field(1, gt=0)
    accept: Literal["exact", "rejection"] = "exact"
    """At T > 0.  exact: the target's own choice must equal the proposal; rejection: keep it with probability
    min(1, p/q), else draw from the residual.  At T = 0 it is always exact."""
    proposals: Literal["greedy", "sampled"] = "greedy"
    """At T > 0.  greedy: the drafter's argmax; sampled: drawn from its distribution at T, for accept: rejection."""
    max_proposals: int | None = Field(None, gt=0)
    """Proposals of a round at most, from a block that ends behind them; null: as many as the drafter was made for."""
    trace: bool = True
    """Keep proposals and the target's choices of every round; the gauges and the relay columns need them."""
    threads: int = Field(0, ge=0)
    """CPU threads of a decoding job; 0: all there are.  With fewer than the machine has, jobs run side by side."""

    @model_validator(mode="after")
    def sampled_proposals_are_judged_by_their_law(self) -> DecodeConfig:
        if self.proposals == "sampled" and self.accept != "rejection":
            raise ValueError(
                f"proposals is 'sampled' but accept {self.accept!r}; sampled proposals need accept: rejection, "
                "or leave proposals greedy"
            )
        return self


class HeadSettings(Section):
    """Of a sequential head (Domino); the plain head has none."""

    gru_size: int = Field(1024, gt=0)
    rank: int = Field(256, gt=0)
    pure_prefix: int = Field(1, ge=0)
    """Proposals that the backbone makes alone; the head corrects those after them."""


class RelaySettings(Section):
    """Of the verifier relay (DFlow).  Where the paper leaves a choice open, the default is the reading that the card
    methods/dflow/README.md argues for; the last three make controls."""

    first_rejected: bool = True
    """Whether the state of the first rejected proposal counts, which predicts the first mask."""
    last_row: bool = True
    """Whether the state of the last proposal counts, which predicts a token past the old block."""
    anchor_slot: bool = False
    """With alignment next: relay a state into the anchor's slot too."""
    mlp_width: int | None = Field(None, gt=0)
    """Hidden width of the gate MLP; null: the hidden size."""
    gate: Literal["plain", "one_plus"] = "plain"
    """plain: beta; one_plus: 1 + beta (then a fresh relay is no longer the identity)."""
    norm: Literal["layer", "rms"] = "layer"
    normalise_boundary: bool = False
    """RMS-normalise the two boundary embeddings before the MLP."""
    detach: Literal["state", "taps"] = "state"
    """Where gradients stop: at the projected and normed state, or at the target's taps (W_c learns through the
    relay too)."""
    states: Literal["verifier", "drafter"] = "verifier"
    """drafter, a control: the drafter's own last hidden states, of the slots that predicted the same tokens."""
    shuffle: bool = False
    """A control: each live mask gets the state of another one, by a fixed rule; one that is live alone stays plain."""
    boundary: bool = True
    """False, a control: zeros in place of the two boundary embeddings."""


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
    head: HeadSettings = HeadSettings()
    relay: RelaySettings = RelaySettings()

    @model_validator(mode="after")
    def block_holds_its_proposals(self) -> DrafterSettings:
        most = self.block_size - (self.alignment == "same")
        if self.num_proposals is not None and self.num_proposals > most:
            raise ValueError(
                f"num_proposals is {self.num_proposals}; a block of {self.block_size} slots with alignment "
                f"{self.alignment!r} proposes at most {most}"
            )
        return self


#: Settings of training that a run of one round a step never looks at.
OF_LATER_ROUNDS = frozenset({"rounds", "chains", "rollout", "after_full"})


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
    rounds: int | None = Field(None, ge=0)
    """k, reject-conditioned rounds after the first (DFlow section 4.3); null: 2 with a relay, 0 without."""
    chains: int | None = Field(None, gt=0)
    """Anchors a sequence whose chain goes on after the first round; null: all."""
    rollout: Literal["online", "teacher"] = "online"
    """Where proposals between rounds come from: online, the drafter's inference procedure; teacher, a control: its
    teacher-forced argmax (DFlow section 6)."""
    after_full: Literal["continue", "drop"] = "continue"
    """A chain whose proposals were all right: go on behind them from plain masks, as decoding does, or end."""
    base_until: float = Field(1.0, ge=0, le=1)
    """Share of the run over which the weight of a sequential head's base loss falls from 1 to 0 (Domino)."""
    head_chunk: int = Field(1024, gt=0)
    """Supervised slots whose logits exist at one time."""
    feature_cache_gb: float = Field(1.0, ge=0)
    """Target features of the training set are kept in memory if they fit into this; 0 never keeps them."""
    key_cache_gb: float = Field(0.0, ge=0)
    """The target's keys and values of the training set, which rounds with a relay need, are kept likewise."""
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

    def rounds_with(self, relay: bool) -> int:
        """Reject-conditioned rounds of a method with or without a relay."""
        return 2 * relay if self.rounds is None else self.rounds

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


class ConcurrencyConfig(Section):
    """Throughput with many sequences at once (Table 2), at temperature 0."""

    suites: list[Name] = []
    """Suites of the table, each with at least as many prompts as are asked for; none: there is no table."""
    levels: list[Annotated[int, Field(gt=0)]] = [1, 2, 4, 8, 16, 32]
    """Sequences decoded at a time; the place of one that ends is taken by the next prompt."""
    prompts_per_row: int = Field(4, gt=0)
    """Prompts for each sequence that is decoded at a time, all different."""
    least_prompts: int = Field(16, gt=0)
    """Prompts at any level, so that the lowest do not rest on a few."""
    repeats: int = Field(3, gt=0)
    """Interleaved passes over all methods."""
    max_proposals: dict[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] = {}
    """Level -> proposals of a round at most, from that level on: a load that pays for shorter drafts gets them."""

    @field_validator("suites")
    @classmethod
    def named_once(cls, values: list[str]) -> list[str]:
        return distinct(values) if values else values

    @field_validator("levels")
    @classmethod
    def rising(cls, values: list[int]) -> list[int]:
        return sorted(distinct(values))

    def prompts_at(self, level: int) -> int:
        return max(self.least_prompts, self.prompts_per_row * level)

    def cap_at(self, level: int) -> int | None:
        """Proposals of a round at most; None: no cap."""
        reached = [start for start in self.max_proposals if start <= level]
        return self.max_proposals[max(reached)] if reached else None


class ReportConfig(Section):
    bootstrap: int = Field(2000, gt=0)
    """Resamples of the prompts behind each interval; the spread between seeds enters by Student's t."""
    confidence: float = Field(0.95, gt=0, lt=1)
    figure_formats: list[Literal["png", "pdf", "svg"]] = ["png", "pdf", "svg"]


class Pretrained(Section):
    """A released checkpoint that is imported where a drafter would be trained."""

    source: str = Field(min_length=1)
    """A hub id or a local folder with config.json and model.safetensors.  A relative path is looked up from the project
    root."""
    format: CheckpointFormat
    """dflash (z-lab) or domino."""
    revision: str | None = None
    """Commit or tag of a hub id; recorded, and part of what makes a result."""


class Variant(Section):
    """An entrant beside the recipes: a recipe under other settings, or another entrant's drafter decoded otherwise."""

    method: Name | None = None
    """The recipe; for a variant that is trained."""
    train: dict[str, Any] = {}
    """Laid over the section `train`."""
    drafter: dict[str, Any] = {}
    """Laid over the section `drafter`."""
    weights: Name | None = None
    """The entrant whose drafter is decoded; for a variant that is not trained."""
    relay: Literal["on", "off"] = "on"
    """off: every mask stays plain in decoding."""
    label: str = Field(min_length=1)
    """What it is, in a few words, for Table 3."""

    @model_validator(mode="after")
    def trained_or_borrowed(self) -> Variant:
        if (self.method is None) == (self.weights is None):
            raise ValueError("name a method to train or the weights of another entrant, one of the two")
        if self.weights is not None and (self.train or self.drafter):
            raise ValueError("borrows its weights, so settings of train and drafter would change nothing; remove them")
        return self


def distinct(values: list, low: float | None = None) -> list:
    """`values`, not empty, without repeats, none below `low`."""
    if not values:
        raise ValueError("is empty; give at least one value")
    if len(set(values)) != len(values):
        raise ValueError(f"names a value twice: {values}")
    if low is not None and min(values) < low:
        raise ValueError(f"{min(values)} is below {low}")
    return values
