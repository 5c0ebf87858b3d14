"""A recurrent-depth transformer: prelude, one block that is looped, coda.

    x       = Prelude(E[tokens]);   e = x;   h_0 = x
    h_{t+1} = A * h_t + B * e + Block(norm(h_t + l_t + e)) + D_t        t = 0 .. T - 1
    logits  = E . norm(Coda(y))

y is h_T, or with halting the mean of the h_t that each position chose (`halting`). The design is that of OpenMythos,
with the stable injection of `recurrence`, the experts of `experts`, and the attentions of `attention`.
A position that halted keeps its state, is remembered by deeper loops as its last loop has it, and reaches no expert. So
a window read at once, in pieces, or token by token with real early exit has the same states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from everytoken.models.causal_attention import document_mask
from everytoken.models.elementwise import RMSNorm, rope_tables
from everytoken.models.errors import ModelsError
from everytoken.models.language_model import Cache, LanguageModel, TrainingPoint, recomputed
from everytoken.models.open_mythos.attention import Memory, rotated_width
from everytoken.models.open_mythos.balance import LoadCounter, balance_values
from everytoken.models.open_mythos.block import MythosBlock
from everytoken.models.open_mythos.cache import LoopCache
from everytoken.models.open_mythos.depth import loops_of_step
from everytoken.models.open_mythos.experts import MixtureOfExperts, Routing
from everytoken.models.open_mythos.halting import HaltingHead, HaltingState, halting_loss
from everytoken.models.open_mythos.recurrence import DepthAdapter, Injection, loop_embeddings
from everytoken.models.parameters import NoHalting, OpenMythosParameters
from everytoken.seeds import torch_generator


class RecurrentCore(nn.Module):
    """The looped block, and what differs between its loops."""

    def __init__(self, parameters: OpenMythosParameters) -> None:
        super().__init__()
        d, loops = parameters.d_model, parameters.max_loops
        self.norm = RMSNorm(d, parameters.norm_eps)
        self.block = MythosBlock(parameters, None)
        self.injection = Injection(d)
        self.adapter = DepthAdapter(d, parameters.lora_rank, loops)
        self.halting = None if isinstance(parameters.halting, NoHalting) else HaltingHead(d)
        self.embeddings: Tensor
        self.register_buffer("embeddings", loop_embeddings(loops, parameters.loop_embedding, d), persistent=False)

    def loop_embedding(self, loop: int) -> Tensor:
        """Return l_t (d_model,); loops that the model was not built for have that of the last."""
        return self.embeddings[min(loop, len(self.embeddings) - 1)]


class LastPass(NamedTuple):
    """What happened in one pass: loops that each position took, (batch, seq) int64, how they halted, what routers did.

    The routings are in the order of the calls of blocks with experts, of which the looped one has as many as loops.
    """

    loops_taken: Tensor
    halted: HaltingState | None
    routings: tuple[tuple[MixtureOfExperts, Routing], ...]
    loops: int


class _Pass:
    """One call of the blocks one after the other: their positions, their slots of the cache, and what routers did."""

    def __init__(self, positions: tuple[Tensor, Tensor, Tensor | None], cache: LoopCache | None, again: bool) -> None:
        self.cache = cache
        self.routings: list[tuple[MixtureOfExperts, Routing]] = []
        self._positions, self._again, self._slot = positions, again, 0

    def __call__(
        self, block: MythosBlock, x: Tensor, running: Tensor | None = None, carried: Memory | None = None
    ) -> tuple[Tensor, Memory]:
        """Return the residual stream after the block, and what the block remembers of each position."""
        cos, sin, visible = self._positions
        if self.cache is not None:
            result = block.extend(x, cos, sin, self.cache, self._slot, running, carried)
        elif self._again:
            result = recomputed(block, x, cos, sin, visible, running, carried)
        else:
            result = block(x, cos, sin, visible, running, carried)
        self._slot += 1
        x, memory, routing = result
        if routing is not None:
            self.routings.append((cast(MixtureOfExperts, block.feed_forward), routing))
        return x, memory

    def skip(self, loops: int, carried: Memory) -> None:
        """Fill the slots of loops that no position takes."""
        for _ in range(loops if self.cache is not None else 0):
            cast(LoopCache, self.cache).extend(self._slot, carried)
            self._slot += 1


class OpenMythos(LanguageModel):
    """The model; `initialise_open_mythos` or a checkpoint has to fill its tensors."""

    def __init__(self, parameters: OpenMythosParameters, *, vocab_size: int, max_seq_len: int) -> None:
        super().__init__(vocab_size=vocab_size, max_seq_len=max_seq_len)
        self.shape = parameters
        d, dense = parameters.d_model, parameters.d_ff
        self.embedding = nn.Parameter(torch.empty(vocab_size, d))
        self.prelude = nn.ModuleList(MythosBlock(parameters, dense) for _ in range(parameters.prelude_layers))
        self.core = RecurrentCore(parameters)
        self.coda = nn.ModuleList(MythosBlock(parameters, dense) for _ in range(parameters.coda_layers))
        self.final_norm = RMSNorm(d, parameters.norm_eps)
        cos, sin = rope_tables(max_seq_len, rotated_width(parameters), parameters.rope_theta)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.further_terms = (
            *(() if isinstance(parameters.halting, NoHalting) else (parameters.halting.kind,)),
            *(("balance",) if parameters.experts.balance_weight else ()),
        )
        self._loops = parameters.max_loops
        self._point: TrainingPoint | None = None
        self._load = LoadCounter()
        self._last = LastPass(torch.zeros(0, 0, dtype=torch.int64), None, (), self._loops)

    @property
    def loops(self) -> int:
        """How many loops a pass outside training takes, at most where positions halt."""
        return self._loops

    @loops.setter
    def loops(self, loops: int) -> None:
        if loops < 1:
            raise ModelsError(f"loops: expected at least 1, found {loops}; the model was built for {self._loops}")
        self._loops = loops

    @property
    def last_pass(self) -> LastPass:
        """What happened in the last ``hidden_states``."""
        return self._last

    def hidden_states(self, tokens: Tensor, cache: Cache | None = None, documents: Tensor | None = None) -> Tensor:
        """Return the normalised final states (batch, seq, d_model) of int64 tokens (batch, seq)."""
        self.check_documents(tokens, cache, documents)
        start, end = self.checked_positions(tokens, cache.length if cache is not None else 0)
        visible, cos, sin = None, self.cos[start:end], self.sin[start:end]
        if documents is not None:
            visible, positions = document_mask(documents)
            cos, sin = self.cos[positions], self.sin[positions]  # (batch, seq, rotated width / 2)
        point = self._point
        loops = self._loops if point is None else loops_of_step(self.shape, point)
        again = self.activation_checkpointing and torch.is_grad_enabled()
        run = _Pass((cos.unsqueeze(-2), sin.unsqueeze(-2), visible), _checked_cache(cache, loops), again)

        x = embedding(tokens, self.embedding)  # (batch, seq, d_model)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # the state of a bfloat16 model is float32
        for block in self.prelude:
            x, _ = run(cast(MythosBlock, block), x)
        x, halted = self._looped(x, loops, run)
        for block in self.coda:
            x, _ = run(cast(MythosBlock, block), x)
        taken = torch.full_like(tokens, loops) if halted is None else halted.loops
        if run.cache is not None:
            run.cache.finish(taken)
        self._last = LastPass(taken, halted, tuple(run.routings), loops)
        if point is not None and torch.is_grad_enabled():
            for experts, routing in run.routings:
                self._load.count(experts, routing)
        return cast(Tensor, self.final_norm(x))

    def _looped(self, e: Tensor, loops: int, run: _Pass) -> tuple[Tensor, HaltingState | None]:
        """Return y (batch, seq, d_model) of the prelude's states, and how positions halted, if they do."""
        core, halting = self.core, self.shape.halting
        decay, gain = core.injection()
        h, injected, carried = e, gain * e, None
        state = None if isinstance(halting, NoHalting) else HaltingState(h, halting.threshold)
        detached = loops - (self.shape.gradient_loops or loops)
        with_gradient = torch.is_grad_enabled()
        for loop in range(loops):
            with torch.set_grad_enabled(with_gradient and loop >= detached):
                running = None if state is None or loop == 0 else state.running
                v, carried = run(core.block, core.norm(h + core.loop_embedding(loop) + e), running, carried)
                new = (decay * h).add_(injected).add_(v).add_(core.adapter(v, loop))
                h = new if running is None else torch.where(running.unsqueeze(-1), new, h)
                if state is not None and core.halting is not None:
                    state.add(h, core.halting(h), loop, last=loop == loops - 1)
            # without a cache all loops are taken: processes that share a model have to call its layers equally often
            if run.cache is not None and state is not None and not state.running.any():
                run.skip(loops - 1 - loop, carried)
                break
        return (h if state is None else state.output), state

    def begin(self, point: TrainingPoint | None) -> None:
        """Take the place in training of the passes that follow, which says how many loops they take."""
        self._point = point

    def further_losses(self, counted: Tensor) -> tuple[Tensor, ...]:
        """Return the terms that ``further_terms`` names; see `halting_loss` and `balance_values`."""
        shape, last, terms = self.shape, self._last, []
        if last.halted is not None and not isinstance(shape.halting, NoHalting):
            ramp = 1.0 if self._point is None else min(1.0, 2 * self._point.step / self._point.steps)
            terms.append(halting_loss(shape.halting, last.halted, counted, last.loops, ramp))
        if shape.experts.balance_weight:
            values = balance_values([routing for _, routing in last.routings], shape.experts.per_token)
            terms.append(shape.experts.balance_weight * (values * counted.sum(1)).sum())
        return tuple(terms)

    def after_step(self, add: Callable[[Tensor], Tensor], updated: bool) -> None:
        """Move the biases of the routers."""
        self._load.move_biases(self.shape.experts.bias_rate, add, updated=updated)

    def decays(self, name: str, parameter: Tensor) -> bool:
        """Return whether weight decay acts: not on vectors, nor on the scales of the depth adapter."""
        return super().decays(name, parameter) and not name.endswith("adapter.scale")

    def layers(self) -> Sequence[nn.Module]:
        """Return the blocks of the prelude, the looped block once, and those of the coda."""
        return [*self.prelude, self.core.block, *self.coda]

    def flop_per_token(self, seq_length: int) -> float:
        """Return ``6 N + 3 A H (w + v) S`` at the mean number of loops of a training step.

        N entries of matrices that act on a token, a looped one as often as it acts; A calls of attention, of H heads
        with queries of width w and values of width v, over S positions of which half are seen. Loops without a
        gradient count for their forward pass, a third.
        """
        shape = self.shape
        loops = shape.mean_loops
        uses = (loops + 2 * min(loops, shape.gradient_loops or loops)) / 3
        once = sum(_block_flop(block, seq_length) for block in (*self.prelude, *self.coda))
        adapter = 6.0 * (self.core.adapter.reduce.numel() + self.core.adapter.expand.numel())
        return once + uses * (_block_flop(self.core.block, seq_length) + adapter) + 6.0 * self.embedding.numel()

    def output_weight(self) -> Tensor:
        """Return the embedding (vocab_size, d_model)."""
        return self.embedding

    def new_cache(self) -> LoopCache:
        """Return an empty cache for passes of the present number of loops."""
        return LoopCache(self.shape.prelude_layers + self._loops + self.shape.coda_layers, self._loops)


