"""Breaks of the relay, the sequential head, the rounds, the variants and the benchmarks; see tests/breaks.py.

Each name stands for where ("module:qualified.name"), the text there, what replaces it, and the test that fails then.
"""

from __future__ import annotations

ROUNDS: dict[str, tuple[str, str, str, str]] = {
    # -- which state goes to which slot
    "relayed-state-of-the-row-before": (
        "methods.relays:VerifierRelay.state",
        "torch.where(live, rows + offset, -1)",
        "torch.where(live, rows + offset - 1, -1)",
        "tests/test_relay_map.py::test_in_a_decoded_round_each_slot_gets_the_state_that_predicts_its_token",
    ),
    "first-rejected-row-kept-by-the-wrong-option": (
        "methods.relays:VerifierRelay.state",
        "first_rejected=options.first_rejected",
        "first_rejected=options.last_row",
        "tests/test_relay_map.py::test_in_a_decoded_round_each_slot_gets_the_state_that_predicts_its_token",
    ),
    "drafters-states-of-the-slot-before": (
        "methods.relays:VerifierRelay.state",
        "rows + layout.first_slot, -1)",
        "rows + layout.first_slot - 1, -1)",
        "tests/test_relay_map.py::test_the_drafters_own_states_go_to_the_slot_that_predicts_what_they_predicted",
    ),
    "state-in-the-anchors-slot-is-lost": (
        "methods.drafter:BlockDrafter.block_inputs",
        " + (slots[..., :1, :] - mask)",
        "",
        "tests/test_relay.py::test_a_state_relayed_into_the_anchors_slot_reaches_the_block",
    ),
    "shuffle-not-applied": (
        "methods.relays:VerifierRelay.state",
        "if options.shuffle:",
        "if False:",
        "tests/test_relay_map.py::test_shuffled_states_are_those_of_the_live_slots_in_another_order",
    ),
    "shuffle-by-place-in-the-batch": (
        "methods.relays:_shuffled",
        "correction[:, None] * 104729",
        "torch.arange(len(rows))[:, None] * 104729",
        "tests/test_relay_map.py::test_the_trainer_leaves_what_the_decoder_left_at_the_same_anchors",
    ),
    # -- what the relay makes of it
    "boundary-tokens-swapped": (
        "methods.relays:VerifierRelay.block_inputs",
        "(embed(state.correction), embed(state.rejected))",
        "(embed(state.rejected), embed(state.correction))",
        "tests/test_relay.py::test_the_gate_reads_correction_then_rejection_then_state",
    ),
    "boundary-read-though-left-out": (
        "methods.relays:VerifierRelay.block_inputs",
        "if not self.options.boundary:",
        "if False:",
        "tests/test_relay.py::test_both_boundary_tokens_matter_unless_they_are_left_out",
    ),
    "masks-without-a-state-bent-too": (
        "methods.relays:VerifierRelay.block_inputs",
        "state.live,",
        "torch.ones_like(state.live),",
        "tests/test_relay.py::test_the_first_round_full_acceptance_and_a_relay_switched_off_leave_plain_masks",
    ),
    "relay-off-relays-all-the-same": (
        "methods.runner:BlockDraftRunner.__init__",
        "drafter.relay.uses_states and relay",
        "drafter.relay.uses_states",
        "tests/test_relay.py::test_an_arm_with_its_relay_off_decodes_the_plain_masks_of_the_same_checkpoint",
    ),
    # -- the sequential head
    "gru-reads-the-token-it-predicts": (
        "methods.heads:DominoHead.train_logits",
        "tokens[..., : len(slots)]",
        "tokens.roll(-1, -1)[..., : len(slots)]",
        "tests/test_domino.py::test_a_slot_reads_every_token_before_its_own_and_none_from_there_on",
    ),
    "gru-skips-the-pure-prefix-in-drafting": (
        "methods.heads:DominoHead.draft",
        "for token in read[:-1]:",
        "for token in read[:0]:",
        "tests/test_domino.py::test_drafting_is_teacher_forcing_on_its_own_drafts_slot_by_slot",
    ),
    "pure-prefix-corrected-in-drafting": (
        "methods.heads:DominoHead.draft",
        "pure = min(self.pure_prefix, len(slots))",
        "pure = 0",
        "tests/test_domino.py::test_drafting_is_teacher_forcing_on_its_own_drafts_slot_by_slot",
    ),
    "gru-table-of-older-weights": (
        "harness.train.optimiser:MasterAdamW.step",
        "torch.autograd.graph.increment_version(self.masters)",
        "pass",
        "tests/test_domino.py::test_the_table_follows_weights_and_target",
    ),
    "base-loss-kept-to-the-end-of-the-run": (
        "harness.train.loop:Trainer._head_progress",
        "self.settings.base_until * self.settings.steps",
        "self.settings.steps",
        "tests/test_domino.py::test_the_share_is_gone_when_base_until_says",
    ),
    # -- the target on rejected rows
    "rejected-rows-see-one-cell-too-many": (
        "harness.train.verify:rejected_taps",
        "(anchors + accepted + 1)",
        "(anchors + accepted + 2)",
        "tests/test_train_verify.py::test_rejected_rows_equal_a_forward_of_the_whole_text",
    ),
    "rejected-rows-see-other-blocks": (
        "harness.train.verify:RejectedStep.mask",
        "(self.chain[..., None] == self.chain[:, None]) & (key <= query)",
        "key <= query",
        "tests/test_train_verify.py::test_rejected_rows_equal_a_forward_of_the_whole_text",
    ),
    "filling-rows-stand-in-a-block": (
        "harness.train.verify:rejected_taps",
        "torch.where(inside, chain, -1)",
        "chain",
        "tests/test_train_verify.py::test_a_block_alone_gets_the_rows_it_gets_beside_others",
    ),
    "rejected-rows-outside-the-window": (
        "harness.train.verify:RejectedStep.mask",
        "context &= cells > query - window",
        "pass",
        "tests/test_train_verify.py::test_rejected_rows_equal_a_forward_of_the_whole_text",
    ),
    "kept-keys-one-cell-off": (
        "harness.train.features:FeatureStore.batch_with_past",
        "flat[index].to(",
        "flat[index - 1].to(",
        "tests/test_train_verify.py::test_rejected_rows_equal_a_forward_of_the_whole_text",
    ),
    "dropped-blocks-leave-a-relay": (
        "harness.train.verify:relay_after",
        "accepted = torch.where(keep, accepted, width)",
        "pass",
        "tests/test_train_verify.py::test_the_relay_of_a_block_is_made_of_its_own_rows_and_of_a_dropped_block_nothing_is",
    ),
    # -- rounds and their gradients
    "next-anchor-before-the-mismatch": (
        "harness.train.rounds:RejectedRounds.transition",
        "anchors = blocks.anchors + accepted + 1",
        "anchors = blocks.anchors + accepted",
        "tests/test_train_rounds.py::test_the_next_anchor_is_the_first_mismatch_and_a_chain_ends_where_no_label_is_left",
    ),
    "proposals-past-the-text-are-accepted": (
        "harness.train.rounds:accepted_run",
        " & (positions < lengths[:, None, None])",
        "",
        "tests/test_train_rounds.py::test_the_next_anchor_is_the_first_mismatch_and_a_chain_ends_where_no_label_is_left",
    ),
    "a-round-too-many": (
        "harness.train.rounds:RejectedRounds.transition",
        "if before.index >= self.count:",
        "if before.index > self.count:",
        "tests/test_train_rounds.py::test_a_step_ends_with_its_last_round_or_its_last_chain",
    ),
    "chains-drawn-anew-each-round": (
        "harness.train.rounds:RejectedRounds.transition",
        "before.index == 0 and ",
        "",
        "tests/test_train_rounds.py::test_chains_are_drawn_by_seed_and_step_alone_and_as_many_as_asked",
    ),
    "teachers-proposals-used-online": (
        "harness.train.rounds:RejectedRounds._proposals",
        'self.rollout == "online"',
        'self.rollout != "online"',
        "tests/test_train_rounds.py::test_online_proposals_are_drafted_and_teachers_are_forced_and_no_sentinel_is_left",
    ),
    "later-rounds-teach-the-context-nothing": (
        "harness.train.loop:Trainer._backward",
        "forward_blocks(leaf,",
        "forward_blocks(leaf.detach() if current.index else leaf,",
        "tests/test_train_rounds.py::test_a_round_at_a_time_gives_the_gradients_of_the_summed_loss",
    ),
    "relay-never-teaches-the-fusion": (
        "harness.train.verify:relay_after",
        'drafter.config.relay_options.detach == "taps"',
        "False",
        "tests/test_train_rounds.py::test_through_a_relay_gradients_reach_the_fusion_if_asked_and_nothing_else_ever",
    ),
    "walk-without-its-relay": (
        "harness.train.walk:_rounds",
        "text, at, relay)",
        "text, at, None)",
        "tests/test_relay_map.py::test_walk_equals_decoder_under_every_option",
    ),
    # -- variants
    "borrower-under-settings-of-its-own": (
        "harness.settings:Config.settings_of",
        "self.variants.get(self.entrant(name).weights)",
        "self.variants.get(name)",
        "tests/test_variants.py::test_settings_of_a_variant_are_laid_over_nested_ones_and_no_others_move",
    ),
    "relay-switch-makes-no-new-records": (
        "harness.plan:Plan.decode",
        '{} if entrant.relay else {"relay": "off"}',
        "{}",
        "tests/test_variants.py::test_decoding_depends_on_the_relay_switch_alone",
    ),
    # -- benchmarks
    "relay-drafts-under-another-name": (
        "methods.runner:BlockDraftRunner._denoise",
        'with self.phases.phase("relay"):',
        "if True:",
        "tests/test_runner.py::test_head_and_relay_work_inside_their_phases_and_the_rest_of_a_round_outside",
    ),
    "script-goes-on-where-the-last-block-ended": (
        "harness.bench.scripted:ScriptedDecoder.restart",
        "self._turn = 0",
        "pass",
        "tests/test_bench_round.py::test_a_script_is_followed_by_counts_caches_and_positions",
    ),
    "first-rounds-of-a-block-timed": (
        "harness.bench.scripted:block_ms",
        "decoder.advance(LEAD)",
        "pass",
        "tests/test_bench_round.py::test_rounds_at_the_start_of_a_block_and_the_first_block_of_all_are_not_timed",
    ),
    "clock-inside-the-round-it-is-held-against": (
        "harness.bench.rounds:measure",
        "block_ms(made[name], rounds))",
        "block_ms(made[name], rounds, PhaseClock(made[name].target.device)))",
        "tests/test_bench_round.py::test_a_clock_that_costs_time_shows_in_the_gap_and_not_in_the_round",
    ),
    "copied-bytes-counted-once": (
        "harness.budget:copy_speed",
        "2 * size",
        "size",
        "tests/test_bench_round.py::test_a_copy_moves_each_byte_twice",
    ),
    "transition-counted-as-the-round-before-it": (
        "harness.bench.train:TimedRounds.following",
        "if before.index < self._rounds.count:",
        "if False:",
        "tests/test_bench_train.py::test_five_milliseconds_more_in_one_part_grow_the_parts_it_is_in_alone",
    ),
}
