"""A small model in this process: its replies follow from prompt, parameters and seed of the request alone.

What it has read of one prompt is kept for the next, so the system message, which all documents of a run share, is read
once. Several replies are written at a time, and none depends on the others. It computes with one thread: the last bits
of a product depend on the number of threads, and ranks are what runs at the same time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor

from everytoken.generation import ChatFormat, GenerationParameters, JinjaTemplate, PrefixReader, SequencePlaces
from everytoken.models import GgufFile, KeyValueCache, Llama
from everytoken.reflections.generators.asking import Generator, GeneratorError, Question, RawReply, RequestFailed
from everytoken.reflections.generators.embedded_files import bring_model_file
from everytoken.reflections.generators.framed_replies import FramedReply, Vocabulary, Writing, write_reply
from everytoken.reflections.parameters import EmbeddedGenerator

_FRAME_TOKENS = 16  # of the frame before each string, at most


@asynccontextmanager
async def open_embedded(parameters: EmbeddedGenerator, identity: str) -> AsyncIterator[Generator]:
    """Give the generator.

    Args:
        identity: what the model is recorded as.

    Raises:
        GeneratorError: the model cannot do what the parameters ask for.
        UpstreamError: the model cannot be had.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield EmbeddedModel(GgufFile(bring_model_file(parameters)), parameters, identity)
    finally:
        torch.set_num_threads(before)


class _Place:
    """A reply that is being written in a place; the tokens that it has to read, and who waits for it."""

    def __init__(self, writing: Writing, answered: asyncio.Future[FramedReply]) -> None:
        self._writing, self.answered, self.unread = writing, answered, deque[int]()

    def take(self, logits: Tensor) -> bool:
        """Draw from the logits after what was read; return whether the reply is written."""
        try:
            self.unread.extend(self._writing.send(logits))
        except StopIteration as ended:
            if not self.answered.done():
                self.answered.set_result(ended.value)
            return True
        return False


class EmbeddedModel:
    """An opened model; see `everytoken.reflections.generators.asking.Generator`.

    Prompts are read one after the other; the replies of ``concurrency`` documents are written side by side.
    """

    def __init__(self, file: GgufFile, parameters: EmbeddedGenerator, identity: str) -> None:
        template = file.chat_template()
        if template is None or file.facts.eos_id is None:
            raise GeneratorError(f"{file.path} has no chat template, or no end of a turn. Choose a model that chats")
        self._sampling = parameters.chosen_sampling
        if self._sampling.thinking or self._sampling.presence_penalty:
            raise GeneratorError(
                "an embedded model neither thinks nor has a presence penalty: correct generator.sampling "
                f"({parameters.alias})"
            )
        tokenizer, model = Tokenizer.from_buffer(file.tokenizer_json()), cast(Llama, file.model())
        ends = frozenset({file.facts.eos_id})
        self._chat = ChatFormat(tokenizer, JinjaTemplate(template, file.special_tokens()), ends)
        self._vocabulary = Vocabulary(tokenizer, ends)
        self._reader = PrefixReader(model)
        self.concurrency = parameters.batch
        self._places = SequencePlaces(model, parameters.batch)
        self._written: dict[int, _Place] = {}
        self._waiting: deque[tuple[list[int], Writing, asyncio.Future[FramedReply]]] = deque()
        self._driver: asyncio.Task[None] | None = None
        self.failures: Counter[str] = Counter()
        self.facts: dict[str, Any] = {"model": identity, "server": "everytoken", "version": torch.__version__}

    async def ask(self, question: Question) -> RawReply:
        """Return a reply; see the protocol."""
        prompt = self._chat.tokens(question.messages)
        room = self._reader.model.max_seq_len - len(prompt)
        drawn_with = self._drawn_with(question.seed, room)
        if room < drawn_with.max_new_tokens + _FRAME_TOKENS * (1 + len(question.fields)):
            self.failures["context"] += 1
            raise RequestFailed(
                "context",
                f"the prompt has {len(prompt):,} tokens, and the reply up to {drawn_with.max_new_tokens:,}: more than "
                "the model's context",
            )
        answered: asyncio.Future[FramedReply] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, write_reply(self._vocabulary, question.fields, drawn_with), answered))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
            self._driver.add_done_callback(self._pass_on)
        reply = await answered
        return RawReply(reply.text, "", len(prompt), reply.drawn, 0)

    async def check(self) -> None:
        """Return at once: what is in this process works as long as it does."""

    def _pass_on(self, driver: asyncio.Task[None]) -> None:
        """Give the error that ended the driver to those that wait."""
        error = None if driver.cancelled() else driver.exception()
        for answered in [*(place.answered for place in self._written.values()), *(one[2] for one in self._waiting)]:
            if error is not None and not answered.done():
                answered.set_exception(error)

    async def _drive(self) -> None:
        """Write replies as long as somebody waits for one."""
        while self._waiting or self._written:
            for place in self._places.free[: len(self._waiting)]:
                self._begin(place, *self._waiting.popleft())
            if self._written:
                self._step()
            await asyncio.sleep(0)

    def _begin(self, place: int, prompt: list[int], writing: Writing, answered: asyncio.Future[FramedReply]) -> None:
        logits = self._reader.read_prompt(prompt + next(writing))
        started = _Place(writing, answered)
        if not started.take(logits):
            self._written[place] = started
            self._places.take(place, cast(KeyValueCache, self._reader.copied_cache()))

    def _step(self) -> None:
        after = self._places.read({number: place.unread.popleft() for number, place in self._written.items()})
        for number, logits in after.items():
            place = self._written[number]
            if not place.unread and place.take(logits):
                del self._written[number]
                self._places.leave(number)

    def _drawn_with(self, seed: int, room: int) -> GenerationParameters:
        sampling = self._sampling
        most = max(1, room // 2) if sampling.max_tokens == "free_context" else sampling.max_tokens
        return GenerationParameters(
            seed=seed,
            max_new_tokens=most,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )
