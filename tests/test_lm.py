"""The decoder through plain lm-eval: the same prompts, outputs, steps and scores as the pipeline's own."""

import json
from dataclasses import replace
from pathlib import Path

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from tokenizers.processors import TemplateProcessing

from harness.arms import load_arm
from harness.config import load_config
from harness.data import Task, TaskError, first_messages, prompt_of
from harness.lm import DraftedLM
from harness.lm_tasks import document, main, process_results, write_tasks
from harness.run_suite import run_suite
from harness.target import Target
from tests.tiny import USER, tiny_target

ROOT = Path(__file__).parent.parent
DRAFTER = ROOT / "results" / "reference" / "drafters" / "dflow"
SUITES = {"pocket_word": {"prompts": 2, "max_new_tokens": 48}, "pocket_complete": {"prompts": 2, "max_new_tokens": 48}}
OTHERS = dict.fromkeys(("pocket_algebra", "pocket_synth", "pocket_chat"))


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    work = str(tmp_path_factory.mktemp("work"))
    return load_config("reference", {"suites": SUITES | OTHERS, "work_dir": work, "decode": {"trace": False}})


@pytest.fixture(scope="module")
def target(config):
    return Target.load(config.target("pocket"), "pocket", check=False)


@pytest.fixture(scope="module")
def folder(config, target, tmp_path_factory):
    out = tmp_path_factory.mktemp("tasks")
    assert write_tasks(config, target, out) == ["blockdraft_pocket_word", "blockdraft_pocket_complete"]
    return out


def evaluated(lm, folder, **more):
    tasks = sorted(f"blockdraft_{path.stem}" for path in folder.glob("*.yaml"))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        lm, tasks=tasks, task_manager=manager, apply_chat_template=lm.target.has_template, bootstrap_iters=0, **more
    )


@pytest.mark.parametrize("temperature", [0, 1])
def test_outputs_steps_and_scores_are_those_of_the_pipeline(config, target, folder, temperature):
    lm = DraftedLM(target, load_arm(config, target, "dflow", DRAFTER), rows=2)
    kwargs = {"gen_kwargs": {"temperature": 1.0, "do_sample": True}} if temperature else {}
    found = evaluated(lm, folder, **kwargs)
    responses = {response.prompt_id: response for response in lm.responses}
    assert len(responses) == 4
    committed = 0
    for suite in SUITES:
        records = run_suite(config, target, "pocket", "dflow", suite, temperature, 0, DRAFTER)
        texts = {s["doc"]["id"]: s["resps"][0][0] for s in found["samples"][f"blockdraft_{suite}"]}
        for record in records:
            ours = responses[record["prompt_id"]]
            assert ours.output_ids == record["output_ids"] and ours.committed == record["committed"]
            assert texts[record["prompt_id"]] == record["text"]
            committed += sum(record["committed"])
        accuracy = found["results"][f"blockdraft_{suite}"]["accuracy,none"]
        assert accuracy == sum(record["score"] for record in records) / len(records)
    assert lm.acceptance_length == committed / sum(len(r.committed) for r in lm.responses)


def test_a_base_model_is_asked_in_plain_words_and_stops_at_strings(tmp_path):
    """Without a template: the tokenizer's own special tokens, and an answer that ends before the stop string."""
    target = tiny_target(template=None)
    lm = DraftedLM(target, rows=3)
    plain = lm.generate_until([request("say", until=[], max_gen_toks=24), request("more", until=[], max_gen_toks=24)])
    assert lm.responses[0].prompt_ids == tuple(target.encode("say"))
    stop = plain[0][5:7]
    cut = lm.generate_until([request("say", until=stop, max_gen_toks=24), request("more", until=[], max_gen_toks=24)])
    assert cut == [plain[0][: plain[0].index(stop)], plain[1]]


def request(text, doc=None, **kwargs):
    return Instance("generate_until", {} if doc is None else doc, (text, kwargs), 0, ("task", hash(text) % 999, 1))


def test_requests_come_back_in_their_own_order_whatever_they_ask():
    lm = DraftedLM(tiny_target(), rows=2)
    mixed = [request(f"p{i}", until=[], max_gen_toks=6 + 3 * (i % 2)) for i in range(5)]
    alone = [DraftedLM(tiny_target()).generate_until([one])[0] for one in mixed]
    assert lm.generate_until(mixed) == alone
    assert [len(r.output_ids) for r in lm.responses] == [6, 9, 6, 9, 6]


