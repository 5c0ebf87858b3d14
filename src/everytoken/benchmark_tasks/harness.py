"""A model behind the interface of EleutherAI's lm-evaluation-harness (the extra ``eval``).

Log-likelihoods are those of the harness's own wrapper of transformers: a text without context follows EOS, as a
document does, and of a sequence beyond the model's context the end is kept. Sequences of about one length are computed
together, padded on the right, so a sequence's figures depend on the batch by their last bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from everytoken.benchmark_tasks.errors import TaskError
from everytoken.generation import GenerationParameters, NonFiniteLogits, OpenedModel, speak
from everytoken.progress import progress

_ROWS = 1024  # positions whose logits exist at once
_KNOWN = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"}

_Scored = tuple[float, bool]
_Sequences = tuple[list[int], list[int]]


class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """What the harness calls.

    Args:
        batch_size: sequences that are computed together.
        seed: of texts that are drawn.
        max_new_tokens: of a text, where its task does not say.
    """

    def __init__(self, opened: OpenedModel, *, batch_size: int, seed: int, max_new_tokens: int) -> None:
        super().__init__()
        self._opened, self._reader = opened, opened.reader()
        self._batch_size, self._seed, self._max_new_tokens = batch_size, seed, max_new_tokens
        self._length: int = opened.model.max_seq_len

    @property
    def eot_token_id(self) -> int:
        """Return the id that ends a document, and is before a text without context."""
        return self._opened.eos_id

    @property
    def tokenizer_name(self) -> str:
        """Return what tells cached requests of one tokenizer from those of another."""
        return self._opened.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text; special tokens that it spells are those tokens."""
        ids: list[int] = self._opened.tokenizer.encode(string, add_special_tokens=False).ids
        return ids

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the chat template, which the harness records."""
        return self._opened.chat.template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a chat."""
        return self._opened.chat_format().template.render(chat_history, begins_reply=add_generation_prompt)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each whole text, in windows of the model's context."""
        windows: list[tuple[int, _Sequences]] = []
        for number, request in enumerate(requests):
            rolled = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._length,
                context_len=1,
            )
            windows += [(number, make_disjoint_window(window)) for window in rolled]
        sums = [0.0] * len(requests)
        for (number, _), (logprob, _) in zip(windows, self._score([pair for _, pair in windows]), strict=True):
            sums[number] += logprob
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text after each context."""
        shown = progress(requests, len(requests), "tasks", "text")
        return [self._text(request.args[0], request.args[1], number) for number, request in enumerate(shown)]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[_Scored]:
        return self._score([(context, continuation) for _, context, continuation in requests])

    def _score(self, pairs: Sequence[_Sequences]) -> list[_Scored]:
        """Return the log-likelihood of each continuation, and whether it is what greedy decoding gives."""
        scores: list[_Scored] = [(0.0, True)] * len(pairs)
        longest_first = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        starts = range(0, len(pairs), self._batch_size)
        for start in progress(starts, len(starts), "tasks", "batch"):
            numbers = longest_first[start : start + self._batch_size]
            for number, score in zip(numbers, self._score_batch([pairs[i] for i in numbers]), strict=True):
                scores[number] = score
        return scores

    @torch.inference_mode()
    def _score_batch(self, pairs: Sequence[_Sequences]) -> Iterator[_Scored]:
        model = self._opened.model
        device = model.output_weight().device
        read = [torch.tensor((context + rest)[-(self._length + 1) :]) for context, rest in pairs]
        tokens = torch.nn.utils.rnn.pad_sequence([ids[:-1] for ids in read], batch_first=True)
        states = model.hidden_states(tokens.to(device))  # (batch, seq, d_model)
        for row, (ids, (_, rest)) in enumerate(zip(read, pairs, strict=True)):
            count = min(len(rest), len(ids) - 1)
            of_rest = states[row, len(ids) - 1 - count : len(ids) - 1]
            yield self._of_states(of_rest, ids[len(ids) - count :].to(device))

    def _of_states(self, states: torch.Tensor, targets: torch.Tensor) -> _Scored:
        weight, total, greedy = self._opened.model.output_weight(), 0.0, True
        for start in range(0, len(targets), _ROWS):
            rows, ids = states[start : start + _ROWS], targets[start : start + _ROWS]
            logits = torch.nn.functional.linear(rows.to(weight.dtype), weight).float()
            if not logits.isfinite().all():
                raise NonFiniteLogits(
                    "of a text of a task the model's logits are not finite numbers: its training diverged"
                )
            total += float(torch.log_softmax(logits, 1).gather(1, ids[:, None]).double().sum())
            greedy = greedy and bool((logits.argmax(1) == ids).all())
        return total, greedy

    def _text(self, context: str, options: dict[str, Any], number: int) -> str:
        if unknown := sorted(set(options) - _KNOWN):
            raise TaskError(f"the task asks for generation with {unknown}, which are not known here")
        until = options.get("until") or []
        drawn = options.get("do_sample", False)
        parameters = GenerationParameters(
            seed=self._seed,
            max_new_tokens=options.get("max_gen_toks", self._max_new_tokens),
            temperature=options.get("temperature", 1.0) if drawn else 0.0,
            stop=tuple([until] if isinstance(until, str) else until),
            **{name: options[name] for name in ("top_k", "top_p", "min_p", "repetition_penalty") if name in options},
        )
        room = self._length - parameters.max_new_tokens
        if room < 1:
            raise TaskError(
                f"the task asks for {parameters.max_new_tokens:,} new tokens, and the model reads {self._length:,} in "
                "all: give fewer (--max-new-tokens, or max_gen_toks of the task)"
            )
        prompt = (self.tok_encode(context) or [self.eot_token_id])[-room:]
        speaking = speak(
            self._reader, self._opened.tokenizer, prompt, parameters, ends=self._opened.ends, key=("harness", number)
        )
        return "".join(speaking)
