"""Import and export of released checkpoints: files in, files out, the same bits and drafts; refusals leave nothing.

pytest tests/test_checkpoint_stage.py
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from harness import checkpoint as stage
from harness.checkpoint import export_drafter, facts_of, import_drafter, read_released
from harness.config import load_config, project_path
from harness.decode import Decoder, DecodeSettings, Prompt
from harness.sections import Pretrained
from methods.checkpoint import CheckpointError, load_drafter, published_name, save_drafter
from methods.config import DrafterConfig
from methods.drafter import BlockDrafter
from methods.published import FORMATS
from methods.runner import BlockDraftRunner
from tests.drafting import HEAD
from tests.tiny import END, MASK, PAD, byte_tokenizer, tiny_target

FILES = ["config.json", "model.safetensors"]
formats = pytest.mark.parametrize("name", list(FORMATS))
alignments = pytest.mark.parametrize("alignment", ["same", "next"])


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def ours(target, folder, name="dflash", alignment="same", dtype=torch.float32, **changes):
    """A random drafter of this project for the tiny target, on disk."""
    config = DrafterConfig.for_target(
        target.config,
        method=name,
        target=target.name,
        target_source=target.source,
        target_revision=target.revision,
        target_fingerprint=target.fingerprint,
        template_hash=target.template_hash,
        thinking=target.thinking,
        mask_token_id=260,
        rope_theta=target.rope_theta,
        head_options=HEAD,
        block_size=6,
        alignment=alignment,
        num_layers=2,
        taps=(0, 2, 1),
    )
    torch.manual_seed(1)
    built = BlockDrafter(replace(config, **changes), target.binding).to(dtype)
    for parameter in built.parameters():  # norms at one would hide a norm in the wrong place
        parameter.data += 0.2 * torch.randn_like(parameter)
    save_drafter(folder, built)
    return folder


def brought_in(target, source, out, name="dflash"):
    given = Pretrained(source=str(source), format=name)
    return import_drafter(read_released(given), given, target, out)


def responses(target, folder):
    """Outputs, steps and every proposal of two prompts."""
    drafter = load_drafter(folder, target.binding, dtype=target.dtype).eval()
    settings = DecodeSettings(temperature=0.0, seed=0, max_new_tokens=20, stop_ids=(), trace=True)
    prompts = [Prompt(str(start), tuple(range(start, start + 7))) for start in (40, 90)]
    arm = lambda rows, capacity: BlockDraftRunner(drafter, rows, capacity)  # noqa: E731
    found = Decoder(target, arm, settings).run(prompts)
    return [(r.output_ids, r.accepted, r.committed, r.trace) for r in found]


# -- there and back -----------------------------------------------------------------------------------------------


@formats
@alignments
def test_a_drafter_comes_back_bit_for_bit_and_takes_the_same_steps(target, tmp_path, name, alignment):
    before = ours(target, tmp_path / "ours", name, alignment)
    export_drafter(before, name, target, tmp_path / "theirs")
    brought_in(target, tmp_path / "theirs", tmp_path / "back", name)
    for file in FILES:
        assert (tmp_path / "back" / file).read_bytes() == (before / file).read_bytes()
    assert responses(target, tmp_path / "back") == responses(target, before)
    # A drafter read under the other alignment drafts something else: the steps would show it.
    values = json.loads((tmp_path / "theirs" / "config.json").read_text())
    values["dflash_config"]["shift_label"] = alignment == "same"
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(values))
    brought_in(target, tmp_path / "theirs", tmp_path / "turned", name)
    assert responses(target, tmp_path / "turned") != responses(target, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_is_that_of_the_tensors_and_stands_in_the_config(target, tmp_path, dtype):
    export_drafter(ours(target, tmp_path / "ours", dtype=dtype), "dflash", target, tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    facts = brought_in(target, tmp_path / "theirs", tmp_path / "back")
    assert facts["dtype"] == str(dtype).removeprefix("torch.")
    found, before = (load_file(tmp_path / folder / "model.safetensors") for folder in ("back", "ours"))
    assert found.keys() == before.keys()
    assert all(found[key].dtype == dtype and torch.equal(found[key], before[key]) for key in before)


@formats
def test_trained_drafters_pass_through_the_command_line_unchanged(tmp_path, capsys, name):
    """The committed reference drafters, in bfloat16, with the target they were trained for."""
    trained = project_path(f"results/reference/drafters/{name}")
    common = ["--target", "pocket", "--format", name]
    stage.main(["export", *common, "--drafter", str(trained), "--out", str(tmp_path / "theirs")])
    stage.main(["import", *common, "--source", str(tmp_path / "theirs"), "--out", str(tmp_path / "back")])
    assert '"sha256"' in capsys.readouterr().out
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (trained, tmp_path / "back"))
    assert after == before | {key: after[key] for key in ("target", "target_source")}
    assert (tmp_path / "back" / FILES[1]).read_bytes() == (trained / FILES[1]).read_bytes()


def test_a_tap_is_the_output_of_its_layer_as_transformers_lists_it_one_later(target, tmp_path):
    export_drafter(ours(target, tmp_path / "ours"), "dflash", target, tmp_path / "theirs")
    layers = json.loads((tmp_path / "theirs" / "config.json").read_text())["dflash_config"]["target_layer_ids"]
    ids = torch.arange(30, 50)[None]
    target.use_our_attention(False)
    try:
        states = target.model(ids, output_hidden_states=True).hidden_states
    finally:
        target.use_our_attention(True)
    theirs = torch.cat([states[layer + 1] for layer in layers], dim=-1)
    torch.testing.assert_close(target.features(ids, (0, 2, 1)), theirs, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(target.features(ids, (1, 3, 2)), theirs, rtol=1e-2, atol=1e-2)


def test_the_mark_says_where_a_drafter_comes_from_and_claims_no_training(target, tmp_path):
    export_drafter(ours(target, tmp_path / "ours"), "dflash", target, tmp_path / "theirs")
    facts = brought_in(target, tmp_path / "theirs", tmp_path / "back")
    done = json.loads((tmp_path / "back" / "done.json").read_text())
    assert done["imported"] == facts["imported"]
    assert done["imported"]["source"] == str(tmp_path / "theirs") and len(done["imported"]["sha256"]) == 64
    assert done["taken_from_target"]["target_fingerprint"] == target.fingerprint
    assert not {"plateau", "steps", "seconds", "accept_walk"} & done.keys()
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["config.json", "done.json", FILES[1]]


# -- what a target says of itself ---------------------------------------------------------------------------------


def test_tokens_a_mask_must_not_be_are_those_of_tokenizer_and_stops(target):
    tokenizer = byte_tokenizer()
    ids = {role: tokenizer.convert_tokens_to_ids(token) for role, token in (("stop", END), ("padding", PAD))}
    facts = facts_of(target)
    assert facts.reserved == {ids["stop"]: "stop", ids["padding"]: "padding"}
    assert tokenizer.convert_tokens_to_ids(MASK) not in facts.reserved
    assert (facts.num_layers, facts.embedding_rows, facts.scaled, facts.softcap) == (4, 261, False, None)


def test_a_target_that_scales_its_embeddings_says_so():
    scaling = tiny_target("gemma3")
    assert facts_of(scaling).scaled
    ids = torch.arange(4)
    assert not torch.equal(scaling.embed(ids), F.embedding(ids, scaling.model.get_input_embeddings().weight))


# -- refusals -----------------------------------------------------------------------------------------------------


def rewrite(folder, **options):
    values = json.loads((folder / "config.json").read_text())
    values["dflash_config"] |= options
    (folder / "config.json").write_text(json.dumps(values))


def retensor(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def theirs(target, tmp_path):
    export_drafter(ours(target, tmp_path / "ours", "domino", "next"), "domino", target, tmp_path / "theirs")
    return tmp_path / "theirs"


DAMAGES = {
    "mask is the pad": (lambda at: rewrite(at, mask_token_id=257), "mask_token_id is 257, the padding token"),
    "mask is the eos": (lambda at: rewrite(at, mask_token_id=256), "mask_token_id is 256, the stop token"),
    "mask outside": (lambda at: rewrite(at, mask_token_id=261), "mask_token_id is 261, outside"),
    "no taps": (lambda at: rewrite(at, target_layer_ids=[]), "target_layer_ids"),
    "last layer": (lambda at: rewrite(at, target_layer_ids=[0, 2, 3]), r"target_layer_ids is \[0, 2, 3\].*final norm"),
    "missing": (lambda at: retensor(at, lambda t: t.pop("embed_proj.2.weight")), r"missing.*embed_proj.2.weight"),
    "extra": (lambda at: retensor(at, lambda t: t.update(x=torch.ones(1))), r"unknown tensors: \['x'\]"),
    "wide": (lambda at: retensor(at, lambda t: t.update({"fc.weight": torch.ones(9, 9)})), r"fc.weight has shape \[9"),
    "nan": (lambda at: retensor(at, lambda t: t["norm.weight"].fill_(torch.nan)), r"NaN or inf: \['norm.weight'\]"),
    "no config": (lambda at: (at / "config.json").unlink(), "no config.json in it"),
    "no weights": (lambda at: (at / "model.safetensors").unlink(), "no model.safetensors in it"),
    "half a config": (lambda at: (at / "config.json").write_text("{"), "cannot be read"),
    "half the weights": (lambda at: (at / "model.safetensors").write_bytes(b"x" * 9), "cannot be read"),
    "a list": (lambda at: (at / "config.json").write_text("[]"), "config.json is no object"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_nothing_is_written(target, theirs, tmp_path, case):
    damage, words = DAMAGES[case]
    damage(theirs)
    with pytest.raises(CheckpointError, match=words) as caught:
        brought_in(target, theirs, tmp_path / "back", "domino")
    assert str(theirs) in str(caught.value) and not (tmp_path / "back").exists()


def test_a_checkpoint_of_the_other_format_is_refused(target, theirs, tmp_path):
    with pytest.raises(CheckpointError, match="projector_type is 'domino'"):
        brought_in(target, theirs, tmp_path / "back", "dflash")


def test_the_mark_of_an_older_import_does_not_vouch_for_one_that_failed_half_way(target, theirs, tmp_path, monkeypatch):
    brought_in(target, theirs, tmp_path / "back", "domino")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(stage, "save_drafter", full)
    with pytest.raises(OSError, match="no space"):
        brought_in(target, theirs, tmp_path / "back", "domino")
    assert not (tmp_path / "back" / "done.json").exists()


def test_early_exports_of_the_head_are_read(target, theirs, tmp_path):
    def early(tensors):
        for key in [key for key in tensors if key.startswith(("prefix_gru", "embed_proj"))]:
            tensors[f"logit_head.{key}"] = tensors.pop(key)

    retensor(theirs, early)
    brought_in(target, theirs, tmp_path / "back", "domino")
    assert (tmp_path / "back" / FILES[1]).read_bytes() == (tmp_path / "ours" / FILES[1]).read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_fingerprint": "beef"}, "target_fingerprint is 'beef'.* in this run"),
        ({"template_hash": "1"}, "template_hash is '1'"),
        ({"thinking": True}, "thinking is True"),
        ({"taps": (0, 1, 3)}, r"target_layer_ids is \[0, 1, 3\].*final norm"),
    ],
)
def test_a_drafter_of_another_target_or_with_taps_of_another_meaning_is_not_exported(target, tmp_path, changes, words):
    folder = ours(target, tmp_path / "ours", **changes)
    with pytest.raises(CheckpointError, match=words):
        export_drafter(folder, "dflash", target, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_a_damaged_drafter_is_not_exported(target, tmp_path):
    folder = ours(target, tmp_path / "ours")
    retensor(folder, lambda tensors: tensors["fc.weight"].view(-1)[:1].fill_(torch.nan))
    with pytest.raises(CheckpointError, match=r"NaN or inf: \['fc.weight'\]"):
        export_drafter(folder, "dflash", target, tmp_path / "theirs")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model.safetensors cannot be read"):
        export_drafter(folder, "dflash", target, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_an_export_that_the_released_package_would_misread_is_said(target, tmp_path, caplog):
    export_drafter(ours(target, tmp_path / "ours"), "dflash", target, tmp_path / "theirs")
    assert "shift_label" not in caplog.text
    export_drafter(ours(target, tmp_path / "next", alignment="next"), "dflash", target, tmp_path / "shifted")
    assert "shift_label is true" in caplog.text


# -- commands -----------------------------------------------------------------------------------------------------


def ended(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        stage.main([*arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err


IMPORT = ["import", "--target", "pocket", "--out", "nowhere"]


def test_a_hub_that_does_not_answer_is_one_line_before_the_target_is_loaded(capsys, monkeypatch):
    monkeypatch.setattr(stage, "_target", lambda *_: pytest.fail("the target was loaded"))
    source = ["--format", "dflash", "--source", "z-lab/Qwen3-8B-DFlash-b16", "--revision", "abc"]
    said = ended(capsys, *IMPORT, *source)
    assert said.count("\n") == 1 and "z-lab/Qwen3-8B-DFlash-b16 at revision abc" in said
    assert "gave no config.json" in said and "download it, and name the folder" in said


def test_a_file_of_the_hub_has_the_commit_of_its_folder(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    file = tmp_path / "models--z-lab--x" / "snapshots" / commit / "config.json"
    assert stage._commit(file) == commit and stage._commit(tmp_path / "config.json") is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a --method"),
        (["--source", "x/y"], "by --source and --format"),
        (["--method", "dflash", "--format", "dflash"], "name a --method"),
        (["--method", "dflash", "--revision", "abc"], "name a --method"),
        (["--revision", "abc", "--format", "dflash"], "name a --method"),
        (["--method", "dflash", "--format", "dflash", "--source", "x/y"], "name a --method"),
        (["--method", "dflash"], "pretrained.pocket names no checkpoint for 'dflash'"),
        (["--method", "dflahs"], "did you mean 'dflash'"),
        (["--format", "dflash", "--source", "./nowhere"], "no such file or folder"),
        (["--target", "poket", "--method", "dflash"], "did you mean 'pocket'"),
        (["--target", "poket", "--format", "dflash", "--source", "x/y"], "did you mean 'pocket'"),
        (["--config", "pockte", "--method", "dflash"], "did you mean 'pocket'"),
    ],
)
def test_a_command_that_cannot_be_run_says_why(capsys, arguments, words):
    said = ended(capsys, *IMPORT, *arguments)
    assert words in said and said.count("\n") == 1


def test_nothing_is_written_over_its_own_source(capsys, tmp_path):
    source = ["--format", "dflash", "--out", str(tmp_path), "--target", "pocket"]
    assert "written over" in ended(capsys, "import", *source, "--source", str(tmp_path))
    assert "written over" in ended(capsys, "export", *source, "--drafter", str(tmp_path))


def test_a_method_takes_what_the_configuration_names(tmp_path):
    given = {"source": "z-lab/x", "format": "dflash", "revision": "abc"}
    config = load_config("pocket", {"pretrained": {"pocket": {"dflash": given}}})
    assert stage.configured(config, "pocket", "dflash") == Pretrained(**given)


def test_tensors_have_the_same_names_on_both_sides(target, tmp_path):
    folder = ours(target, tmp_path / "ours", "domino")
    built = load_drafter(folder, target.binding)
    export_drafter(folder, "domino", target, tmp_path / "theirs")
    found = load_file(tmp_path / "theirs" / "model.safetensors")
    assert sorted(found) == sorted(published_name(key) for key in built.state_dict())
