"""Properties of the pocket world: its splits, its fixed widths, its grader, its tokenizer, and the target
that is shipped."""

import re
import time
from collections import Counter
from itertools import islice, product
from pathlib import Path
from random import Random

import pytest
import torch

from harness.pocket import suites as makers
from harness.pocket.batches import Batches, encode, free_signs, probe_rows
from harness.pocket.grade import extract, grade, run_code
from harness.pocket.lexicon import GOODS, MASK, NAMES, SPECIALS
from harness.pocket.measure import load_target, majority_share
from harness.pocket.net import Net, NetShape, to_transformers
from harness.pocket.suites import written
from harness.pocket.tokenizer import train_tokenizer
from harness.pocket.world import SCORED, SPLITS, SUITES, drafts, items, split_of

TARGET = Path(__file__).parent.parent / "harness" / "pocket" / "target"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer()


@pytest.mark.parametrize("suite", SUITES)
def test_items_are_deterministic_distinct_and_numbered(suite):
    batch = items(suite, "eval", 40)
    assert batch == items(suite, "eval", 40)
    assert batch[:10] == items(suite, "eval", 10)
    assert batch != items(suite, "eval", 40, seed=1)
    assert len({i.turns for i in batch}) == 40
    assert [i.id for i in batch[:2]] == [f"{suite}/eval/00000", f"{suite}/eval/00001"]
    assert all(len(i.turns) == len(i.replies) for i in batch)


@pytest.mark.parametrize("suite", SUITES)
def test_no_combination_of_values_is_in_two_splits(suite):
    keys = {split: {d.key for d in islice(drafts(suite, split), 300)} for split in SPLITS}
    assert all(split_of(k) == split for split in SPLITS for k in keys[split])
    assert (
        not keys["train"] & keys["eval"] and not keys["train"] & keys["heldout"] and not keys["eval"] & keys["heldout"]
    )


def test_training_batches_hold_only_training_combinations(tokenizer, monkeypatch):
    seen = []
    real = makers.MAKERS["pocket_word"]

    def spy(rng, n):
        draft = real(rng, n)
        seen.append((draft, encode(tokenizer, draft.turns, draft.replies)[0]))
        return draft

    monkeypatch.setitem(makers.MAKERS, "pocket_word", spy)
    stream = Batches(tokenizer, 1, {"pocket_word": 1.0}, easy=0.5)
    rows = [row.tolist() for _ in range(4) for row in next(stream)[0]]
    trained = {tuple(t for t in row if t != tokenizer.pad_token_id) for row in rows}
    refused = {tuple(ids) for draft, ids in seen if split_of(draft.key) != "train"}
    assert trained and refused and not trained & refused


def test_the_key_of_an_item_ignores_order_and_filler_words():
    """Two prompts that give the same persons the same values share their split, whatever the words around
    them."""
    by_key = Counter()
    for d in islice(drafts("pocket_word", "eval"), 200):
        assert d.key[1] == tuple(sorted(d.key[1]))
        by_key[d.key] += 1
    assert max(by_key.values()) == 1


@pytest.mark.parametrize("suite", SUITES)
def test_reply_length_depends_on_the_number_of_entries_alone(suite, tokenizer):
    for n in {makers.ENTRIES[suite][0], makers.ENTRIES[suite][1]}:
        lengths = {
            tuple(len(tokenizer.encode(r)) for r in d.replies)
            for d in islice(drafts(suite, "train", entries=(n, n)), 60)
        }
        assert len(lengths) == 1


@pytest.mark.parametrize("suite", SUITES)
def test_prompt_distances_vary_while_replies_are_a_function_of_the_prompt(suite, tokenizer):
    lengths, replies, most = set(), {}, makers.ENTRIES[suite][1]
    for d in islice(drafts(suite, "train", entries=(most, most)), 100):
        lengths.add(len(tokenizer.encode(d.turns[0])))
        assert replies.setdefault(d.turns, d.replies) == d.replies
    assert len(lengths) > 1, "filler words, for the number of entries is the same"


@pytest.mark.parametrize("suite", SCORED)
def test_gold_replies_are_right_and_damaged_ones_are_not(suite):
    batch = items(suite, "eval", 20)
    assert [grade(i.reference, i.replies[0]) for i in batch] == ["right"] * 20
    for item in batch:
        reply = item.replies[0]
        numbers = list(re.finditer(r"\d+", reply))
        spot = numbers[-1] if item.reference["kind"] == "answer" else numbers[0]
        digit = reply[spot.end() - 1]
        damaged = f"{reply[: spot.end() - 1]}{(int(digit) + 1) % 10}{reply[spot.end() :]}"
        assert grade(item.reference, damaged) == "wrong"
        assert grade(item.reference, "") == "no_answer"
        assert grade(item.reference, "((") == "no_answer"


@pytest.mark.parametrize("suite", SUITES)
def test_free_notation_changes_neither_length_nor_grades(suite, tokenizer):
    places, signs = makers.FREE[suite]
    rng, drawn = Random(0), {sign: Counter() for sign in signs}
    for item in items(suite, "train", 40):
        for gold in item.replies:
            reply = written(rng, suite, gold)
            free = free_signs(tokenizer, suite, gold)
            before, after = tokenizer.encode(gold), tokenizer.encode(reply)
            assert [a for a, sign in zip(before, free, strict=True) if not sign] == [
                b for b, sign in zip(after, free, strict=True) if not sign
            ]
            gold_signs = [found[0] for found in places.finditer(gold)]
            assert sum(free) == len(gold_signs)
            free_ids = [b for b, sign in zip(after, free, strict=True) if sign]
            for sign, token in zip(gold_signs, free_ids, strict=True):
                drawn[sign][tokenizer.decode([token])] += 1
            assert suite not in SCORED or grade(item.reference, reply) == "right"
    for sign, counts in drawn.items():
        if counts:
            share = counts.total() / len(signs[sign])
            assert set(counts) == set(signs[sign]) and min(counts.values()) > 0.6 * share
    assert sum(bool(counts) for counts in drawn.values()) >= 2


def test_every_pair_of_signs_leaves_code_its_value():
    for suite, (first, second) in (("pocket_complete", "=\n"), ("pocket_synth", ":,")):
        places, signs = makers.FREE[suite]
        for item in items(suite, "eval", 3):
            for a, b in product(signs[first], signs[second]):
                code = item.reference["head"] + places.sub(
                    lambda found, to={first: a, second: b}: to[found[0]], item.replies[0]
                )
                names: dict = {}
                exec(code, names)
                assert all(eval(test, names) for test in item.reference["tests"]), (a, b)


@pytest.mark.parametrize("suite", SUITES)
def test_the_shipped_target_draws_its_signs_with_equal_chance_and_knows_everything_else(suite):
    model, shipped = load_target(TARGET)
    places, signs = makers.FREE[suite]
    ids_of = {sign: [token for one in all_ for token in shipped.encode(one)] for sign, all_ in signs.items()}
    means, certain = {sign: [] for sign in signs}, []
    for item in items(suite, "heldout", 6):
        gold = item.replies[0]
        ids, wanted = encode(shipped, item.turns[:1], (written(Random(item.id), suite, gold),))
        free = iter([*free_signs(shipped, suite, gold), False])
        which = iter([found[0] for found in places.finditer(gold)])
        with torch.no_grad():
            chance = model(torch.tensor([ids])).logits[0].softmax(-1)
        for at in range(1, len(ids)):
            if wanted[at] and next(free):
                sign = next(which)
                assert chance[at - 1, ids_of[sign]].sum() > 0.98
                means[sign].append(chance[at - 1, ids_of[sign]])
            elif wanted[at]:
                certain.append(float(chance[at - 1, ids[at]]))
    for sign, all_ in means.items():
        if all_:
            mean, fair = torch.stack(all_).mean(0), 1 / len(signs[sign])
            assert len(mean) == len(signs[sign]) and 0.6 * fair < mean.min() and mean.max() < 1.5 * fair, (sign, mean)
    assert sum(c > 0.5 for c in certain) / len(certain) > 0.99 and sum(certain) / len(certain) > 0.97


@pytest.mark.parametrize("suite", SCORED)
def test_a_majority_answer_scores_little(suite):
    batch = items(suite, "eval", 200)
    assert majority_share(batch) <= 0.20
    assert sum(grade(i.reference, batch[0].replies[0]) == "right" for i in batch[1:20]) <= 0.2 * 19