def test_the_same_prompt_may_be_asked_twice():
    lm = DraftedLM(tiny_target(), rows=2)
    twice = [request("p", {"id": "same"}, max_gen_toks=6)] * 2
    first, second = lm.generate_until(twice)
    assert first == second and len(lm.responses) == 2


def test_a_budget_of_nothing_is_no_word_for_the_usual_one():
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        DraftedLM(tiny_target()).generate_until([request("p", max_gen_toks=0)])


@pytest.mark.parametrize(
    ("kwargs", "words"), [({"top_p": 0.5}, "top_p"), ({"num_beams": 4}, "num_beams"), ({"stop": ["x"]}, "stop")]
)
def test_what_the_decoder_does_not_do_is_refused(kwargs, words):
    with pytest.raises(ValueError, match=f"task 'task' asks for .*{words}.*may hold do_sample, max_gen_toks"):
        DraftedLM(tiny_target()).generate_until([request("p", **kwargs)])


def test_a_chat_begins_once_whoever_rendered_it():
    """lm-eval may keep its requests from one run to the next, and then renders nothing."""
    target = tiny_target()
    begin = target.tokenizer.convert_tokens_to_ids(USER)
    target.tokenizer.bos_token = USER
    target.tokenizer._tokenizer.post_processor = TemplateProcessing(f"{USER} $A", special_tokens=[(USER, begin)])
    messages = [{"role": "user", "content": "x"}]
    assert target.encode("x")[0] == begin
    text = DraftedLM(target).apply_chat_template(messages)
    kept = DraftedLM(target)
    kept.generate_until([request(text, until=[], max_gen_toks=2), request("x", until=[], max_gen_toks=2)])
    assert [response.prompt_ids for response in kept.responses] == [
        tuple(target.render(messages)),
        tuple(target.encode("x")),
    ]


def test_likelihoods_and_begun_answers_are_refused():
    lm = DraftedLM(tiny_target())
    for ask in (lm.loglikelihood, lm.loglikelihood_rolling):
        with pytest.raises(NotImplementedError, match="of the target alone"):
            ask([])
    with pytest.raises(ValueError, match="gen_prefix"):
        lm.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=False)
    with pytest.raises(ValueError, match="by name"):
        lm.chat_template("other")
    assert lm.acceptance_length != lm.acceptance_length


def test_a_task_file_says_all_that_is_asked(folder, config):
    lines = [json.loads(line) for line in (folder / "pocket_word.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(line["text"] and line["gold"] for line in lines)
    assert process_results(lines[0], [lines[0]["gold"]]) == {"accuracy": 1.0, "no_answer": 0.0}
    assert process_results(lines[0], ["nothing"]) == {"accuracy": 0.0, "no_answer": 1.0}
    assert process_results(lines[0] | {"scored": False}, [lines[0]["gold"]]) == {}
    text = (folder / "pocket_word.yaml").read_text()
    assert "dataset_path: json" in text and "max_gen_toks: 48" in text and "!function" in text


def test_a_base_model_is_asked_the_plain_form():
    shot, asked = "Q: 1+1?\nA: 2\n", "Q: 2+2?\nA:"
    task = Task("t/1", "s", ("in chat",), {"kind": "number", "answer": "4"}, plain=(asked,), few_shot=shot)
    base, chat = tiny_target(template=None), tiny_target()
    texts = [document(task, target, 8, scored=True, run_code=False)["text"] for target in (base, chat)]
    assert texts == [shot + asked, "in chat"]
    assert tuple(base.encode(texts[0])) == prompt_of(task, first_messages(task), base).ids
    with pytest.raises(TaskError, match="no chat template and this task no plain form"):
        document(replace(task, plain=()), base, 8, scored=True, run_code=False)


def test_dialogues_stay_out(config, target, tmp_path, caplog):
    chat = load_config("reference", {"suites": {"pocket_chat": {"prompts": 1}, **dict.fromkeys(SUITES), **{
        name: None for name in OTHERS if name != "pocket_chat"}}})  # fmt: skip
    assert write_tasks(chat, target, tmp_path) == [] and "pocket_chat is a dialogue" in caplog.text


def test_the_command_names_its_tasks(tmp_path, capsys):
    main(["--config", "smoke", "--target", "pocket", "--out", str(tmp_path)])
    assert "blockdraft_pocket_word" in capsys.readouterr().out.split()
    with pytest.raises(SystemExit) as ended:
        main(["--config", "smoke", "--target", "nobody", "--out", str(tmp_path)])
    assert ended.value.code == 2
