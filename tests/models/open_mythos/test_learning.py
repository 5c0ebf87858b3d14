"""What attention solves: of a random sequence that is repeated, the second time is known."""

import pytest
import torch

from everytoken.models.language_model import TrainingPoint
from everytoken.seeds import torch_generator
from everytoken.training.step.objective import Objective
from tests.models.open_mythos.tiny import OFF, PONDER, tiny

SYMBOLS, HALF, BATCH = 16, 12, 64


def copies(step):
    """Return 12 random symbols and the same again; what counts is the second time."""
    once = torch.randint(0, SYMBOLS, (BATCH, HALF), generator=torch_generator(0, "copies", step))
    tokens = torch.cat((once, once), dim=1)
    counted = torch.zeros(BATCH, 2 * HALF - 1, dtype=torch.bool)
    counted[:, HALF - 1 :] = True
    return tokens, counted


def induced(step):
    """Return 4 to 6 different symbols, repeated to the end of the row; what counts is the second time on."""
    generator = torch_generator(0, "induced", step)
    period = torch.randint(4, 7, (BATCH, 1), generator=generator)
    once = torch.rand(BATCH, SYMBOLS, generator=generator).argsort(1)
    place = torch.arange(2 * HALF)[None]
    return once.gather(1, place % period), place[:, 1:] > period


def accuracy(model, task):
    tokens, counted = task(1_000_000)
    with torch.no_grad():
        hits = model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]
    return hits[counted].double().mean().item()


def steps_to(task, target, most, **changes):
    """Train until the accuracy reaches the target; return the steps, or fail."""
    shape = {"d_model": 64, "d_ff": 64, "lora_rank": 8, "loop_embedding": 8, "experts": {"d_ff": 64}}
    model = tiny(vocab_size=SYMBOLS, max_seq_len=2 * HALF, **shape, **changes)
    objective = Objective(model)
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[model.decays(name, parameter)].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False], "weight_decay": 0.0}],
        lr=3e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
    for step in range(most):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 100)
        model.begin(TrainingPoint(0, step, most))
        tokens, counted = task(step)
        (objective(tokens, counted).sum() / counted.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.after_step(lambda total: total, updated=True)
        model.begin(None)
        if step % 25 == 24 and accuracy(model, task) >= target:
            return step + 1
    raise AssertionError(f"accuracy {accuracy(model, task)} after {most} steps, expected {target}")


@pytest.mark.slow
@pytest.mark.parametrize("halting", [OFF, PONDER])
def test_a_repeated_sequence_is_induced_within_200_steps(halting):
    steps_to(copies, 0.99, 200, halting=halting)


@pytest.mark.slow
def test_a_symbol_is_induced_from_what_followed_it_before_whatever_the_distance():
    steps_to(induced, 0.95, 500, halting=OFF)