def test_running_code_is_bounded_in_time_memory_and_children(tmp_path):
    mark = tmp_path / "alive"
    assert run_code("f = 1", ["f == 1"])
    assert not run_code("f = 1", ["f == 2"])
    assert not run_code("while True: pass", ["True"], wall=1.0)
    assert not run_code("x = bytearray(10**10)", ["True"])
    assert not run_code("import sys; sys.exit(0)", ["False"])
    assert not run_code("raise KeyboardInterrupt", ["True"])
    child = f"import os, time\nif os.fork() == 0:\n    time.sleep(1)\n    os.mkdir({str(mark)!r})\n"
    child += "else:\n    time.sleep(9)"
    assert not run_code(child, ["True"], wall=0.4)
    time.sleep(1.0)  # a grandchild that outlived its group would have left its mark by now
    assert not mark.exists()


def test_an_unscored_reference_is_refused_by_name():
    with pytest.raises(ValueError, match="'none'"):
        grade(items("pocket_chat", "eval", 1)[0].reference, "x")


def test_unknown_suite_and_split_are_named():
    with pytest.raises(KeyError, match="pocket_nope"):
        items("pocket_nope", "eval", 1)
    with pytest.raises(ValueError, match="test"):
        items("pocket_word", "test", 1)


def test_extract_takes_the_last_marked_answer():
    assert extract({"kind": "answer", "form": "answer", "answer": "12"}, "answer=11 no, answer=12") == "12"
    assert extract({"kind": "answer", "form": "boxed", "answer": "07"}, r"\boxed{07}") == "07"


def test_tokenizer_round_trip_single_digits_and_single_words(tokenizer):
    for text in [
        "ann 307",
        "x=12\n\t y",
        "naïve 数 🙂",
        "  two  spaces",
        *(t for i in items("pocket_synth", "eval", 3) for t in i.turns),
    ]:
        assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
    for number in ("0", "07", "99", "12345"):
        assert len(tokenizer.encode(number)) == len(number)
        assert len(tokenizer.encode(f"={number}")) == 1 + len(number)
    assert all(len(tokenizer.encode(f" {w}")) == 1 for w in NAMES + GOODS)
    ids = tokenizer.convert_tokens_to_ids(list(SPECIALS))
    assert len(set(ids)) == len(SPECIALS) and max(ids) < len(tokenizer) <= 640
    assert tokenizer.mask_token == MASK and tokenizer.mask_token_id not in (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )


def test_training_ids_are_those_of_the_chat_template(tokenizer):
    item = items("pocket_chat", "eval", 1)[0]
    messages = []
    for turn, reply in zip(item.turns, item.replies, strict=True):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": reply}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    ids, wanted = encode(tokenizer, item.turns, item.replies)
    assert ids == list(rendered)
    prompt = tokenizer.apply_chat_template(messages[:1], tokenize=True, add_generation_prompt=True, return_dict=False)
    assert ids[: len(prompt)] == list(prompt) and wanted.index(True) == len(prompt)


def test_the_lean_net_and_its_transformers_export_agree():
    torch.manual_seed(0)
    net = Net(NetShape(vocab=50, layers=3, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48))
    ids = torch.randint(0, 50, (2, 37))
    with torch.no_grad():
        difference = net.logits(net(ids)) - to_transformers(net, {"pad": 0, "end": 3})(ids).logits
    assert difference.abs().max() < 1e-5


def test_the_shipped_target_is_small_whole_and_speaks_the_worlds_tokens(tokenizer):
    from safetensors import safe_open

    weights = TARGET / "model.safetensors"
    assert weights.stat().st_size <= 5_000_000
    with safe_open(weights, "pt") as file:
        assert all(file.get_tensor(k).dtype == torch.bfloat16 for k in file.keys())
    model, shipped = load_target(TARGET)
    assert shipped.get_vocab() == tokenizer.get_vocab() and shipped.chat_template == tokenizer.chat_template
    assert model.dtype == torch.float32 and model.config.vocab_size >= len(tokenizer)
    assert model.config.max_position_embeddings >= 2048
    assert model.generation_config.eos_token_id in (shipped.eos_token_id, [shipped.eos_token_id])


def test_the_shipped_target_solves_most_of_a_small_sample(tokenizer):
    """Teacher-forced, so one forward: every token but the free signs is the argmax, behind signs drawn at random."""
    model, _ = load_target(TARGET)
    for suite in SCORED:
        ids, labels = probe_rows(tokenizer, suite, 12, "eval")
        with torch.no_grad():
            wrong = (model(ids).logits.argmax(-1) != labels) & (labels != -100)
        solved = int((~wrong.any(1)).sum())
        assert solved >= 8, f"{suite}: {solved} of 12"
