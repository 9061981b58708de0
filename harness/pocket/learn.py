"""Data-parallel training of the pocket target on CPU cores: one process with one thread a core, gradients
averaged over gloo.

Knows the training loop, its checkpoints and its log; the recipe (steps, rates, curriculum) is a `Recipe`,
written into every checkpoint. Several threads in one process would spin against each other;
single-threaded processes do not.
"""

from __future__ import annotations

import csv
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from harness.pocket.batches import Batches, probe_rows
from harness.pocket.net import Net, NetShape
from harness.pocket.world import SUITES


@dataclass(frozen=True)
class Recipe:
    """How the target is trained. Rates fall linearly to a twentieth over the last `decay` steps."""

    steps: int = 6000
    decay: int = 1200
    warmup: int = 100
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    clip: float = 1.0
    easy_until: int = 2000  # steps over which the share of short items falls from `easy` to `easy_floor`
    easy: float = 0.9
    easy_floor: float = 0.1
    drill: float = 0.5  # share of exercises at the start; falls to nothing at `drill_until`
    drill_until: int = 3000
    seed: int = 1
    weights: dict[str, float] = field(default_factory=lambda: {s: 1.0 for s in SUITES})
    compiled: bool = True
    shape: dict = field(default_factory=dict)

    def rate(self, step: int) -> float:
        """Factor on both rates at a step."""
        left = (self.steps - step) / max(1, self.decay)
        return min(1.0, (step + 1) / self.warmup, max(0.05, left))

    def easy_share(self, step: int) -> float:
        """Share of short items at a step."""
        gone = min(1.0, step / max(1, self.easy_until))
        return self.easy + (self.easy_floor - self.easy) * gone

    def drill_share(self, step: int) -> float:
        """Share of exercises at a step."""
        return self.drill * max(0.0, 1 - step / max(1, self.drill_until))


