import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everytoken.generation import GenerationParameters, draw
from everytoken.seeds import torch_generator

LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30)


def drawn(logits, seed=0, seen=(), generator=None, **changes):
    parameters = GenerationParameters(**{"seed": 0, "max_new_tokens": 1, "temperature": 1.0, **changes})
    return draw(
        torch.tensor(logits),
        torch.tensor(seen, dtype=torch.int64),
        parameters,
        generator or torch_generator(seed, "draw"),
    )


@given(LOGITS, st.integers(1, 40), st.floats(1e-3, 100), st.integers(0, 99))
def test_a_draw_is_among_the_largest_k(logits, top_k, temperature, seed):
    token = drawn(logits, seed, top_k=top_k, temperature=temperature)
    assert sum(other > logits[token] for other in logits) < top_k


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.integers(0, 99))
def test_one_candidate_is_greedy_and_the_lowest_id_wins(logits, seed):
    values = [float(logit) for logit in logits]
    expected = logits.index(max(logits))
    assert drawn(values, seed, top_k=1) == drawn(values, temperature=0.0) == expected
    assert drawn(values, seed, min_p=1.0) in [i for i, value in enumerate(values) if value == max(values)]


@given(LOGITS, st.integers(1, 40), st.integers(0, 99))
def test_the_largest_k_are_those_of_a_whole_sort(logits, top_k, seed):
    ordered, ids = torch.sort(torch.tensor(logits).double(), descending=True, stable=True)
    kept = torch.softmax(ordered[:top_k] - ordered[0], dim=0)
    expected = int(ids[torch.multinomial(kept, 1, generator=torch_generator(seed, "draw"))])
    assert drawn(logits, seed, top_k=top_k) == expected


def test_draws_follow_the_probabilities():
    generator = torch_generator(0, "frequencies")
    logits = torch.log(torch.tensor([0.1, 0.6, 0.3])).tolist()
    counted = torch.tensor([drawn(logits, generator=generator) for _ in range(3000)])
    shares = torch.bincount(counted, minlength=3) / 3000
    assert shares.tolist() == pytest.approx([0.1, 0.6, 0.3], abs=0.03)


def test_a_tiny_temperature_gives_no_nan():
    assert drawn([1000.0, 0.0, -1000.0], temperature=1e-300) == 0


def possible(logits, seen=(), **changes):
    return {drawn(logits, seed, seen, **changes) for seed in range(300)}


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 0.7},
        {"top_p": 0.3},
        {"min_p": 0.4},
        {"top_k": 3, "top_p": 0.9},
        {"temperature": 2.0, "top_p": 0.5},
        {"temperature": 0.5, "min_p": 0.2},
        {"repetition_penalty": 3.0, "top_k": 2},
        {"repetition_penalty": 3.0, "top_p": 0.6, "min_p": 0.1},
    ],
)
def test_the_tokens_that_may_be_drawn_are_those_of_transformers(changes):
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.tensor([2.0, 1.5, 1.0, 0.2, -0.5, -1.0])
    seen = [0, 4]
    steps = [
        ("repetition_penalty", processors.RepetitionPenaltyLogitsProcessor),
        ("temperature", processors.TemperatureLogitsWarper),
        ("top_k", processors.TopKLogitsWarper),
        ("top_p", processors.TopPLogitsWarper),
        ("min_p", processors.MinPLogitsWarper),
    ]
    scores = logits[None]
    for name, step in steps:
        if name in changes:
            scores = step(changes[name])(torch.tensor([seen]), scores)
    kept = set(scores[0].isfinite().nonzero()[:, 0].tolist())
    assert possible(logits.tolist(), seen, **changes) == kept
    assert len(kept) < len(logits)


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="stop has an empty text, which every reply contains: remove it"):
        GenerationParameters(seed=0, max_new_tokens=1, temperature=1.0, stop=("a", ""))
