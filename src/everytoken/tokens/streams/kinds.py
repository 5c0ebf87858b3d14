"""The kinds of token streams: one entry each. Every list of streams in the project is derived from them.

A kind of a known layout needs its entry here, the node that writes it in the pipeline that the entry names, and its
datasets in the catalog. Of a layout that an index in the pipeline ``provenance`` knows, the node of the index comes
with the entry. A new layout needs a writer and an index function too (`everytoken.provenance.indexes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from everytoken.tokens.errors import StreamError

Stream = TypeVar("Stream")
Layout = Literal["packed", "padded", "chats", "flat"]
"""Windows cut from documents one after the other; one document a window; windows of chats; ids in files of one size."""

WHEN_MADE = "_when_made"
"""Ends the name of a dataset that is None as long as the dataset of the name before it has not been made."""


@dataclass(frozen=True)
class StreamKind:
    """A kind of stream.

    Attributes:
        name: in parameters, runs and releases; windows are in ``<name>.bin`` and ``<name>.idx``.
        dataset: its name in the catalog.
        layout: how documents lie in it.
        documents: what it is made of, in order: splits, or ``canary``. `tokens_of` names the dataset of their tokens.
        writer: declared name of the function that writes it.
        pipeline: makes it; the parameters of that name have its seed.
        is_on_request: whether only some jobs have it: ``pipeline`` is no part of the default one.
        is_released: whether a release describes it, where it is made, and a replay compares it.
        exclusion: what a take-down does with it. ``tombstones``: the windows keep their places, and excluded documents
            become EOS in them. ``rebuild``: it is made again as a whole. ``none``: no document of it is taken down.
        is_trained_on: whether ``pipeline`` also trains on it, which a take-down leaves to the user.
        own_documents: where the user gives its documents, when no release has them.
        spliced_by: declared name of the function that writes it with reflections, where it may have these.
        base: the stream whose windows it has, in their order, with a reflection in some; None: it has its own.
    """

    name: str
    dataset: str
    layout: Layout
    documents: tuple[str, ...]
    writer: str
    pipeline: str
    index: str
    index_pipeline: str
    is_on_request: bool
    is_released: bool
    exclusion: Literal["tombstones", "rebuild", "none"]
    is_trained_on: bool = False
    own_documents: str | None = None
    spliced_by: str | None = None
    base: str | None = None

    @property
    def is_of_windows(self) -> bool:
        """Whether each window is made of documents of one split."""
        return self.layout in ("packed", "padded")

    def tokens_of(self, documents: str) -> str:
        """Return the dataset that has the tokens of ``documents`` as this kind takes them; raw shards cut none."""
        return f"whole_{documents}_tokens" if self.layout == "flat" else f"{documents}_tokens"

    @property
    def split(self) -> str:
        """The documents of a stream that has those of one split."""
        (split,) = self.documents
        return split

    @property
    def input(self) -> str:
        """The dataset for a node that also runs where the stream has not been made, if only some jobs have it."""
        return self.dataset + WHEN_MADE if self.is_on_request else self.dataset


def _reflected(name: str, pipeline: str) -> StreamKind:
    """Return the kind of the annotated windows with the reflections of one run, which ``pipeline`` makes."""
    return StreamKind(
        name=name,
        dataset=f"{name}_stream",
        layout="padded",
        documents=("annotated",),
        writer="write_reflected_stream",
        pipeline=pipeline,
        index=f"{name}_index",
        index_pipeline=pipeline,
        is_on_request=True,
        is_released=True,
        exclusion="rebuild",
        base="annotated",
    )


STREAM_KINDS = {
    kind.name: kind
    for kind in (
        StreamKind(
            name="compact",
            dataset="compact_stream",
            layout="packed",
            documents=("unannotated",),
            writer="write_compact_stream",
            pipeline="tokenization",
            index="compact_index",
            index_pipeline="provenance",
            is_on_request=False,
            is_released=True,
            exclusion="tombstones",
        ),
        StreamKind(
            name="annotated",
            dataset="annotated_stream",
            layout="padded",
            documents=("annotated",),
            writer="write_annotated_stream",
            pipeline="tokenization",
            index="annotated_index",
            index_pipeline="provenance",
            is_on_request=False,
            is_released=True,
            exclusion="tombstones",
        ),
        StreamKind(
            name="canary",
            dataset="canary_stream",
            layout="padded",
            documents=("canary",),
            writer="write_canary_stream",
            pipeline="canary",
            index="canary_index",
            index_pipeline="canary",
            is_on_request=True,
            is_released=True,
            exclusion="none",
            own_documents="the paths of canary.effects and canary.universes",
            spliced_by="write_spliced_canary_stream",
        ),
        StreamKind(
            name="raw_shards",
            dataset="raw_shards",
            layout="flat",
            documents=("unannotated", "annotated"),
            writer="write_raw_shards",
            pipeline="packing",
            index="raw_shards_index",
            index_pipeline="packing",
            is_on_request=True,
            is_released=True,
            exclusion="rebuild",
        ),
        StreamKind(
            name="chats",
            dataset="chat_windows",
            layout="chats",
            documents=("unannotated", "annotated"),
            writer="write_chat_windows",
            pipeline="finetuning",
            index="chat_index",
            index_pipeline="finetuning",
            is_on_request=True,
            is_released=False,
            exclusion="rebuild",
            is_trained_on=True,
        ),
        _reflected("reflected", "reflection"),
        _reflected("reflected_end", "reflection_end"),
        _reflected("reflected_refusals", "refusal_reflection"),
        _reflected("reflected_summaries", "summaries"),
    )
}
"""By name, in the order in which streams are named in messages."""


def kinds_by_name() -> list[StreamKind]:
    """Return the kinds in alphabetical order, those that only some jobs have last."""
    return sorted(STREAM_KINDS.values(), key=lambda kind: (kind.is_on_request, kind.name))


def released_kinds() -> list[StreamKind]:
    """Return the kinds that a release describes."""
    return [kind for kind in STREAM_KINDS.values() if kind.is_released]


def window_kinds() -> list[StreamKind]:
    """Return the kinds of windows that are made of documents of one split: what the job ``corpus`` trains on."""
    return [kind for kind in STREAM_KINDS.values() if kind.is_of_windows]


def trainable_kinds() -> list[StreamKind]:
    """Return the kinds among which training chooses by name, if the job has them."""
    return [kind for kind in STREAM_KINDS.values() if kind.is_of_windows or kind.layout == "flat"]


def chosen_kinds(names: Iterable[str]) -> list[StreamKind]:
    """Return the kinds that training is to read, in the order of their names.

    Raises:
        StreamError: a name is none of `trainable_kinds`, or comes twice; or there is none.
    """
    known, chosen = {kind.name: kind for kind in trainable_kinds()}, list(names)
    for name in chosen:
        if name not in known:
            raise StreamError(
                f"{name!r} is no stream that training can choose: there are {', '.join(known)}. Any other stream on "
                "disk is trained on by its path: kedro run --pipelines pretraining"
            )
    if not chosen or len(set(chosen)) < len(chosen):
        raise StreamError(f"expected at least one stream, each once, found {', '.join(chosen) or 'none'}")
    return [known[name] for name in chosen]


def chosen_streams(names: Iterable[str], made: Mapping[str, Stream | None]) -> list[tuple[str, Stream]]:
    """Return the streams that training is to read, with their names.

    Args:
        names: of `chosen_kinds`.
        made: the streams that the job has, by name; None: it has not been made.

    Raises:
        StreamError: a chosen one has not been made, or the job has none; or see `chosen_kinds`.
    """
    chosen = []
    for kind in chosen_kinds(names):
        if kind.name not in made:
            raise StreamError(
                f"training.streams names {kind.name}, and the job of this environment trains on {', '.join(made)}: "
                "name these, or run another job (globals.yml: job)"
            )
        if (stream := made[kind.name]) is None:
            raise StreamError(
                f"training.streams names {kind.name}, and there is no {kind.dataset} yet: run the pipeline that makes "
                f"it (kedro run --pipelines {kind.pipeline}), in the environment of the training"
            )
        chosen.append((kind.name, stream))
    return chosen


def kind_of_dataset(dataset: str) -> StreamKind | None:
    """Return the kind of a dataset of the catalog, also under its name for `WHEN_MADE`; None: it is no stream."""
    name = dataset.removesuffix(WHEN_MADE)
    return next((kind for kind in STREAM_KINDS.values() if kind.dataset == name), None)


def dataset_of_stream(name: str) -> str:
    """Return the dataset of a stream; a name of no kind is taken for that of a dataset."""
    return STREAM_KINDS[name].dataset if name in STREAM_KINDS else name


def written_by(function: str) -> Iterator[StreamKind]:
    """Yield the kinds that a function writes, by its declared name."""
    yield from (kind for kind in STREAM_KINDS.values() if function in (kind.writer, kind.spliced_by))
