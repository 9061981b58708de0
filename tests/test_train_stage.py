"""The whole stage: from trajectories to done.json, and what it refuses."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_model, tiny_target
from tokenizers import Tokenizer, models
from training import config
from transformers import PreTrainedTokenizerFast

from harness.config import ConfigError
from harness.data import Task, suite_prompts
from harness.decode import Decoder, DecodeSettings, Prompt
from harness.gauge import main as gauge_main
from harness.model_source import DTYPES
from harness.sections import DrafterSettings
from harness.target import Target, TargetError
from harness.train import __main__ as stage
from harness.train.build import build_drafter, draft_vocab, mask_token, refuse_mask_in_text
from harness.train.corpus import Trajectory
from harness.train.trajectories import facts_of, generate, publish
from harness.train.trajectories import main as trajectories_main
from harness.train.walk import WalkMismatch
from methods.checkpoint import load_drafter
from methods.runner import BlockDraftRunner


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def made(target, tmp_path_factory):
    """Published trajectories of the tiny target."""
    folder = tmp_path_factory.mktemp("made")
    cfg = config(folder)
    tasks = [Task(f"t{i}", "s", (f"say {i * 7}",)) for i in range(12)]
    lines = generate(target, tasks, cfg.trajectories, folder / "part.jsonl")
    publish(folder / "out", lines, facts_of(target, cfg, "tiny", tasks))
    return folder / "out"


@pytest.fixture
def loaded(target, monkeypatch):
    monkeypatch.setattr(Target, "load", classmethod(lambda cls, *args, **kwargs: target))


def test_a_run_ends_with_a_checked_checkpoint_and_done_last(target, made, loaded, tmp_path, monkeypatch):
    written = []
    genuine = stage.write_json

    def watched(path, value):
        written.append({p.name for p in path.parent.iterdir()})
        genuine(path, value)

    monkeypatch.setattr(stage, "write_json", watched)
    out = tmp_path / "drafter"
    facts = stage.run(config(tmp_path), "tiny", "dflash", 0, made, out)
    assert written == [{"model.safetensors", "config.json", "learning_curve.csv"}]
    assert json.loads((out / "done.json").read_text()) == facts
    assert facts["steps"] == facts["planned_steps"] == 12 and facts["stopped_by"] == "steps"
    assert facts["check"]["exact"] and facts["check"]["near_ties"] == []
    assert facts["check"]["accept_decoded"] == facts["accept_walk"] == facts["last"]["accept_walk"]
    expected = {"target_fingerprint": target.fingerprint, "template_hash": target.template_hash}
    load_drafter(out, target.binding, expected)


def test_a_second_call_exports_the_same_bits_without_training(made, loaded, tmp_path, monkeypatch):
    cfg = config(tmp_path)
    stage.run(cfg, "tiny", "dflash", 0, made, tmp_path / "a")
    monkeypatch.setattr("harness.train.loop.Trainer._timed_step", lambda self: pytest.fail("trained again"))
    stage.run(cfg, "tiny", "dflash", 0, made, tmp_path / "b")
    for name in ("model.safetensors", "config.json", "learning_curve.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    first, second = (json.loads((tmp_path / folder / "done.json").read_text()) for folder in "ab")
    assert first.pop("made_by")["torch"] == second.pop("made_by")["torch"] and first == second


def test_a_checkpoint_that_decodes_otherwise_than_it_walked_fails_the_run(made, loaded, tmp_path, monkeypatch):
    cfg, out = config(tmp_path, steps=80, anchors=8, eval_every=80), tmp_path / "d"
    assert stage.run(cfg, "tiny", "dflash", 0, made, out)["accept_walk"] > 1.1  # at 1.00 nothing could differ
    genuine = stage.load_drafter

    def damaged(*args, **kwargs):
        drafter = genuine(*args, **kwargs)
        for parameter in drafter.parameters():
            parameter.data.neg_()
        return drafter

    monkeypatch.setattr(stage, "load_drafter", damaged)
    with pytest.raises(WalkMismatch):
        stage.run(cfg, "tiny", "dflash", 0, made, out)
    assert not (out / "done.json").exists()  # the old one does not vouch for the new run


def test_trajectories_of_another_target_are_refused(made, tmp_path, monkeypatch):
    other = tiny_target(seed=5)
    monkeypatch.setattr(Target, "load", classmethod(lambda cls, *args, **kwargs: other))
    with pytest.raises(ValueError, match=f"fingerprint.*{other.fingerprint}"):
        stage.run(config(tmp_path), "tiny", "dflash", 0, made, tmp_path / "d")


def test_trajectories_of_another_dtype_are_refused(made, tmp_path, monkeypatch):
    wider = tiny_target(dtype=torch.float64)
    monkeypatch.setattr(Target, "load", classmethod(lambda cls, *args, **kwargs: wider))
    with pytest.raises(ValueError, match="dtype 'float32'.*'float64'"):
        stage.run(config(tmp_path), "tiny", "dflash", 0, made, tmp_path / "d")


def test_a_target_may_be_trained_for_in_another_dtype_than_it_decodes_in(target, tmp_path, monkeypatch):
    """Trajectories and training in bfloat16; the checkpoint still belongs to the float32 target, and decodes there."""
    asked = []

    def load(cls, source, *args, **kwargs):
        asked.append(source.dtype)
        return tiny_target(dtype=DTYPES[source.dtype])

    monkeypatch.setattr(Target, "load", classmethod(load))
    cfg = config(tmp_path)
    narrow = cfg.targets["tiny"].model_copy(update={"training_dtype": "bfloat16"})
    cfg = cfg.model_copy(update={"targets": {"tiny": narrow}})
    tasks = [Task(f"t{i}", "s", (f"say {i * 7}",)) for i in range(12)]
    writer = Target.load(narrow.in_training)
    lines = generate(writer, tasks, cfg.trajectories, tmp_path / "part.jsonl")
    manifest = publish(tmp_path / "made", lines, facts_of(writer, cfg, "tiny", tasks))
    assert manifest["dtype"] == "bfloat16" and manifest["fingerprint"] == target.fingerprint
    facts = stage.run(cfg, "tiny", "dflow_domino", 0, tmp_path / "made", tmp_path / "d")
    assert asked == ["bfloat16", "bfloat16"] and facts["identity"]["dtype"] == "torch.bfloat16"
    assert not facts["check"]["exact"]  # rounding decides in bfloat16, so differences are listed there
    assert {t.dtype for t in load_file(tmp_path / "d" / "model.safetensors").values()} == {torch.bfloat16}
    expected = {"target_fingerprint": target.fingerprint}
    drafter = load_drafter(tmp_path / "d", target.binding, expected, dtype=target.dtype).eval()
    prompts = [Prompt(f"p{i}", (3 + i, 9, 27)) for i in range(2)]
    settings = DecodeSettings(temperature=0.0, seed=0, max_new_tokens=20)
    plain = Decoder(target, None, settings).run(prompts)
    drafted = Decoder(target, lambda rows, size: BlockDraftRunner(drafter, rows, size), settings).run(prompts)
    assert [r.output_ids for r in plain] == [r.output_ids for r in drafted]


def test_what_cannot_be_trained_is_refused_by_name(made, loaded, tmp_path):
    cfg = config(tmp_path)
    with pytest.raises(ConfigError, match="'ar' has no drafter"):
        stage.run(cfg, "tiny", "ar", 0, made, tmp_path)
    with pytest.raises(ConfigError, match="no target 'huge'"):
        stage.run(cfg, "huge", "dflash", 0, made, tmp_path)
    with pytest.raises(ValueError, match="unknown method 'dflsh'"):
        stage.run(cfg, "tiny", "dflsh", 0, made, tmp_path)
    with pytest.raises(FileNotFoundError, match="manifest.json"):
        stage.run(cfg, "tiny", "dflash", 0, tmp_path / "nowhere", tmp_path)


def test_damaged_files_are_refused_by_name_and_nothing_is_lost(made, loaded, tmp_path):
    cfg, out = config(tmp_path), tmp_path / "d"
    stage.run(cfg, "tiny", "dflash", 0, made, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    (path,) = tmp_path.rglob("state.pt")
    whole, state = path.read_bytes(), torch.load(path, weights_only=True)
    masters = state["optimiser"]["masters"]
    name = next(iter(masters))
    broken = state | {"optimiser": state["optimiser"] | {"masters": masters | {name: masters[name] * float("nan")}}}
    for fault, words in (
        (lambda: path.write_bytes(whole[: len(whole) // 2]), "damaged"),
        (lambda: torch.save([1, 2], path), "damaged"),
        (lambda: torch.save({k: v for k, v in state.items() if k != "curve"}, path), "it has no curve"),
        (lambda: torch.save(broken, path), f"/optimiser/masters/{name} is not finite"),
    ):
        fault()
        with pytest.raises(ValueError, match=f"{path} is damaged.*move it away") as caught:
            stage.run(cfg, "tiny", "dflash", 0, made, out)
        assert words in str(caught.value)
    path.write_bytes(whole)
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for text in ('{"shards": [{"file"', json.dumps({k: v for k, v in manifest.items() if k != "max_new_tokens"})):
        (copy / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match=f"{copy / 'manifest.json'} is damaged .*again"):
            stage.run(cfg, "tiny", "dflash", 0, copy, out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_suites_that_share_prompts_with_the_training_set_are_refused_when_they_come_later(made, loaded, tmp_path):
    """The trajectories are there, and checked against other suites."""
    cfg = config(tmp_path)
    (item,) = suite_prompts("pocket_word", cfg.suites["pocket_word"])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "x", "turns": list(item.turns)}) + "\n")
    source = cfg.trajectories.model_copy(update={"source": str(prompts), "prompts": 1})
    with pytest.raises(ValueError, match="1 training prompts are evaluation prompts .x = "):
        stage.run(cfg.model_copy(update={"trajectories": source}), "tiny", "dflash", 0, made, tmp_path / "d")


def test_the_mask_token_is_one_the_target_never_reads_or_writes(target):
    chosen = mask_token(target, DrafterSettings())
    assert target.tokenizer.convert_ids_to_tokens(chosen) == "<|mask|>"
    assert mask_token(target, DrafterSettings(mask_token_id=200)) == 200
    for bad in (target.vocab_size, target.tokenizer.eos_token_id, target.tokenizer.pad_token_id):
        with pytest.raises(TargetError, match=str(bad)):
            mask_token(target, DrafterSettings(mask_token_id=bad))
    with pytest.raises(TargetError, match="prompt 'p'"):
        refuse_mask_in_text(chosen, [Trajectory("p", (1, chosen), (2, 3), 0.0)])


@pytest.mark.parametrize("word", ["(mask", ".mask", "\u2581mask", "(mask)", "[unused", "reserved_"])
def test_a_word_of_the_vocabulary_is_no_mask_token(word):
    core = Tokenizer(models.BPE(vocab={"a": 0, word: 1}, merges=[]))
    plain = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")
    plain.add_tokens(["mask", "mask."])
    assert mask_token(Target(tiny_model("llama"), plain, "plain"), DrafterSettings()) == len(plain) == 5
    plain.add_tokens(["<unused0>", "[MASK]"])  # added after the others, and not as special tokens
    assert mask_token(Target(tiny_model("llama"), plain, "plain"), DrafterSettings()) == 6


def test_a_vocabulary_with_gaps_is_passed_at_its_highest_id():
    core = Tokenizer(models.BPE(vocab={"a": 0, "b": 2, "c": 3}, merges=[]))
    gappy = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="a")
    assert len(gappy) == 3 and mask_token(Target(tiny_model("llama"), gappy, "gappy"), DrafterSettings()) == 4


@pytest.mark.parametrize("alignment", ["same", "next"])
def test_unset_proposals_are_one_less_than_the_block_in_either_alignment(target, tmp_path, alignment):
    cfg = config(tmp_path)
    cfg = cfg.model_copy(update={"drafter": DrafterSettings(block_size=8, alignment=alignment, taps=[0, 2])})
    assert build_drafter(cfg, target, "dflash", 0, []).config.num_proposals == 7
    assert "null: block_size - 1, in either alignment" in DrafterSettings.model_fields["num_proposals"].description


def test_the_draft_vocabulary_is_the_frequent_tokens_and_the_stops(target):
    lines = [Trajectory("p", (9,) * 50, (5, 5, 5, 7, 7, 8), 0.0)]
    assert draft_vocab(target, lines, 2 + len(target.stop_ids)).tolist() == sorted({5, 7, *target.stop_ids})
    assert draft_vocab(target, lines, None) is None and draft_vocab(target, lines, 10_000) is None


@pytest.mark.parametrize("main", [stage.main, trajectories_main, gauge_main])
def test_command_lines_explain_themselves(main, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0 and "usage: python -m harness." in capsys.readouterr().out


def test_a_mistake_on_the_command_line_is_one_line_and_code_2(capsys):
    with pytest.raises(SystemExit) as ended:
        stage.main(["--config", "laptop", "--target", "model", "--method", "dflsh", "--out", "nowhere"])
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("unknown method 'dflsh'")


def test_trajectories_of_another_target_are_trained_on_where_that_is_allowed(made, tmp_path, monkeypatch, caplog):
    other, ours = tiny_target(seed=5), json.loads((made / "manifest.json").read_text())["fingerprint"]
    monkeypatch.setattr(Target, "load", classmethod(lambda cls, *args, **kwargs: other))
    cfg = config(tmp_path)
    allowed = cfg.targets["tiny"].model_copy(update={"allow_other": ["fingerprint"]})
    cfg = cfg.model_copy(update={"targets": {"tiny": allowed}})
    facts = stage.run(cfg, "tiny", "dflash", 0, made, tmp_path / "d")
    assert facts["other"] == {"fingerprint": [ours, other.fingerprint]}
    assert facts["check"] is None, "the target would not decode another one's text"
    assert "trajectories made with fingerprint" in caplog.text
    assert json.loads((tmp_path / "d" / "done.json").read_text())["other"] == facts["other"]
