"""What each stage depends on: its slice of the configuration and the files behind it."""

from types import SimpleNamespace

import pytest

from harness.config import ConfigError, load_config
from harness.fingerprints import content_digest
from harness.plan import Plan


def plan_of(**changes) -> Plan:
    return Plan(load_config("pocket", changes, check=False))


TARGET = SimpleNamespace(target="pocket")


@pytest.mark.parametrize("twin", ["pocket", "gsm8k"])
def test_stop_strings_of_the_evaluated_twin_are_part_of_the_trajectories(twin):
    suite = {"source": twin, "prompts": 1, "max_new_tokens": 8}
    settings = {"suites": {"pocket_word": suite}, "trajectories": {"source": twin}}
    before = plan_of(**settings).trajectories(TARGET)
    suite["stop_strings"] = ["END"]
    assert plan_of(**settings).trajectories(TARGET) != before


def test_every_source_of_a_mixture_is_part_of_the_trajectories(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n')
    suite = {"source": "mt_bench", "prompts": 1, "max_new_tokens": 8}
    asked = {"source": None, "prompts": None, "sources": {"instructions": 2, str(file): 3}}
    settings = {"suites": {"talk": suite}, "trajectories": asked}

    def said():
        plan = plan_of(**settings)
        return plan.trajectories(TARGET), plan.trajectories_code()

    before = said()
    asked["sources"] = dict(reversed(asked["sources"].items()))
    assert said() == before, "their order says nothing"
    suite["stop_strings"] = ["END"]
    settings_changed = said()
    file.write_text('{"prompt": "two"}\n')
    content_changed = said()
    asked["sources"] = {**asked["sources"], "mbpp": 1}
    assert len({before[0], settings_changed[0], content_changed[0], said()[0]}) == 4
    assert before[1] == content_changed[1] != said()[1]


@pytest.mark.parametrize(("source", "told"), [("humaneval", True), ("pocket", True), ("gsm8k", False)])
def test_running_code_is_part_of_responses_that_are_code_alone(source, told):
    suites = {"pocket_word": {"source": source, "prompts": 1, "max_new_tokens": 8}}
    suites |= dict.fromkeys(["pocket_algebra", "pocket_complete", "pocket_synth", "pocket_chat"])
    wildcards = SimpleNamespace(target="pocket", method="ar")
    settings = {"suites": suites, "concurrency": {"suites": []}}
    said = [plan_of(**settings, run_code=run).decode(wildcards) for run in (True, False)]
    assert (said[0] != said[1]) == told


def test_what_a_prompt_file_holds_is_part_of_the_trajectories(tmp_path):
    file = tmp_path / "mine.jsonl"
    said = []
    for words in ("one", "two"):
        file.write_text(f'{{"prompt": "{words}"}}\n')
        said.append(plan_of(trajectories={"source": str(file)}).trajectories(TARGET))
    assert said[0] != said[1]


def test_a_damaged_resolved_configuration_is_written_again(tmp_path):
    plan = plan_of(work_dir=str(tmp_path))
    path = plan.write_config()
    text = path.read_text()
    path.write_text(text.replace("prompts: 50", "prompts: 5"))
    assert path.read_text() != text
    assert plan.write_config() == path and path.read_text() == text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"output_dir": "res{x}"}, r"output_dir is 'res\{x\}'.*wildcard"),
        ({"work_dir": "}"}, "work_dir is '}'"),
        ({"extends": "pocket"}, "a name of its own"),
        ({"report": {"figure_formats": ["png", "pdf", "png"]}}, "figure_formats is .*name each once"),
    ],
)
def test_settings_that_a_plan_cannot_take_are_refused_by_name(settings, words):
    with pytest.raises(ConfigError, match=words):
        Plan.of(settings)


def test_card_and_report_of_a_target_are_no_part_of_its_content(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = content_digest(tmp_path)
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "README.md").write_text("words")
    assert content_digest(tmp_path) == before
    (tmp_path / "config.json").write_text("[]")
    assert content_digest(tmp_path) != before


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="work_dir is .*file', which is a file"):
        Plan.of({"work_dir": str(tmp_path / "file")})