def split_parameters(net: Net) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden matrices (for Muon) and the rest: embedding and norms (for AdamW)."""
    matrices = [p for layer in net.layers for p in layer.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    return matrices, [p for p in net.parameters() if id(p) not in chosen]


@torch.no_grad()
def probe(net: Net, tokenizer, count: int = 48, split: str = "heldout") -> dict[str, tuple[float, float]]:
    """Per suite, free signs apart: share of reply tokens right, and share of items that are right to the last token."""
    result = {}
    for suite in SUITES:
        ids, labels = probe_rows(tokenizer, suite, count, split)
        wrong = (net.logits(net(ids)).argmax(-1) != labels) & (labels != -100)
        result[suite] = (
            1 - wrong.sum().item() / (labels != -100).sum().item(),
            1 - wrong.any(1).float().mean().item(),
        )
    return result


def _average_gradients(net: Net, count: int, world: int) -> float:
    """Divides summed gradients by the labels of all ranks; returns their global norm. Reduces one flat
    buffer."""
    flat = torch.cat([p.grad.flatten() for p in net.parameters()] + [torch.tensor([float(count)])])
    if world > 1:
        dist.all_reduce(flat)
    flat = flat / flat[-1].item()
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    return flat[:-1].norm().item()


class SharedMuon:
    """Muon whose matrices are dealt out to the processes: each orthogonalises its own share, then all
    exchange the results."""

    def __init__(self, matrices: list[Tensor], rate: float, rank: int, world: int):
        self.shares = [matrices[r::world] for r in range(world)]
        self.rank, self.world = rank, world
        self.inner = torch.optim.Muon(self.shares[rank], lr=rate, momentum=0.95, weight_decay=0.01)
        self.param_groups = self.inner.param_groups

    def zero_grad(self) -> None:
        for share in self.shares:
            for p in share:
                p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        if self.world == 1:
            return
        for source, share in enumerate(self.shares):
            flat = torch.cat([p.flatten() for p in share])
            dist.broadcast(flat, source)
            for p, part in zip(share, flat.split([p.numel() for p in share]), strict=True):
                p.copy_(part.view_as(p))

    def gather(self) -> list[dict]:
        """The states of all shares, on every process."""
        states: list = [None] * self.world
        if self.world == 1:
            return [self.inner.state_dict()]
        dist.all_gather_object(states, self.inner.state_dict())
        return states

    def restore(self, states: list[dict]) -> None:
        """Takes up gathered states; with another number of processes the momenta start anew."""
        if len(states) == self.world:
            self.inner.load_state_dict(states[self.rank])


def _save(path: Path, step: int, net: Net, adam, muon_states: list[dict], recipe: Recipe) -> None:
    state = {
        "step": step,
        "net": net.state_dict(),
        "adam": adam.state_dict(),
        "muon": muon_states,
        "recipe": asdict(recipe),
        "shape": net.shape.as_dict(),
    }
    torch.save(state, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def worker(rank: int, world: int, port: int, work: str, recipe: Recipe, tokenizer, stop_at: int | None = None) -> None:
    """One training process. Resumes from `work/checkpoint.pt` where there is one; data of a resumed run
    is drawn anew."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    folder, checkpoint = Path(work), Path(work) / "checkpoint.pt"
    torch.manual_seed(recipe.seed)
    net = Net(NetShape(**recipe.shape))
    matrices, rest = split_parameters(net)
    muon = SharedMuon(matrices, recipe.muon_rate, rank, world)
    adam = torch.optim.AdamW(rest, lr=recipe.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    start = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        net.load_state_dict(state["net"])
        adam.load_state_dict(state["adam"])
        muon.restore(state["muon"])
        start = state["step"]
    loss_of = torch.compile(net.loss, dynamic=False) if recipe.compiled else net.loss
    stream = Batches(tokenizer, (recipe.seed * 1000 + start) * 64 + rank, recipe.weights)
    end = min(recipe.steps, stop_at or recipe.steps)
    bar = tqdm(range(start, end), initial=start, total=recipe.steps, disable=rank > 0, mininterval=5)
    tokens, loss_sum, label_sum, began = 0, 0.0, 0, time.time()
    for step in bar:
        stream.easy, stream.drill = recipe.easy_share(step), recipe.drill_share(step)
        ids, labels = next(stream)
        loss = loss_of(ids, labels, torch.bfloat16)
        loss.backward()
        count = int((labels != -100).sum())
        norm = _average_gradients(net, count, world)
        scale = min(1.0, recipe.clip / (norm + 1e-9))
        for p in rest:
            p.grad.mul_(scale)  # Muon's update does not depend on the gradient's size
        for optimiser, rate in ((muon, recipe.muon_rate), (adam, recipe.adam_rate)):
            optimiser.param_groups[0]["lr"] = rate * recipe.rate(step)
            optimiser.step()
            optimiser.zero_grad()
        tokens, loss_sum, label_sum = tokens + ids.numel() * world, loss_sum + loss.item(), label_sum + count
        if rank == 0 and (step + 1) % 20 == 0:
            speed = tokens / (time.time() - began)
            bar.set_postfix(loss=f"{loss_sum / label_sum:.3f}", easy=f"{stream.easy:.2f}", tok_s=f"{speed:.0f}")
        if (step + 1) % 250 == 0 or step + 1 == end:
            states = muon.gather()
            if rank == 0:
                _log(folder, step + 1, tokens, time.time() - began, loss_sum / label_sum, probe(net, tokenizer))
                _save(checkpoint, step + 1, net, adam, states, recipe)
            loss_sum, label_sum = 0.0, 0
    if world > 1:
        dist.destroy_process_group()


def _log(folder: Path, step: int, tokens: int, seconds: float, loss: float, seen: dict) -> None:
    row = {"step": step, "tokens": tokens, "seconds": round(seconds), "loss": round(loss, 4)}
    for suite, (token_share, exact) in seen.items():
        row |= {f"{suite}_tokens": round(token_share, 4), f"{suite}_exact": round(exact, 4)}
    path = folder / "log.csv"
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if fresh:
            writer.writeheader()
        writer.writerow(row)
    short = " ".join(f"{s[7:]} {t:.3f}/{e:.2f}" for s, (t, e) in seen.items())
    tqdm.write(f"step {step} {seconds:.0f} s loss {loss:.3f} | tokens/exact: {short}")


def train(work: Path, recipe: Recipe, tokenizer, processes: int, port: int = 29571, stop_at: int | None = None) -> None:
    """Trains to `recipe.steps` (or `stop_at`), resuming from `work`; `processes` single-threaded
    workers."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1))
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0")
    if processes == 1:
        worker(0, 1, port, str(work), recipe, tokenizer, stop_at)
        return
    torch.multiprocessing.spawn(worker, args=(processes, port, str(work), recipe, tokenizer, stop_at), nprocs=processes)
