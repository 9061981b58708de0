"""Breaks: one-line faults of this field, each applied to the real code, each of which a named test must catch.

A test that cannot fail is a defect.  `BREAKS` lists faults as a rewrite of one function; `apply` recompiles that
function with the fault in it, before any test is imported.  tests/test_breaks.py runs the named tests on the broken
code and asserts that they fail.  By hand:

    HARNESS_BREAK=visible-at-the-anchor pytest tests/test_contract.py
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from dataclasses import dataclass

from tests.breaks_rounds import ROUNDS


@dataclass(frozen=True)
class Break:
    """`where` is "module:qualified.name"; its source has `old` exactly once, replaced by `new`; `caught_by` fails."""

    where: str
    old: str
    new: str
    caught_by: str


BREAKS: dict[str, Break] = {
    # -- the layout and what a block may see
    "relay-rows-shifted-by-one": Break(
        "methods.contract:BlockLayout.relay_rows",
        "(1 - self.first_slot)",
        "(2 - self.first_slot)",
        "tests/test_contract.py::test_a_relayed_state_goes_to_the_slot_that_predicts_its_token",
    ),
    "relay-kept-over-full-acceptance": Break(
        "methods.contract:BlockLayout.relay_rows",
        "live = predicts & (rows <= self.num_proposals - (not last_row))",
        "live = predicts",
        "tests/test_contract.py::test_full_acceptance_leaves_nothing_to_relay",
    ),
    "label-shifted-by-one": Break(
        "methods.contract:BlockLayout.offset",
        "return slot + 1 - self.first_slot",
        "return slot + 1",
        "tests/test_contract.py::test_each_slot_predicts_what_its_alignment_says",
    ),
    "visible-at-the-anchor": Break(
        "methods.contract:BlockLayout.visible",
        "return position < anchor",
        "return position <= anchor",
        "tests/test_drafter.py::test_features_at_or_after_the_anchor_and_later_tokens_change_nothing",
    ),
    "visible-at-the-anchor-in-training-only": Break(
        "methods.contract:BlockLayout.visible",
        "return position < anchor",
        "return position <= anchor",
        "tests/test_drafter.py::test_training_logits_equal_decoding_logits",
    ),
    # -- accepting
    "every-match-counts-not-the-leading-run": Break(
        "harness.accept:accept_exact",
        ".cumprod(dim=1)",
        "",
        "tests/test_accept.py::test_exact_match_counts_the_leading_run",
    ),
    "tie-goes-to-the-last-index": Break(
        "harness.accept:pick",
        "return logits.argmax(dim=-1)",
        "return logits.shape[-1] - 1 - logits.flip(-1).argmax(dim=-1)",
        "tests/test_accept.py::test_a_tie_goes_to_the_lowest_index",
    ),
    "refusal-redrawn-from-the-target": Break(
        "harness.accept:accept_rejection",
        "residual = (at - minus).clamp(min=0)",
        "residual = at",
        "tests/test_accept.py::test_every_rule_emits_the_targets_distribution",
    ),
    "accept-test-ignores-the-drafts-law": Break(
        "harness.accept:accept_rejection",
        "* q_token < p_token",
        "< p_token",
        "tests/test_accept.py::test_every_rule_emits_the_targets_distribution",
    ),
    "one-stream-for-everything": Break(
        "harness.accept:_bits",
        "np.uint64(STREAMS[stream])",
        "np.uint64(1)",
        "tests/test_accept.py::test_uniforms_depend_on_key_position_and_stream_and_on_nothing_else",
    ),
    "random-numbers-by-round-not-by-position": Break(
        "harness.accept:Draws.at",
        "self.anchors[:, None] + 1 + np.arange(count)[None, :]",
        "np.zeros_like(self.anchors)[:, None] + np.arange(count)[None, :]",
        "tests/test_decode.py::test_output_equals_autoregressive_for_every_acceptance",
    ),
    "proposals-drawn-by-position-alone": Break(
        "harness.accept:Draws.at",
        'if stream == "draft":',
        "if False:",
        "tests/test_decode_law.py::test_three_tokens_in_a_row_follow_the_targets_law_jointly",
    ),
    "rejection-in-the-decoder-ignores-the-drafts-law": Break(
        "harness.decode:Decoder._accept",
        "accept_rejection(logits, tokens, q,",
        "accept_rejection(logits, tokens, None,",
        "tests/test_decode_law.py::test_sampled_proposals_are_kept_as_often_as_the_two_laws_overlap",
    ),
    "rejection-runs-exact-match": Break(
        "harness.decode:Decoder._accept",
        'if self.settings.accept == "exact":',
        "if True:",
        "tests/test_decode_law.py::test_sampled_proposals_are_kept_as_often_as_the_two_laws_overlap",
    ),
    "first-token-drawn-one-position-late": Break(
        "harness.decode:Decoder._prefill",
        "np.array([len(prompt.ids) - 1])",
        "np.array([len(prompt.ids)])",
        "tests/test_decode_law.py::test_three_tokens_in_a_row_follow_the_targets_law_jointly",
    ),
    "rounds-drawn-one-position-early": Break(
        "harness.decode:Decoder._round",
        "np.array([s.anchor for s in states])",
        "np.array([s.anchor - 1 for s in states])",
        "tests/test_decode_law.py::test_three_tokens_in_a_row_follow_the_targets_law_jointly",
    ),
    # -- the decoder, its cache and its stops
    "verdict-of-the-rows-in-front": Break(
        "harness.decode:Decoder._observe",
        "verdict.accepted[keep], verdict.next_token[keep], verdict.proposals[keep], verdict.taps[keep]",
        "*(field[: len(going)] for field in vars(verdict).values())",
        "tests/test_decode.py::test_rows_that_go_on_are_shown_their_own_verdicts_when_others_stop",
    ),
    "shared-prefix-without-its-taps": Break(
        "harness.decode:Decoder._prefill",
        "pieces.append(self._prefix[1][0, :known])",
        "pieces.append(self._prefix[1][0, :known] * 0)",
        "tests/test_decode.py::test_shared_prefix_changes_nothing",
    ),
    "stop-string-reaches-back-by-characters": Break(
        "harness.stops:StopRule.__init__",
        "len(s.encode())",
        "len(s)",
        "tests/test_stops.py::test_a_stop_string_is_found_at_its_last_token_however_tokens_come",
    ),
    "cache-one-token-short-after-a-round": Break(
        "harness.decode:Decoder._commit",
        "self.cache.commit(row, accepted + 1)",
        "self.cache.commit(row, accepted)",
        "tests/test_decode.py::test_output_equals_autoregressive_for_every_acceptance",
    ),
    "rejected-tokens-stay-in-the-cache": Break(
        "harness.decode:Decoder._commit",
        "self.cache.commit(row, accepted + 1)",
        "self.cache.commit(row, self.num_proposals + 1)",
        "tests/test_decode.py::test_output_equals_autoregressive_for_every_acceptance",
    ),
    "stop-looked-for-in-the-last-token-only": Break(
        "harness.stops:StopRule.first_stop",
        "enumerate(new[:end])",
        "list(enumerate(new[:end]))[-1:]",
        "tests/test_decode.py::test_a_stop_id_inside_an_accepted_block_ends_there",
    ),
    "budget-checked-after-the-block": Break(
        "harness.stops:StopRule.first_stop",
        'end, reason = (room, "budget") if room <= len(new) else (len(new), None)',
        'end, reason = (len(new), "budget") if room <= len(new) else (len(new), None)',
        "tests/test_decode.py::test_length_never_exceeds_the_budget",
    ),
    "step-counts-what-was-accepted-past-the-stop": Break(
        "harness.decode:Decoder._commit",
        "state.committed.append(keep)",
        "state.committed.append(accepted + 1)",
        "tests/test_decode.py::test_length_never_exceeds_the_budget",
    ),
    "verdict-without-the-rejected-rows": Break(
        "harness.decode:Decoder._round",
        "Verdict(counts, chosen, tokens, out.taps)",
        "Verdict(counts, chosen, tokens, out.taps * (torch.arange(out.taps.shape[1]) <= accepted[:, None])[..., None])",
        "tests/test_decode.py::test_verdict_carries_the_states_of_rejected_rows",
    ),
    "reused-row-keeps-its-old-length": Break(
        "harness.cache:RaggedCache.reset",
        "self.lengths[row] = 0",
        "pass",
        "tests/test_decode.py::test_rows_reused_by_later_prompts_start_clean",
    ),
    "garbage-cells-not-zeroed": Break(
        "harness.cache:RaggedCache._zero",
        "tensor[row, :, start:end] = 0",
        "pass",
        "tests/test_decode.py::test_poisoned_cells_never_matter",
    ),
    "window-one-too-wide": Break(
        "harness.cache:Step._build_mask",
        "cells > self.positions[:, :, None] - window",
        "cells >= self.positions[:, :, None] - window",
        "tests/test_cache.py::test_mask_equals_its_definition",
    ),
    "tap-of-the-layer-before": Break(
        "harness.lean:LeanDecoder.__call__",
        "if index in taps:",
        "if index + 1 in taps:",
        "tests/test_target.py",
    ),
    # -- the drafter's runner
    "draft-context-not-advanced-by-the-anchor": Break(
        "methods.runner:BlockDraftRunner.observe",
        "self.lengths[row] += count + 1",
        "self.lengths[row] += count",
        "tests/test_runner.py::test_after_observe_the_cache_holds_the_positions_before_the_anchor_exactly",
    ),
    "draft-context-holds-rejected-rows": Break(
        "methods.runner:BlockDraftRunner.observe",
        "self.lengths[row] += count + 1",
        "self.lengths[row] += self.num_proposals + 1",
        "tests/test_runner.py::test_features_of_rejected_rows_never_matter",
    ),
    "reused-row-keeps-its-relay": Break(
        "methods.runner:BlockDraftRunner.start",
        "self._relay.live[row] = False",
        "pass",
        "tests/test_runner.py::test_a_relay_gets_in_decoding_what_it_gets_in_training_and_a_reused_row_gets_none",
    ),
    "unwritten-slot-goes-unnoticed": Break(
        "methods.heads:DraftBuffer.proposal",
        "if not is_written:",
        "if False:",
        "tests/test_drafter.py::test_a_slot_that_was_never_written_is_an_error",
    ),
    # -- released checkpoints
    "shift-label-turned-round": Break(
        "methods.published:_alignment",
        'return "next" if shifted else "same"',
        'return "same" if shifted else "next"',
        "tests/test_published.py::test_a_released_domino_config_reads_as_the_drafter_it_defines",
    ),
    "mask-may-be-a-stop-token": Break(
        "methods.published:_refuse_for_target",
        "meanings |= target.reserved",
        "pass",
        "tests/test_published.py::test_what_cannot_be_is_refused_by_its_name_and_value",
    ),
    "last-layer-tapped-without-its-norm": Break(
        "methods.published:refuse_unsaid",
        "target.num_layers - 1:",
        "target.num_layers:",
        "tests/test_published.py::test_what_cannot_be_is_refused_by_its_name_and_value",
    ),
    "keys-left-unread": Break(
        "methods.published:drafter_config",
        "keys.refuse_rest()",
        "pass",
        "tests/test_published.py::test_what_cannot_be_is_refused_by_its_name_and_value",
    ),
    "taps-written-one-layer-late": Break(
        "methods.published:published_config",
        "return values",
        'return values | {"dflash_config": options | {"target_layer_ids": [t + 1 for t in config.taps]}}',
        "tests/test_checkpoint_stage.py::test_a_tap_is_the_output_of_its_layer_as_transformers_lists_it_one_later",
    ),
    # -- training
    "labels-run-past-the-response": Break(
        "harness.train.anchors:labels",
        "(positions < lengths[:, None, None]) & blocks.keep[..., None]",
        "(positions < positions + 1) & blocks.keep[..., None]",
        "tests/test_train_data.py::test_labels_stand_where_the_layout_says_and_end_with_the_response",
    ),
    "walk-forgets-the-bonus-token": Break(
        "harness.train.walk:_rounds",
        "anchors[going] = at + accepted + 1",
        "anchors[going] = at + accepted.clamp(min=1)",
        "tests/test_train_walk.py",
    ),
    # -- metrics
    "stale-states-one-row-off": Break(
        "harness.gauge:_rounds",
        "stale = verified[kept + 1 :]",
        "stale = verified[kept:]",
        "tests/test_gauge.py::test_counts_of_a_hand_made_record",
    ),
} | {name: Break(*four) for name, four in ROUNDS.items()}


def apply(name: str) -> None:
    """Put the break into the running interpreter.  Raises ``ValueError`` if the code it rewrites has moved on."""
    broken = BREAKS[name]
    module_name, _, path = broken.where.partition(":")
    module = importlib.import_module(module_name)
    owner = module
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = inspect.getattr_static(owner, attribute)
    source = textwrap.dedent(inspect.getsource(original))
    if source.count(broken.old) != 1:
        raise ValueError(
            f"break {name}: {broken.where} holds {broken.old!r} {source.count(broken.old)} times, not once"
        )
    code = compile(
        source.replace(broken.old, broken.new), f"<break {name}>", "exec", dont_inherit=True, flags=_future()
    )
    scope: dict = {}
    exec(code, module.__dict__, scope)  # noqa: S102
    setattr(owner, attribute, scope[attribute])
    for other in list(sys.modules.values()):  # whoever imported the function by name
        if getattr(other, "__name__", "").split(".")[0] in ("harness", "methods"):
            for key, value in list(vars(other).items()):
                if value is original:
                    setattr(other, key, scope[attribute])


def _future() -> int:
    import __future__

    return __future__.annotations.compiler_flag
