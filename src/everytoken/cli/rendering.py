"""The records of documents that ``--json`` prints, as lines for a terminal: those of trace and exposure.

Control characters of texts and ids are spelled out, long ids are shortened, long lists are counted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

JsonRecord = Mapping[str, Any]

_COLUMNS = 120
_SHORTEST = 16  # characters of an id are shown at least
_AROUND = 80  # characters of the text on both sides of a traced span

_TOKEN_KINDS = {
    "text": "",
    "special": "; a special token that the text spells",
    "eos": "; EOS, which is no part of the text",
    "padding": "; padding",
    "reflection": "; of a reflection that a model wrote, not of the document",
    "taken_down": "; EOS in the place of a document that was taken down",
}
_NO_TOKENS = {
    "not_in_stream": "not in it (of a chat, what follows the last turn that is kept)",
    "taken_down": "taken down: EOS stands in its place",
    "masked": "its window is masked, as its reflection has an identity canary (reflection.splice.canaries: drop)",
    "not_known": "not known: the stream was made again since, and how it was encoded is gone",
}
_UNUSED = {
    "not_planned": "it was not read",
    "no_such_row": "there is no such row",
    "not_drawn": "it is a document, and no split drew it",
    "excluded": "it was taken down",
}
_BEYOND = {True: "beyond the cap", False: "behind the last turn that is kept"}


def printable(text: str) -> str:
    """Return a text with control, format and other characters that a terminal would act on spelled out."""
    return "".join(
        f"\\u{{{ord(character):x}}}" if _acts(character) else character for character in text.replace("\r", "\\r")
    )


def quoted(text: str | None) -> str:
    """Return a text in quotes on one line, or ``none``."""
    return "none" if text is None else '"' + printable(text).replace("\n", "\\n") + '"'


def _acts(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters: a long one with … in its middle."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def _range(pair: Sequence[int]) -> str:
    return f"[{pair[0]:,}, {pair[1]:,})"


def _first(things: Sequence[Any], limit: int, line: Callable[[Any], str], more: str) -> Iterator[str]:
    """Yield a line for each of the first things, and how many more there are."""
    yield from map(line, things[:limit])
    if len(things) > limit:
        yield more.format(f"and {len(things) - limit:,} more")


def document_line(document: JsonRecord, width: int = _COLUMNS, more: str = "") -> str:
    """Return what tells a document: its address, id, score, split, and more; long ids are shortened to fit."""
    if document["canary"] is not None:
        told = [f"{name} {quoted(str(value))}" for name, value in document["canary"].items() if value is not None]
        name = quoted(shortened(str(document["id"]), 40))
        line = f"line {document['row']:,} of its file"
        return f"canary document {document['number']:,}: id {name}, {', '.join([line, *told])}{more}"
    before = f"{printable(str(document['address']))}, id "
    score = "not scored" if document["safety_score"] is None else f"safety score {document['safety_score']}"
    second = "".join(f", {name} {value:.4g}" for name, value in document.get("second_scores", {}).items())
    after = f", {score}{second}, {document['split']} {document['number']:,}"
    if document["excluded"] is not None:
        after += f", taken down: {quoted(shortened(document['excluded'], 30))}"
    after += more
    most = max(_SHORTEST, width - len(before) - len(after) - 2)
    name = "none" if document["id"] is None else f'"{shortened(quoted(document["id"])[1:-1], most)}"'
    return before + name + after


def file_lines(documents: Iterable[JsonRecord]) -> Iterator[str]:
    """Yield which file of its upstream each number in the addresses of documents is, each once."""
    told = {(one["source"], one["shard_index"]): one["path"] for one in documents if one.get("path") is not None}
    if told:
        yield ""
    for (source, shard_index), path in sorted(told.items(), key=str):
        yield f"{printable(str(source))} file {shard_index}: {printable(str(path))}"


def batch_lines(sequences: Sequence[JsonRecord], run: str | None) -> Iterator[str]:
    """Yield what traced windows are made of, and the files of their documents; of a ``token`` its document alone."""
    for number, sequence in enumerate(sequences):
        yield from [""] if number else []
        yield from sequence_lines(sequence, run)
    yield from file_lines(span["document"] for one in sequences for span in one["documents"] if _is_asked(one, span))


def sequence_lines(sequence: JsonRecord, run: str | None) -> Iterator[str]:
    """Yield what a window is made of: ``run`` read it, None of a window alone."""
    token, window = sequence.get("token"), f"window {sequence['window']:,} of the stream {sequence['stream']}"
    if "step" in sequence:
        yield (
            f"step {sequence['step']:,}, sequence {sequence['sequence']} of {run}: sample {sequence['sample']:,} is "
            f"{window}, read for the {_ordinal(sequence['epoch'] + 1)} time"
        )
    else:
        yield window
    counted = sequence["counted_in_loss"]
    of_loss = "which count is not known" if counted is None else f"{counted:,} of them count in the loss"
    yield f"{sequence['tokens']:,} tokens; {of_loss}"
    if not sequence["documents_known"]:
        yield "nothing says which documents they are of: no index of this project, and an .idx of windows alone"
    if not sequence["ids_known"]:
        yield (
            "note: the stream was made again since, as by a take-down. Its index says which documents the window held; "
            "no id was compared"
        )
    if token is not None:
        yield from _token_lines(token)
    for number, span in enumerate(sequence["documents"]):
        if _is_asked(sequence, span):
            yield from _span_lines(span, token, sequence["texts"][number] if "texts" in sequence else None)
    if token is None and sequence["documents_known"]:
        for begin, end in (*sequence["padding_between"], sequence["padding"]):
            if begin < end:
                yield f"[{begin}, {end})  padding: {end - begin} times EOS, none counts in the loss"


def _is_asked(sequence: JsonRecord, span: JsonRecord) -> bool:
    return "token" not in sequence or span["positions"][0] <= sequence["token"]["position"] < span["positions"][1]


def _token_lines(token: JsonRecord) -> Iterator[str]:
    spelled = "" if token["bytes"] is None else f", bytes {bytes.fromhex(token['bytes']).hex(' ')}"
    text = "" if token["text"] is None else f" {quoted(token['text'])}"
    yield f"position {token['position']}: token {token['id']}{text}{spelled}{_TOKEN_KINDS[token['kind']]}"
    if token["counts_in_loss"]:
        yield f"it counts in the loss, as the target of prediction {token['position'] - 1}"
    else:
        yield "it does not count in the loss" + (": nothing predicts the first token" if not token["position"] else "")
    if token["characters"] is not None:
        first, last = token["characters"]
        part = "" if token["part"] is None else f", bytes [{token['part'][0]}, {token['part'][1]}) of their UTF-8"
        yield f"it is made from the characters [{first}, {last}){part} of the document"


def _span_lines(span: JsonRecord, token: JsonRecord | None, text: JsonRecord | None) -> Iterator[str]:
    if span["document"].get("reflection") is not None:
        yield from _reflection_lines(span, text)
        return
    begin, document, characters = f"[{span['positions'][0]}, {span['positions'][1]})", span["document"], ""
    length = "" if span["document_tokens"] is None else f" of {span['document_tokens']:,}"
    if span["characters"] is not None:
        characters = f"; characters {_range(span['characters'])} of {span['document_characters']:,}"
    ended = ", EOS too" if span["has_eos"] else ""
    down = "; taken down: EOS stands in its place" if span["taken_down"] else ""
    counted = "" if span["counted_in_loss"] is None else f"; {span['counted_in_loss']:,} count in the loss"
    yield f"{begin}  tokens {_range(span['tokens'])}{length}{ended}{characters}{counted}{down}"
    indent = " " * (len(begin) + 2)
    if "file" in document:  # of a stream that another program wrote
        name, number = document["file"] or ("", 0)
        of_file = f": document {number:,} of {printable(name)}" if document["file"] else ""
        yield f"{indent}sequence {document['number']:,} of the stream's .idx{of_file}"
        return
    cut = f"; cut to the cap, of {span['uncut_tokens']:,}" if span["cut_to_cap"] else ""
    yield indent + document_line(document, _COLUMNS - len(indent), cut)
    marked = span["characters"] if token is None else token["characters"]
    if text is not None and marked is not None:
        yield from (indent + line for line in _marked(text["before"] + text["span"] + text["after"], *marked))


def _reflection_lines(span: JsonRecord, text: JsonRecord | None) -> Iterator[str]:
    """Yield who wrote a reflection, about which document, and its text."""
    begin, document = f"[{span['positions'][0]}, {span['positions'][1]})", span["document"]
    counted = "" if span["counted_in_loss"] is None else f"; {span['counted_in_loss']:,} count in the loss"
    cut = f"; cut to the cap, of {span['uncut_tokens']:,} tokens" if span["cut_to_cap"] else ""
    yield f"{begin}  a reflection of {span['document_tokens']:,} tokens, generated, not the document's{cut}{counted}"
    indent = " " * (len(begin) + 2)
    told = [f"{name} {printable(str(value))}" for name, value in document["reflection"].items() if value is not None]
    yield indent + (", ".join(told) or "by whom is not known: the stream is gone")
    yield f"{indent}about {document_line(document, _COLUMNS - len(indent) - 6)}"
    if text is not None:
        yield from (indent + line for line in _marked(text["span"] + text["after"], 0, len(text["span"])))


def _marked(text: str, start: int, end: int) -> Sequence[str]:
    """Return the lines of a text with a span between ``[[[`` and ``]]]``, and what is near it."""
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    head, tail = "..." if start > _AROUND else "", "..." if end + _AROUND < len(text) else ""
    return f"{head}{printable(before)}[[[{printable(text[start:end])}]]]{printable(after)}{tail}".split("\n")


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 % 10 != 1 else "th"
    return f"{number:,}{ending}"


def exposure_lines(answer: JsonRecord, limit: int, at_step: int | None) -> Iterator[str]:
    """Yield what a run read of documents; of each at most ``limit`` times that it did."""
    run, several = answer["run"], bool(answer["began_from"])
    steps = run["steps"] if at_step is None else at_step
    began = "".join(f", begun from {one['name']} ({one['steps']:,} steps)" for one in reversed(answer["began_from"]))
    ended = f"; the run ended after {run['steps']:,} steps, numbered from 0, and beyond that it is what it would read"
    beyond = ended if steps > run["steps"] else ""
    yield f"{run['name']}: the first {steps:,} steps of {run['batch_size']:,} sequences{began}{beyond}"
    yield from (f"note: {note}" for note in answer["notes"])
    for document in answer["documents"]:
        yield ""
        yield from _exposed_lines(document, limit, several)
    for unused in answer["not_in_a_split"]:
        yield ""
        yield _unused_line(unused)
    if answer["more_documents"]:
        yield ""
        yield f"and {answer['more_documents']:,} more documents (--limit)"
    if not answer["documents"] and not answer["not_in_a_split"]:
        yield "no document was found"
        yield _searched_line(**answer["searched"])
        if answer["searched"]["what"] == "ids":
            yield "an id is looked for whole: that of a file of text is its path below the folder of the source"
    yield from file_lines(one["document"] for one in answer["documents"])


def _searched_line(what: str, documents: Mapping[str, int]) -> str:
    counts = {name: count for name, count in documents.items() if name not in ("read", "dropped")}
    splits = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    read = documents.get("read")
    also = "" if read is None else f", and of all {read:,} that were read, with what was set aside or dropped"
    return f"searched: the {what} of {sum(counts.values()):,} documents ({splits}){also}; exact, and case counts"


def _exposed_lines(document: JsonRecord, limit: int, several: bool) -> Iterator[str]:
    is_held_out, characters = document["document"]["split"] == "held_out", document["document_characters"]
    yield document_line(document["document"])
    if is_held_out:
        yield "  held out: no stream has it"
    yield from (f"  {_stream_line(one, characters)}" for one in document["streams"])
    if "occurrences" not in document:
        if not document["windows"] and not is_held_out:
            yield "  no window of the run's streams holds it"
        yield from _reads_lines(document, limit, several, "  ", {})
        return
    for occurrence in document["occurrences"]:
        yield f"  found at the characters {_range(occurrence['characters'])} of {characters:,}"
        yield from _occurrence_lines(occurrence, limit, several)
    if document["more_occurrences"]:
        yield f"  and at {document['more_occurrences']:,} more places (--limit)"


def _stream_line(one: JsonRecord, characters: int) -> str:
    """Return how much of a document a stream has."""
    if one["tokens"] is None or one["characters"] is None:
        return f"{one['stream']}: {_NO_TOKENS[one['reason']]}"
    rest = "cut to the cap" if one["cut_to_cap"] else "what follows its last turn that is kept is left out"
    cut = "" if one["whole"] or one["of_tokens"] is None else f"; {rest}, of {one['of_tokens']:,} tokens"
    if one["reflection"] is not None:
        cut += f"; with a reflection at {_range(one['reflection'])}"
    return (
        f"{one['stream']}: {one['tokens'][1]:,} tokens of it, EOS included; characters {_range(one['characters'])} of "
        f"{characters:,}{cut}"
    )


def _occurrence_lines(occurrence: JsonRecord, limit: int, several: bool) -> Iterator[str]:
    for one in occurrence["streams"]:
        if one["tokens"] is None or one["characters"] is None:
            beyond = "beyond the cap: in no stream" if len(occurrence["streams"]) == 1 else "beyond the cap"
            yield f"    {one['stream']}: {beyond if one['cut_to_cap'] else _NO_TOKENS[one['reason']]}"
            continue
        rest = f", in part: {_range(one['characters'])}, the rest is {_BEYOND[one['cut_to_cap']]}"
        part = "" if one["whole"] else rest
        missing = _missing(one["tokens"], [held for held in occurrence["windows"] if held["stream"] == one["stream"]])
        if missing == one["tokens"][1] - one["tokens"][0]:
            part += "; in no window (a remainder, or what chats leave out)"
        elif missing:
            part += f"; {missing:,} of them in no window"
        yield f"    {one['stream']}: tokens {_range(one['tokens'])} of the document{part}"
    if not occurrence["windows"]:
        yield "    in no window of the run's streams: it was never read"
    meant = {one["stream"]: one["tokens"] for one in occurrence["streams"]}
    yield from _reads_lines(occurrence, limit, several, "    ", meant)


def _missing(tokens: Sequence[int], windows: Sequence[JsonRecord]) -> int:
    """Return how many of the tokens [first, end) are in no window."""
    missing, place = 0, tokens[0]
    for first, end in sorted(window["tokens"] for window in windows):
        missing += max(0, first - place)
        place = max(place, end)
    return missing + max(0, tokens[1] - place)


def _reads_lines(
    reads: JsonRecord, limit: int, several: bool, indent: str, meant: Mapping[str, Sequence[int] | None]
) -> Iterator[str]:
    """Yield the windows that hold tokens, and when they were read; ``meant`` are the tokens of a phrase, by stream."""

    def in_part(one: JsonRecord) -> str:
        tokens = meant.get(one["stream"])
        return "" if tokens is None or list(one["tokens"]) == list(tokens) else ", a part of it"

    def held(one: JsonRecord) -> str:
        place = f"its tokens {_range(one['tokens'])} at {_range(one['positions'])}{in_part(one)}"
        return f"{indent}window {one['window']:,} of {one['stream']}: {place}"

    def step(one: JsonRecord) -> str:
        return f"{one['step']:,}" + (f" of {one['run']}" if several else "")

    def seen(one: JsonRecord) -> str:
        skipped = "; the step was skipped and updated nothing" if one["skipped_step"] else ""
        return (
            f"{indent}  step {step(one)}, sequence {one['sequence']} (sample {one['sample']:,}, epoch {one['epoch']}): "
            f"window {one['window']:,} of {one['stream']}, positions {_range(one['positions'])}{in_part(one)}{skipped}"
        )

    yield from _first(reads["windows"], limit, held, indent + "{} windows (--limit)")
    times, counted = reads["exposures"], reads["tokens_counted_in_loss"]
    if not times:
        yield from [f"{indent}not read in these steps"] if reads["windows"] else []
        return
    in_loss = "how many counted in the loss is not known" if counted is None else f"{counted:,} counted in the loss"
    yield (
        f"{indent}read {_times(reads['times'])}: {reads['tokens_seen']:,} tokens, {in_loss}; first in step "
        f"{step(times[0])}, last in step {step(times[-1])}"
    )
    yield from _first(times, limit, seen, indent + "  {} times (--limit)")
    past = [f"after {one['step']:,} steps ({_times(one['times'])})" for one in reads["checkpoints"]]
    yield f"{indent}read before the checkpoints {', '.join(past)}" if past else f"{indent}no checkpoint is kept"


def _unused_line(unused: JsonRecord) -> str:
    reason = _UNUSED.get(unused["reason"], f"set aside as {unused['reason']}")
    known = f" ({printable(unused['told'])})" if unused["told"] else ""
    name = "none" if unused["id"] is None else quoted(shortened(unused["id"], 60))
    return f"{printable(unused['address'])}, id {name}: in no split; {reason}{known}"


def _times(count: int) -> str:
    return "once" if count == 1 else "never" if not count else f"{count:,} times"
