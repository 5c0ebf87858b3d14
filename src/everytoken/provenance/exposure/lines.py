"""What a run read of documents, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from everytoken.provenance.exposure.counts import Exposure, Held, Reads
from everytoken.provenance.exposure.phrases import (
    NOT_IN_STREAM,
    TAKEN_DOWN,
    UNKNOWN,
    DocumentExposure,
    InStream,
    Occurrence,
)
from everytoken.provenance.exposure.questions import Answer
from everytoken.provenance.exposure.unused_documents import EXCLUDED, NO_ROW, NOT_DRAWN, NOT_PLANNED, Unused
from everytoken.provenance.trace import file_lines, printable, quoted, record_line, shortened

_REASONS = {
    NOT_IN_STREAM: "not in it (of a chat, what follows the last turn that is kept)",
    TAKEN_DOWN: "taken down: EOS stands in its place",
    UNKNOWN: "not known: the stream was made again since, and how it was encoded is gone",
}

_BEYOND = {True: "beyond the cap", False: "behind the last turn that is kept"}


def answer_lines(answer: Answer, limit: int, at_step: int | None) -> Iterator[str]:
    """Yield what a run read of documents; of each at most ``limit`` times that it did."""
    run = answer.runs[-1]
    steps = run.steps if at_step is None else at_step
    began = "".join(f", begun from {one.name} ({one.steps:,} steps)" for one in reversed(answer.runs[:-1]))
    beyond = f"; the run ended after {run.steps:,}, beyond that it is what it would read" if steps > run.steps else ""
    yield f"{run.name}: the first {steps:,} steps of {run.batch_size:,} sequences{began}{beyond}"
    for note in answer.notes:
        yield f"note: {note}"
    for document in answer.documents:
        yield ""
        yield from _document_lines(document, limit, several=len(answer.runs) > 1)
    for unused in answer.unused:
        yield ""
        yield _unused_line(unused)
    if answer.more:
        yield ""
        yield f"and {answer.more:,} more documents (--limit)"
    if not answer.documents and not answer.unused:
        yield "no document was found"
        yield _searched_line(answer)
    yield from file_lines([one.record for one in answer.documents])


def _searched_line(answer: Answer) -> str:
    counts = {name: count for name, count in answer.searched.documents.items() if name not in ("read", "dropped")}
    splits = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    read = answer.searched.documents.get("read")
    also = "" if read is None else f", and of all {read:,} that were read, with what was set aside or dropped"
    what = answer.searched.what
    return f"searched: the {what} of {sum(counts.values()):,} documents ({splits}){also}; exact, and case counts"


def _document_lines(document: DocumentExposure, limit: int, several: bool) -> Iterator[str]:
    yield record_line(document.record)
    if document.record.split == "held_out":
        yield "  held out: no stream has it"
    for one in document.streams:
        yield f"  {_stream_line(one, document.characters)}"
    if document.occurrences is None:
        if not document.held and document.record.split != "held_out":
            yield "  no window of the run's streams holds it"
        yield from _reads_lines(document, limit, several, "  ", {})
        return
    for occurrence in document.occurrences:
        start, end = occurrence.characters
        yield f"  found at the characters [{start:,}, {end:,}) of {document.characters:,}"
        yield from _occurrence_lines(occurrence, limit, several)
    if document.more:
        yield f"  and at {document.more:,} more places (--limit)"


def _stream_line(one: InStream, characters: int) -> str:
    """Return how much of a document a stream has."""
    if one.tokens is None or one.characters is None:
        return f"{one.stream}: {_REASONS[str(one.reason)]}"
    rest = "cut to the cap" if one.cut_to_cap else "what follows its last turn that is kept is left out"
    cut = "" if one.whole or one.of_tokens is None else f"; {rest}, of {one.of_tokens:,} tokens"
    return (
        f"{one.stream}: {one.tokens[1]:,} tokens of it, EOS included; characters "
        f"[{one.characters[0]:,}, {one.characters[1]:,}) of {characters:,}{cut}"
    )


def _occurrence_lines(occurrence: Occurrence, limit: int, several: bool) -> Iterator[str]:
    for one in occurrence.streams:
        if one.tokens is None or one.characters is None:
            beyond = "beyond the cap: in no stream" if len(occurrence.streams) == 1 else "beyond the cap"
            yield f"    {one.stream}: {beyond if one.cut_to_cap else _REASONS[str(one.reason)]}"
            continue
        held = [each for each in occurrence.held if each.stream == one.stream]
        start, end = one.characters
        part = "" if one.whole else f", in part: [{start:,}, {end:,}), the rest is {_BEYOND[one.cut_to_cap]}"
        missing = _missing(one.tokens, held)
        if missing == one.tokens[1] - one.tokens[0]:
            part += "; in no window (a remainder, or what chats leave out)"
        elif missing:
            part += f"; {missing:,} of them in no window"
        yield f"    {one.stream}: tokens [{one.tokens[0]:,}, {one.tokens[1]:,}) of the document{part}"
    if not occurrence.held:
        yield "    in no window of the run's streams: it was never read"
    yield from _reads_lines(occurrence, limit, several, "    ", {one.stream: one.tokens for one in occurrence.streams})


def _missing(tokens: tuple[int, int], held: Sequence[Held]) -> int:
    """Return how many of the tokens [first, end) are in no window."""
    missing, place = 0, tokens[0]
    for one in sorted(held, key=lambda one: one.first):
        missing += max(0, one.first - place)
        place = max(place, one.end)
    return missing + max(0, tokens[1] - place)


def _in_part(held: Held, meant: Mapping[str, tuple[int, int] | None]) -> str:
    """Return whether a window holds but a part of the tokens of a phrase, which ``meant`` has by stream."""
    tokens = meant.get(held.stream)
    return "" if tokens is None or (held.first, held.end) == tokens else ", a part of it"


def _reads_lines(
    reads: Reads, limit: int, several: bool, indent: str, meant: Mapping[str, tuple[int, int] | None]
) -> Iterator[str]:
    for held in reads.held[:limit]:
        end = held.until
        yield (
            f"{indent}window {held.window:,} of {held.stream}: its tokens [{held.first:,}, {held.end:,}) at "
            f"[{held.at:,}, {end:,}){_in_part(held, meant)}"
        )
    if len(reads.held) > limit:
        yield f"{indent}and {len(reads.held) - limit:,} more windows (--limit)"
    seen = reads.exposures
    if not seen:
        if reads.held:
            yield f"{indent}not read in these steps"
        return
    tokens, counted = sum(one.tokens for one in seen), reads.counted
    in_loss = "how many counted in the loss is not known" if counted is None else f"{counted:,} counted in the loss"
    yield (
        f"{indent}read {_times(len(seen))}: {tokens:,} tokens, {in_loss}; first in step {_step(seen[0], several)}, "
        f"last in step {_step(seen[-1], several)}"
    )
    for one in seen[:limit]:
        skipped = "; the step was skipped and updated nothing" if one.skipped else ""
        end = one.held.at + one.tokens
        yield (
            f"{indent}  step {_step(one, several)}, sequence {one.sequence} (sample {one.sample:,}, epoch {one.epoch})"
            f": window {one.held.window:,} of {one.held.stream}, positions [{one.held.at:,}, {end:,})"
            f"{_in_part(one.held, meant)}{skipped}"
        )
    if len(seen) > limit:
        yield f"{indent}  and {len(seen) - limit:,} more times (--limit)"
    past = [f"after {one.step:,} steps ({_times(one.times)})" for one in reads.checkpoints]
    yield f"{indent}read before the checkpoints {', '.join(past)}" if past else f"{indent}no checkpoint is kept"


def _step(exposure: Exposure, several: bool) -> str:
    return f"{exposure.step:,}" + (f" of {exposure.run}" if several else "")


def _unused_line(unused: Unused) -> str:
    told = {
        NOT_PLANNED: "it was not read",
        NO_ROW: "there is no such row",
        NOT_DRAWN: "it is a document, and no split drew it",
        EXCLUDED: "it was taken down",
    }.get(unused.reason, f"set aside as {unused.reason}")
    known = f" ({printable(unused.told)})" if unused.told else ""
    name = "none" if unused.id is None else quoted(shortened(unused.id, 60))
    return f"{printable(str(unused.address))}, id {name}: in no split; {told}{known}"


def _times(count: int) -> str:
    return "once" if count == 1 else "never" if not count else f"{count:,} times"