def _checked_cache(cache: Cache | None, loops: int) -> LoopCache | None:
    if cache is not None and not isinstance(cache, LoopCache):
        raise ModelsError(f"an open_mythos needs a LoopCache (model.new_cache()), found {type(cache).__name__}")
    if cache is not None and cache.loops != loops:
        raise ModelsError(
            f"the cache was made for {cache.loops} loops, this call takes {loops}: deeper loops would lack the tokens "
            "that it holds; make another one (model.new_cache()) and read all tokens again"
        )
    return cache


def _block_flop(block: nn.Module, seq_length: int) -> float:
    """Return the operations a token of one call of a block, forward and backward."""
    own = cast(MythosBlock, block)
    matrices = sum(x.numel() for x in own.attention.parameters() if x.ndim == 2) + own.feed_forward.active_entries()
    return 6.0 * matrices + 3.0 * own.attention.score_width() * seq_length


def initialise_open_mythos(model: OpenMythos, parameters: OpenMythosParameters, seed: int) -> None:
    """Draw every matrix from a normal distribution with its own generator; norms are 1 already.

    Matrices have the deviation ``min(0.02, sqrt(2 / (5 d)))``, those that write to the residual stream that divided by
    ``sqrt(2 (prelude + loops + coda))``; embedding and router have 0.02. The depth adapter is the zero map, A is
    sqrt(1 / 5), and each of the loops halts with the probability 1 / loops. A draw depends on (seed, name) alone.
    """
    d, loops = parameters.d_model, parameters.max_loops
    constants = {
        "injection.a": 0.0,
        "injection.delta": math.log(math.sqrt(5.0) - 1.0),  # softplus of it is ln(5) / 2
        "injection.b": 1.0,
        "adapter.expand": 0.0,
        "adapter.scale": 1.0,
        "halting.weight": 0.0,
        "halting.bias": -math.log(max(loops - 1, 1)),
    }
    inner = min(0.02, math.sqrt(2 / (5 * d)))
    residual = inner / math.sqrt(2 * (parameters.prelude_layers + loops + parameters.coda_layers))
    deviations = {
        "embedding": 0.02,
        "router": 0.02,
        "adapter.reduce": 1 / math.sqrt(d),
        "attention.output": residual,
        "down": residual,
    }
    for name, parameter in model.named_parameters():
        constant = [value for ending, value in constants.items() if name.endswith(ending)]
        if constant:
            nn.init.constant_(parameter, constant[0])
        elif parameter.ndim > 1:
            std = next((value for ending, value in deviations.items() if name.endswith(ending)), inner)
            nn.init.normal_(parameter, std=std, generator=torch_generator(seed, "initialisation", name))
