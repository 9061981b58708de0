"""The build command replaces a target with its successor, and nothing else with anything."""

import pytest
import torch

from harness.pocket import build
from harness.pocket.net import Net, NetShape
from harness.pocket.tokenizer import train_tokenizer


def test_a_folder_that_holds_no_target_is_refused_before_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(build, "train", lambda *_: pytest.fail("training began"))
    with pytest.raises(SystemExit):
        build.main(["--out", str(tmp_path), "--work", str(tmp_path / "work")])
    assert f"{tmp_path} holds something else than a target" in capsys.readouterr().err
    with pytest.raises(ValueError, match="holds something else"):
        build.export(tmp_path / "checkpoint.pt", tmp_path / "thesis.txt", None)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_the_card_of_the_target_before_is_in_place_as_soon_as_the_new_one_is(tmp_path):
    """Nothing that comes later, such as hours of measuring, may stand between the two."""
    tokenizer = train_tokenizer()
    shape = NetShape(hidden=16, layers=1)
    state = {"shape": shape.as_dict(), "net": Net(shape).state_dict(), "step": 3, "recipe": {}}
    torch.save(state, tmp_path / "checkpoint.pt")
    out = tmp_path / "target"
    out.mkdir()
    (out / "config.json").write_text("{}")
    (out / "README.md").write_text("the card")
    (out / "old.bin").write_text("old")
    assert build.export(tmp_path / "checkpoint.pt", out, tokenizer)["step"] == 3
    assert (out / "README.md").read_text() == "the card" and (out / "model.safetensors").is_file()
    assert not (out / "old.bin").exists() and not list(tmp_path.glob("*.part"))
