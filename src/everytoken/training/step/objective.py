"""What is minimised, as one module: a model and the sums of its loss over the predictions that count.

DistributedDataParallel and FSDP2 act in hooks around the forward pass of the module that they were given. All that
needs parameters must therefore happen inside one forward pass: the layers, and the product with the output weight,
which under FSDP2 is whole only there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everytoken.models import LanguageModel
from everytoken.training.step.loss import cross_entropy_sum, token_losses


class Objective(nn.Module):
    """``sum over counted (b, t) of -ln p(tokens[b, t + 1] | tokens[b, : t + 1])`` in nats, and the family's terms."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, counted: Tensor, documents: Tensor | None = None, each: bool = False) -> Tensor:
        """Return the sums over the predictions that count; with ``each`` the loss of every one of them, (n,).

        tokens (batch, seq + 1) int64; counted (batch, seq) bool; documents (batch, seq) int64: see
        `document_numbers`. The sums (1 + terms,) are of the cross-entropy and of each of the model's ``further_terms``;
        what is minimised is their sum. They have a gradient, the single losses have none.
        """
        hidden = self.model.hidden_states(tokens[:, :-1], documents=documents)  # (batch, seq, d_model)
        weight = self.model.output_weight()
        if each:
            return token_losses(hidden[counted], weight, tokens[:, 1:][counted])
        loss = cross_entropy_sum(hidden.flatten(0, 1), weight, tokens[:, 1:].flatten(), counted.flatten())
        return torch.stack([loss, *self.model.further_losses(counted)])


def document_numbers(tokens: Tensor, eos_id: int) -> Tensor:
    """Return the number in its window of the document of each input, (batch, seq), of tokens (batch, seq + 1).

    An EOS belongs to the document that it ends; the position after it starts the next.

    >>> document_numbers(torch.tensor([[5, 0, 7, 0, 0, 8]]), eos_id=0).tolist()
    [[0, 0, 1, 1, 2]]
    """
    ends = (tokens[:, :-1] == eos_id).to(torch.int64)
    return ends.cumsum(1) - ends
