"""A reflected stream compared with what it was made from: every window is spliced again, in memory, and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from everytoken.checks import Mismatch, first_difference, require_equal
from everytoken.reflections.splicing.annotated_source import AnnotatedSource
from everytoken.reflections.splicing.reflected_stream import ReflectedStatistics, splice_all
from everytoken.reflections.splicing.run_columns import columns_of_run
from everytoken.reflections.splicing.spliced_ranges import ARRAYS, SpliceJob
from everytoken.shards import Artifact, Shards
from everytoken.tokens.streams import PaddedStatistics, TokenizerFacts, open_indexed
from everytoken.tokens.tokenizer import EncodingRules


def compare_reflected_stream(
    stream: Artifact, annotated: Artifact, columns: Shards, tokenizer: Artifact
) -> ReflectedStatistics:
    """Compare windows, places and lengths of reflections, and what the ledger says of them; return that.

    Memory: as of `everytoken.reflections.splicing.write_reflected_stream`.

    Args:
        annotated, columns, tokenizer: those that the ledger of the stream names.

    Raises:
        Mismatch: names the first window that differs with its document, or the first number.
        ReflectionError: stream, sidecar and columns do not belong together.
    """
    given, said = stream.ledger["recipe"]["parameters"], stream.statistics_as(ReflectedStatistics)
    rules = EncodingRules(tokenizer, given["eos_token"], given["special_tokens_in_text"])
    named, source = columns_of_run(given["run"], given["voice"]), AnnotatedSource.of(annotated)
    facts = TokenizerFacts(**annotated.statistics_as(PaddedStatistics)["tokenizer"])
    compared = _ComparedWindows.of(stream, named.kind, source)
    job = SpliceJob(
        source, compared, named, facts, rules, given["reflection_budget"], given["marker"], given["canaries"]
    )
    again: Mapping[str, object] = splice_all(job, columns, given["run"], said["generator"])
    for name in sorted(again):
        require_equal(f"{stream.folder}: {name} in its ledger", stream.statistics.get(name), again[name])
    return said


@dataclass(frozen=True)
class _ComparedWindows:
    """Takes windows where a stream would be written, and compares them with one that is."""

    name: str
    windows: np.ndarray
    arrays: Mapping[str, np.ndarray]
    source: AnnotatedSource

    @staticmethod
    def of(stream: Artifact, kind: str, source: AnnotatedSource) -> _ComparedWindows:
        """Map the files of a stream."""
        windows = open_indexed(stream.path(f"{kind}.bin").with_suffix("")).windows()
        arrays = {name: np.load(stream.path(name), mmap_mode="r" if len(windows) else None) for name in ARRAYS}
        require_equal(f"{stream.folder}: windows", windows.shape, source.windows().shape)
        for name, array in arrays.items():
            require_equal(f"{stream.path(name)}: windows", len(array), len(windows))
        return _ComparedWindows(str(stream.folder), windows, arrays, source)

    def write(self, first: int, windows: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Compare the windows ``first``, ``first + 1``, ..., (n, window), and their values in each array, (n,).

        Raises:
            Mismatch: names the first window that differs.
        """
        here = slice(first, first + len(windows))
        wrong = (self.windows[here] != windows).any(axis=1)
        for name in ARRAYS:
            wrong |= self.arrays[name][here] != values[name]
        if not wrong.any():
            return
        number = int(np.argmax(wrong))
        place, document = f"{self.name} window {first + number:,}", self._document(first + number)
        for name in ARRAYS:
            if (found := int(self.arrays[name][first + number])) != (expected := int(values[name][number])):
                raise Mismatch(f"{place}: its entry of {name}", f"{expected:,}", f"{found:,}", more=document)
        at = first_difference(self.windows[first + number], windows[number])
        assert at is not None
        expected, found = int(windows[number, at]), int(self.windows[first + number, at])
        raise Mismatch(f"{place} token {at:,}", f"the id {expected:,}", f"{found:,}", more=document)

    def _document(self, window: int) -> str:
        (_, row) = next(iter(self.source.sidecar_rows(window, window + 1, ["doc_id"])))
        return f"it holds the document {row.column('doc_id')[0].as_py()!r}"
