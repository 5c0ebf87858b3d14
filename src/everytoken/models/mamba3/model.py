"""Decoders with a recurrent state: Mamba-3, and the variant `complex_ssd_lite`, in one shell.

    x = Emb[ids];  L times: x += Mixer(RMSNorm(x)), x += SwiGLU(RMSNorm(x));  logits = RMSNorm(x) Emb^T

A state of constant size takes the place of a cache, so a reply may be longer than any window of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from everytoken.models.elementwise import RMSNorm, in_dtype_of, swiglu
from everytoken.models.errors import ModelsError
from everytoken.models.language_model import Cache, LanguageModel, recomputed
from everytoken.models.mamba3.complex_ssd import ComplexSsd
from everytoken.models.mamba3.mixer import Mixer
from everytoken.models.mamba3.state import LayerState, RecurrentState
from everytoken.models.parameters import ComplexSsdParameters, Mamba3Parameters
from everytoken.seeds import torch_generator

RecurrentParameters = Mamba3Parameters | ComplexSsdParameters
_UNDECAYED = ("step_bias", "skip", "key_bias", "query_bias", "value_scale", "gate_scale", "output_scale", "decay")
_LEAST_STEP, _STEPS = 1e-4, (1e-3, 0.1)


class RecurrentBlock(nn.Module):
    """One layer: the mixer of its family and a SwiGLU."""

    def __init__(self, parameters: RecurrentParameters) -> None:
        super().__init__()
        d = parameters.d_model
        self.mixer_norm = RMSNorm(d, parameters.norm_eps)
        self.mixer = Mixer(parameters) if isinstance(parameters, Mamba3Parameters) else ComplexSsd(parameters)
        self.feed_forward_norm = RMSNorm(d, parameters.norm_eps)
        self.gate_up = nn.Parameter(torch.empty(2 * parameters.d_ff, d))
        self.down = nn.Parameter(torch.empty(d, parameters.d_ff))

    def forward(self, x: Tensor, documents: Tensor | None) -> Tensor:
        """Return the residual stream (batch, seq, d_model) after this layer; documents (batch, seq) or None."""
        return self._after_mixer(x, self.mixer(self.mixer_norm(x), documents))

    def extend(self, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
        """Return what ``forward`` does for positions that follow those of the state, and the state after them."""
        mixed, state = self.mixer.extend(self.mixer_norm(x), state)
        return self._after_mixer(x, mixed), state

    def _after_mixer(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + mixed
        return x + in_dtype_of(self.down, swiglu(in_dtype_of(self.gate_up, self.feed_forward_norm(x))))


class RecurrentModel(LanguageModel):
    """The decoder; `initialise_recurrent` or a checkpoint has to fill its matrices."""

    def __init__(self, parameters: RecurrentParameters, *, vocab_size: int, max_seq_len: int) -> None:
        super().__init__(vocab_size=vocab_size, max_seq_len=max_seq_len)
        self._parameters_of_shape = parameters
        self.embedding = nn.Parameter(torch.empty(vocab_size, parameters.d_model))
        self.blocks = nn.ModuleList(RecurrentBlock(parameters) for _ in range(parameters.n_layers))
        self.final_norm = RMSNorm(parameters.d_model, parameters.norm_eps)

    @property
    def context(self) -> int:
        """As many tokens as a 32-bit number counts: the state itself has no limit."""
        return 2**31 - 1

    def hidden_states(self, tokens: Tensor, cache: Cache | None = None, documents: Tensor | None = None) -> Tensor:
        """Return the normalised final states (batch, seq, d_model) of int64 tokens (batch, seq)."""
        self.check_documents(tokens, cache, documents)
        _, end = self.checked_positions(tokens, cache.length if cache is not None else 0)
        x = embedding(tokens, self.embedding)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if cache is None:
            again = self.activation_checkpointing and torch.is_grad_enabled()
            for block in self.blocks:
                x = recomputed(block, x, documents) if again else block(x, documents)
        else:
            x = self._extended(x, cache)
            cache.length = end
        return cast(Tensor, self.final_norm(x))

    def _extended(self, x: Tensor, cache: Cache) -> Tensor:
        if not isinstance(cache, RecurrentState):
            raise ModelsError(
                f"a recurrent model needs its own state (model.new_cache()), found {type(cache).__name__}"
            )
        for layer, block in enumerate(self.blocks):
            x, cache.layers[layer] = cast(RecurrentBlock, block).extend(x, cache.layers[layer])
        return x

    def layers(self) -> Sequence[nn.Module]:
        """Return the decoder layers, first to last."""
        return cast(Sequence[nn.Module], self.blocks)

    def decays(self, name: str, parameter: Tensor) -> bool:
        """Return whether weight decay acts on a parameter: on matrices, not on biases, scales and decay rates."""
        return parameter.ndim >= 2 and name.rpartition(".")[2] not in _UNDECAYED

    def flop_per_token(self, seq_length: int) -> float:
        """Return 6 N + 3 L H R (R Q (N_s + P) + 4 P N_s): N entries of matrices, and the scan.

        In a chunk of Q tokens half of the pairs count: R^2 Q / 2 products of N_s and of P numbers a token. A token
        writes to the state and reads from it, R P N_s numbers each. It does not depend on the length.
        """
        matrices = sum(p.numel() for p in self.blocks.parameters() if p.ndim == 2) + self.embedding.numel()
        shape = self._parameters_of_shape
        if isinstance(shape, Mamba3Parameters):
            heads, rank, width, state = shape.n_heads, shape.rank, shape.head_width, shape.state_width
        else:
            heads, rank, width, state = shape.n_heads, 1, shape.d_model // shape.n_heads, 2 * shape.state_width
        scan = heads * rank * (rank * min(shape.chunk, seq_length) * (state + width) + 4 * width * state)
        return 6.0 * matrices + 3.0 * shape.n_layers * scan

    def output_weight(self) -> Tensor:
        """Return the output matrix (vocab_size, d_model): the embedding."""
        return self.embedding

    def new_cache(self) -> RecurrentState:
        """Return the state before the first token."""
        return RecurrentState(len(self.blocks))

    def parameter_count(self) -> int:
        """Return the number of parameters; the complex decay of a head of `complex_ssd_lite` counts as one."""
        count = super().parameter_count()
        if isinstance(self._parameters_of_shape, ComplexSsdParameters):
            count -= self._parameters_of_shape.n_layers * self._parameters_of_shape.n_heads
        return count


def initialise_recurrent(model: RecurrentModel, parameters: RecurrentParameters, seed: int) -> None:
    """Draw every matrix from N(0, init_std^2) with its own generator; scales and biases are what they were made with.

    The two matrices that write to the residual stream have init_std / sqrt(2 n_layers). The bias of the step is the
    inverse softplus of a step drawn log-uniformly from [0.001, 0.1]. A draw depends on (seed, name) alone.
    """
    residual_std = parameters.init_std / math.sqrt(2 * parameters.n_layers)
    for name, parameter in model.named_parameters():
        generator, kind = torch_generator(seed, "initialisation", name), name.rpartition(".")[2]
        if kind == "step_bias":
            low, high = (math.log(step) for step in _STEPS)
            nn.init.uniform_(parameter, low, high, generator=generator)
            step = parameter.detach().double().exp().clamp(min=_LEAST_STEP)
            parameter.data.copy_(step + torch.log(-torch.expm1(-step)))  # x with softplus(x) = step
        elif kind == "mix_heads":
            nn.init.eye_(parameter)
        elif model.decays(name, parameter):
            std = residual_std if kind in ("project_out", "down") else parameters.init_std
            nn.init.normal_(parameter, std=std, generator=generator)
