"""Command line: builds the pocket target from nothing, or goes on where an interrupted build stopped.

    python -m harness.pocket.build --out harness/pocket/target

Knows the order of the steps (tokenizer, training, export, report) and the shipped recipe. Checkpoints and
the log lie in the work folder, outside the output; the output is written at the end, into a neighbouring
folder that then takes its place, the card of the target before it included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch

from harness.pocket.learn import Recipe, train
from harness.pocket.measure import score_all
from harness.pocket.net import Net, NetShape, to_transformers
from harness.pocket.tokenizer import train_tokenizer

MOST_BYTES = 5_000_000
RECIPE = Recipe(
    weights={
        "pocket_word": 1.2,
        "pocket_algebra": 1.5,
        "pocket_complete": 1.0,
        "pocket_synth": 1.0,
        "pocket_chat": 0.5,
    }
)


def refuse_foreign(out: Path) -> None:
    """Raises ValueError if `out` holds anything but a target: what is there will be replaced."""
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / "config.json").is_file())):
        raise ValueError(f"{out} holds something else than a target (there is no config.json); name a new folder")


def export(checkpoint: Path, out: Path, tokenizer) -> dict:
    """Writes a checkpoint as a bf16 transformers folder; returns its recipe and step. Raises ValueError
    if it is too large, or if `out` holds something that is no target."""
    from transformers import GenerationConfig

    refuse_foreign(out)
    state = torch.load(checkpoint, weights_only=False)
    net = Net(NetShape(**state["shape"]))
    net.load_state_dict(state["net"])
    ids = {"pad": tokenizer.pad_token_id, "end": tokenizer.eos_token_id}
    model = to_transformers(net, ids).to(torch.bfloat16)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.generation_config = GenerationConfig(
        eos_token_id=[ids["end"]], pad_token_id=ids["pad"], do_sample=False, max_new_tokens=160
    )
    model.save_pretrained(str(part))
    tokenizer.save_pretrained(str(part))
    _template_into_config(part)
    if (out / "README.md").exists():
        shutil.copyfile(out / "README.md", part / "README.md")
    for file in part.iterdir():
        file.chmod(0o644)  # weights are written readable by their owner alone
    size = sum(f.stat().st_size for f in part.glob("*.safetensors"))
    if size > MOST_BYTES:
        raise ValueError(f"weights in {part} take {size} bytes, more than {MOST_BYTES}: make the net smaller")
    shutil.rmtree(out, ignore_errors=True)
    os.replace(part, out)
    return {"step": state["step"], "recipe": state["recipe"], "shape": state["shape"], "weights_bytes": size}


def _template_into_config(folder: Path) -> None:
    """Newer transformers write the chat template to a file of its own; readers of tokenizer_config.json
    find it there too."""
    alone = folder / "chat_template.jinja"
    if alone.exists():
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = alone.read_text()
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        alone.unlink()


def report(out: Path, work: Path, built: dict, count: int) -> None:
    """Writes report.json: recipe, last line of the training log, and the figures of each scored suite on
    `count` eval items."""
    log = (work / "log.csv").read_text().splitlines()
    figures = score_all(out, count)
    record = {
        **built,
        "last_log_line": dict(zip(log[0].split(","), log[-1].split(","), strict=True)),
        "eval_items": count,
        "suites": {s: {k: round(v, 4) for k, v in r.items()} for s, r in figures.items()},
        "torch": torch.__version__,
    }
    (out / "report.json").write_text(json.dumps(record, indent=1) + "\n")
    for suite, r in figures.items():
        print(suite, " ".join(f"{k} {v:.3f}" for k, v in r.items()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished target")
    parser.add_argument("--work", type=Path, default=Path("results/pocket_build"), help="checkpoints and log")
    cores = min(2, os.cpu_count() or 1)
    parser.add_argument("--processes", type=int, default=cores, help=f"one single-threaded worker each ({cores})")
    parser.add_argument("--steps", type=int, default=RECIPE.steps, help=f"fewer for a trial ({RECIPE.steps})")
    parser.add_argument("--count", type=int, default=100, help="eval items a suite for the report")
    parser.add_argument("--export-only", action="store_true", help="write the target from the last checkpoint")
    args = parser.parse_args(argv)
    for name in ("processes", "steps", "count"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.export_only and not (args.work / "checkpoint.pt").is_file():
        parser.error(f"--export-only: no {args.work / 'checkpoint.pt'}; build without it first, or name --work")
    try:
        refuse_foreign(args.out)  # before hours of training
    except ValueError as error:
        parser.error(f"--out: {error}")
    tokenizer = train_tokenizer()
    recipe = Recipe(**{**RECIPE.__dict__, "steps": args.steps})
    began = time.time()
    if not args.export_only:
        train(args.work, recipe, tokenizer, args.processes)
        print(f"trained in {time.time() - began:.0f} s")
    built = export(args.work / "checkpoint.pt", args.out, tokenizer)
    report(args.out, args.work, built, args.count)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
