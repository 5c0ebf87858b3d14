"""The 21 known defects of public code of this family, and a test of the right behaviour for each.

`COVERED` names the tests elsewhere; the others are here.
"""

import pytest
import torch

from everytoken.models import ModelsError
from everytoken.models.language_model import TrainingPoint
from everytoken.training.step.loop import make_optimizer, train_steps
from tests.generation import test_decoding, test_draws, test_looped_replies
from tests.models.open_mythos import (
    test_attention,
    test_cache,
    test_experts,
    test_gradients,
    test_halting,
    test_recurrence,
)
from tests.models.open_mythos.tiny import ATTENTIONS, MLA, PONDER, lively, random_tokens, tiny
from tests.training.evaluation import test_loops
from tests.training.tiny import SEQ, random_batches, training_parameters

COVERED = {
    1: test_halting.test_weights_sum_to_one_and_every_position_halts,  # sums below 1 scaled the output
    2: test_halting.test_weights_and_depths_are_those_of_the_formulas,  # weights after halting leaked
    3: test_halting.test_ponder_costs_loops_and_remainder_of_what_counts_and_grows_in_the_first_half,  # no cost
    4: test_halting.test_at_the_start_all_loops_weigh_alike,  # the first loops took all weight
    5: test_cache.test_a_decoded_token_costs_as_many_calls_of_the_block_as_it_takes_loops,  # all loops were run
    6: test_cache.test_reading_in_pieces_equals_reading_at_once_where_positions_halt_at_mixed_depths,  # chunks failed
    7: test_cache.test_all_calls_on_a_cache_take_the_same_loops,  # deeper loops lacked the context
    11: test_recurrence.test_the_decay_is_strictly_between_0_and_1_in_float32_whatever_the_parameters,  # A was 1
    12: test_experts.test_a_skewed_router_is_balanced_by_the_bias,  # the bias never moved
    13: test_experts.test_all_ways_to_dispatch_agree_also_where_experts_have_no_row,  # thousands of masked operations
    14: test_recurrence.test_loops_are_told_apart_and_the_last_stands_for_deeper_ones,  # an index past the table
    16: test_cache.test_the_cache_holds_a_memory_for_each_loop_and_of_latent_attention_latents_alone,  # one key a head
    17: test_attention.test_no_matrix_of_all_scores_is_made,  # masks and scores of all pairs
    18: (
        test_recurrence.test_numbers_of_loops_below_1_are_refused_and_the_default_is_that_of_the_shape,
        test_looped_replies.test_greedy_replies_over_turns_are_those_without_a_cache,
        test_decoding.test_an_end_is_no_part_of_the_reply,
        test_decoding.test_a_full_context_ends_the_reply,
        test_draws.test_the_tokens_that_may_be_drawn_are_those_of_transformers,
    ),
    19: test_gradients.test_weight_decay_acts_on_matrices_and_experts_alone,  # norms and injection decayed
    21: test_loops.test_the_loss_is_reported_below_at_and_beyond_the_loops_of_the_model,  # claims nobody measured
}


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@torch.no_grad()
def test_08_a_decoded_token_has_its_own_position(attention):
    """Keys of equal tokens differ by their positions alone, and a rotation keeps their norm."""
    model = lively(tiny(attention=attention, prelude_layers=1))
    cache = model.new_cache()
    for _ in range(3):
        model(torch.zeros(1, 1, dtype=torch.int64), cache)
    rotated = cache._slots[0][1] if attention is MLA else cache._slots[0][0]
    first, second, third = rotated[0, :3].flatten(1)
    assert (first - second).abs().max() > 1e-3 and (second - third).abs().max() > 1e-3
    torch.testing.assert_close(first.norm(), third.norm(), rtol=1e-6, atol=0)  # float32 tables


def test_09_rotary_tables_are_real_and_survive_a_cast_so_a_bfloat16_model_reads():
    model = tiny(halting=PONDER)
    assert not model.cos.is_complex() and not {"cos", "sin"} & set(model.state_dict())
    sin, tokens = model.sin.clone(), random_tokens(1, 9)
    with torch.no_grad():
        exact = model(tokens)
        narrow = model.to(torch.bfloat16)
        torch.testing.assert_close(narrow.sin.float(), sin, rtol=0, atol=4e-3)
        torch.testing.assert_close(narrow(tokens), exact, rtol=0, atol=0.05)
        assert narrow.core.injection()[0].dtype == torch.float32


def test_10_a_sequence_that_is_too_long_is_an_error_with_both_numbers():
    model = tiny(max_seq_len=8)
    with pytest.raises(ModelsError, match=r"0 cached \+ 9 new = 9 tokens.*max_seq_len = 8"):
        model(random_tokens(1, 9))
    cache = model.new_cache()
    model(random_tokens(1, 8), cache)
    with pytest.raises(ModelsError, match=r"8 cached \+ 1 new = 9"):
        model(random_tokens(1, 1), cache)


@pytest.mark.parametrize("bias", [-30.0, 30.0])
def test_15_a_training_step_calls_the_block_equally_often_whatever_halts(bias):
    """Processes that shard a model wait for each other in every call."""
    model = lively(tiny(halting=PONDER))
    model.core.halting.weight.data.zero_()
    model.core.halting.bias.data.fill_(bias)
    calls = []
    model.core.block.register_forward_hook(lambda *_: calls.append(1))
    for point in (TrainingPoint(0, 0, 10), None):
        model.begin(point)
        model(random_tokens(1, 6))
    assert len(calls) == 2 * 4
    assert torch.all(model.last_pass.loops_taken == (1 if bias > 0 else 4))


def test_20_training_that_is_cut_goes_on_to_the_same_bits():
    """Depths, batches, rates and the bias of the router are functions of the step and of what a checkpoint holds."""
    parameters = training_parameters(steps=8)

    def trained(first, end, state=None):
        model = tiny(max_seq_len=SEQ, halting=PONDER, depth={"kind": "uniform", "least": 1, "most": 4})
        optimizer = make_optimizer(model, parameters)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for record in train_steps(model, optimizer, random_batches(), parameters, first_step=first):
            if record.step + 1 == end:
                break
        return model.state_dict(), optimizer.state_dict()

    whole, cut = trained(0, 8), trained(3, 8, trained(0, 3))
    assert whole[0]["core.block.feed_forward.bias"].any()
    assert all(torch.equal(whole[0][name], cut[0][name]) for name in whole[0])
    for one, other in zip(whole[1]["state"].values(), cut[1]["state"].values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_each_of_the_21_defects_has_a_test():
    here = {int(name[5:7]) for name in globals() if name[:5] == "test_" and name[5:7].isdigit()}
    assert here | set(COVERED) == set(range(1, 22)) and not here & set(COVERED)
