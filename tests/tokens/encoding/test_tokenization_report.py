from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from everytoken.reports import tokenization_figure
from everytoken.shards import Artifact, ArtifactStore, Inline, Shards, Store, plan_artifact
from everytoken.tokens import (
    EncodingRules,
    StreamError,
    encode_part,
    open_tokenizer,
    write_annotated_stream,
    write_compact_stream,
)
from everytoken.tokens.encoding.language_bands import BANDS, language_band
from everytoken.tokens.encoding.recheck import Recheck
from everytoken.tokens.encoding.report import (
    BOTH,
    cut_lines,
    length_histograms,
    tokenization_summary,
    tokenization_table,
)
from everytoken.tokens.engines.certificate import certify_engines
from everytoken.tokens.engines.registry import REFERENCE, reference_version
from tests.tokens.corpora import EOS, documents, small_tokenizer, stored

SEQ_LENGTH, CAP = 12, 8
SOURCES = ("web", "", "NA")  # a source may be named so
TEXTS = {
    "annotated": [
        ["the cat sat on the mat", "naïve café où ça", "", "the"],
        [f"the {EOS} cat", "日本語の文章と日本語"],
    ],
    "unannotated": [["Привет мир", "x = x + 1; y = x", "한국어 텍스트"], [], ["the the the"] * 9],
}


class Made(NamedTuple):
    tokens: dict[str, Shards]
    compact: Artifact
    annotated: Artifact
    tokenizer: Artifact

    def summary(self, **changes: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "tokens": self.tokens,
            "compact_stream": self.compact.statistics,
            "annotated_stream": self.annotated.statistics,
            "chars_per_token": 4.068,
            "estimated_tokens": {"annotated": 20.5, "unannotated": 30.25},
        }
        given |= changes
        return tokenization_summary(given.pop("tokens"), **given)


def encoded(folder: Path, texts: list[list[str]], tokenizer: Artifact, max_tokens: int) -> Shards:
    certificate = plan_artifact(
        certify_engines,
        rules=EncodingRules(tokenizer, EOS, "control"),
        engines={},
        reference=reference_version(),
        samples=[],
        cases=1,
        documents=0,
        seed=42,
    )
    proven = ArtifactStore(folder / "certificate").save(certificate)
    tables = [documents(part, number, SOURCES) for number, part in enumerate(texts)]
    planned = stored(folder / "in", tables).map(
        encode_part,
        rules=EncodingRules(tokenizer, EOS, "control"),
        certificate=proven,
        max_tokens=max_tokens,
        max_lossy_share=0.0,
        columns=tables[0].column_names,
        engine=REFERENCE,
        recheck=Recheck(0.0, 42),
    )
    store = Store(folder / "tokens")
    store.save(planned, Inline())
    return store.load()


def make(folder: Path, texts: dict[str, list[list[str]]]) -> Made:
    tokenizer = small_tokenizer(folder / "small", [text for parts in TEXTS.values() for part in parts for text in part])
    caps = {"annotated": CAP, "unannotated": SEQ_LENGTH}
    tokens = {split: encoded(folder / split, parts, tokenizer, caps[split]) for split, parts in texts.items()}
    order = {"tokenizer": tokenizer, "seq_length": SEQ_LENGTH, "seed": 42, "shuffle_memory": 1 << 20}
    compact = plan_artifact(write_compact_stream, tokens=tokens["unannotated"], shuffle_block=None, **order)
    annotated = plan_artifact(write_annotated_stream, tokens=tokens["annotated"], **order)
    streams = (ArtifactStore(folder / "compact").save(compact), ArtifactStore(folder / "annotated_s").save(annotated))
    return Made(tokens, *streams, tokenizer)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("made"), TEXTS)


def texts_of(split: str) -> Iterator[tuple[str, str]]:
    """Yield (source, text)."""
    for parts in TEXTS.values() if split == BOTH else [TEXTS[split]]:
        for part in parts:
            yield from ((SOURCES[i % len(SOURCES)], text) for i, text in enumerate(part))


def band_of(text: str) -> str:
    return BANDS[int(language_band(np.array([len(text.encode())]), np.array([len(text)]))[0])]


GROUPS: dict[str, Callable[[str, str], str]] = {
    "source": lambda source, text: source,
    "band": lambda source, text: band_of(text),
    "all": lambda source, text: "",
}


@pytest.mark.parametrize("split", ["annotated", "unannotated", BOTH])
def test_every_line_is_what_its_documents_are(made: Made, split: str) -> None:
    table, library = tokenization_table(made.tokens), open_tokenizer(made.tokenizer, EOS).tokenizer
    caps = {"annotated": CAP, "unannotated": SEQ_LENGTH}
    for group, key in GROUPS.items():
        lines = table[(table["split"] == split) & (table["group"] == group)]
        expected = {key(source, text) for source, text in texts_of(split)}
        assert set(lines["source"] + lines["band"]) == expected, "one of both names is empty"
        assert len(lines) == len(expected)
        for line in lines.to_dict("records"):
            texts = [text for source, text in texts_of(split) if key(source, text) == line["source"] + line["band"]]
            full = [len(library.encode(text, add_special_tokens=False).ids) for text in texts]
            assert line["documents"] == len(texts)
            assert line["full_tokens"] == sum(full)
            assert line["characters"] == sum(map(len, texts))
            assert line["utf8_bytes"] == sum(len(text.encode()) for text in texts)
            if split != BOTH:
                assert line["share_at_cap"] == sum(n > caps[split] - 1 for n in full) / len(texts)
            assert line["special_share"] == sum(EOS in text for text in texts) / len(texts)
            if not any(texts):
                assert math.isnan(line["chars_per_token"]) and math.isnan(line["tokens_per_byte"]), "nothing to divide"
                continue
            assert line["chars_per_token"] == line["characters"] / sum(full)
            assert line["tokens_per_byte"] == sum(full) / line["utf8_bytes"]


def test_the_table_adds_up_to_the_rows_and_survives_the_file(made: Made) -> None:
    table = tokenization_table(made.tokens)
    for group in ("source", "band", "all"):
        of_group = table[table["group"] == group]
        for split, tokens in made.tokens.items():
            assert of_group[of_group["split"] == split]["documents"].sum() == tokens.rows
    counted = made.tokens["annotated"].statistics[0]["by_source"]["web"]
    assert set(counted) <= set(table.columns), "every count has a column"
    assert table[list(counted)].dtypes.eq("int64").all(), "and every line has it"
    text = table.to_csv(index=False)
    options = {"dtype": {"source": str}, "keep_default_na": False, "na_values": {"chars_per_token": [""]}}
    read = pd.read_csv(io.StringIO(text), **options)  # type: ignore[call-overload]
    assert read["source"].tolist() == table["source"].tolist()


def test_bands_are_in_the_order_of_their_bytes(made: Made) -> None:
    table = tokenization_table(made.tokens)
    lines = table[(table["split"] == BOTH) & (table["group"] == "band")]
    assert lines["band"].tolist() == list(BANDS)


def test_the_summary_measures_what_the_subsampling_estimated(made: Made) -> None:
    summary = made.summary()
    library = open_tokenizer(made.tokenizer, EOS).tokenizer
    both = list(texts_of(BOTH))
    full = sum(len(library.encode(text, add_special_tokens=False).ids) for _, text in both)
    chars = summary["chars_per_token"]
    assert chars["estimated"] == 4.068
    assert chars["measured"] == sum(len(text) for _, text in both) / full
    assert list(chars["by_split"]) == ["annotated", "unannotated"]
    assert set(chars["by_source"]) == set(SOURCES)
    assert summary["annotated"]["estimated_tokens"] == 20.5
    assert summary["annotated"]["full_tokens"] + summary["unannotated"]["full_tokens"] == full


def test_padding_and_what_was_dropped_are_shares_of_the_streams(made: Made) -> None:
    summary = made.summary()
    windows = np.fromfile(made.annotated.path("annotated.bin"), "<u2").reshape(-1, SEQ_LENGTH + 1)
    lengths = np.load(made.annotated.path("token_lengths.npy"))
    padding = windows.size - int((lengths + 1).sum())
    assert summary["annotated_stream"]["padding_share"] == padding / windows.size
    packed = np.fromfile(made.compact.path("compact.bin"), "<u2").size
    given = summary["unannotated"]["tokens"] + summary["unannotated"]["eos"]
    assert given > packed, "a case with a remainder"
    assert summary["compact_stream"]["remainder_share"] == (given - packed) / given


def numbers(tree: dict[str, Any]) -> Iterator[Any]:
    for value in tree.values():
        yield from numbers(value) if isinstance(value, dict) else [value]


@pytest.mark.parametrize("texts", [TEXTS, {"annotated": [[], []], "unannotated": [[]]}], ids=["some", "no documents"])
def test_metrics_are_numbers_and_what_cannot_be_divided_is_not_among_them(
    tmp_path: Path, texts: dict[str, list[list[str]]]
) -> None:
    made = make(tmp_path, texts)
    found = list(numbers(made.summary()))
    assert found
    assert all(type(value) in (int, float) and math.isfinite(value) for value in found)
    table = tokenization_table(made.tokens)
    assert table["documents"].sum() == 3 * 2 * sum(tokens.rows for tokens in made.tokens.values())
    assert isinstance(tokenization_figure(table, length_histograms(made.tokens)), go.Figure)


def with_statistics(tokens: Shards, change: Callable[[dict[str, Any]], Any]) -> Shards:
    assert tokens.ledger is not None
    parts = []
    for part in tokens.ledger.parts:
        statistics = {**part.statistics, "by_source": dict(part.statistics["by_source"])}
        change(statistics)
        parts.append(dataclasses.replace(part, statistics=statistics))
    return dataclasses.replace(tokens, ledger=dataclasses.replace(tokens.ledger, parts=tuple(parts)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(documents=s["documents"] + 1), r"annotated documents have 6 rows, their ledger counts 8"),
        (lambda s: s["by_source"].pop("web"), r"have 3 at_cap_documents, those of each source add up to 2"),
        (lambda s: s.update(by_band={}), r"have no counts by band"),
        (lambda s: s.update(utf8_bytes=0), r"have 0 utf8_bytes, those of each source add up to"),
    ],
)
def test_rows_that_are_missing_in_the_counts_are_an_error(made: Made, change: Any, message: str) -> None:
    tokens = {**made.tokens, "annotated": with_statistics(made.tokens["annotated"], change)}
    for report in (lambda: tokenization_table(tokens), lambda: made.summary(tokens=tokens)):
        with pytest.raises(StreamError, match=rf"{message}.*encode the documents again"):
            report()


@pytest.mark.parametrize(
    ("stream", "changed", "message"),
    [
        ("compact_stream", "remainder_tokens", "compact stream is of .* tokens with EOS, its documents have"),
        ("compact_stream", "documents", "compact stream is of 13 documents, its documents have 12"),
        ("annotated_stream", "documents", "annotated stream is of 7 documents, its documents have 6"),
        ("annotated_stream", "tokens", "annotated stream is of .* tokens, its documents have"),
    ],
)
def test_streams_that_do_not_hold_these_documents_are_an_error(
    made: Made, stream: str, changed: str, message: str
) -> None:
    statistics = dict((made.compact if stream == "compact_stream" else made.annotated).statistics)
    statistics[changed] += 1
    with pytest.raises(StreamError, match=message):
        made.summary(**{stream: statistics})


def test_the_figure_shows_each_split_by_source_by_band_and_by_length(made: Made) -> None:
    table, histograms = tokenization_table(made.tokens), length_histograms(made.tokens)
    figure = tokenization_figure(table, histograms)
    assert [bar.name for bar in figure.data] == ["annotated"] * 3 + ["unannotated"] * 3
    sources, bands, lengths = figure.data[:3]
    web = table[(table["split"] == "annotated") & (table["source"] == "web")]["tokens_per_byte"].item()
    assert dict(zip(sources.x, sources.y, strict=True))["web"] == web
    assert set(sources.x) == {"web", "(empty name)", "NA"}
    assert list(bands.x) == list(BANDS)
    assert math.isnan(bands.y[BANDS.index("two_byte_scripts")]), "no such document is annotated"
    full = [
        len(open_tokenizer(made.tokenizer, EOS).tokenizer.encode(text, add_special_tokens=False).ids)
        for _, text in texts_of("annotated")
    ]
    assert sum(lengths.y) == sum(n > 0 for n in full) == sum(histograms["annotated"])
    for name, count in zip(lengths.x, lengths.y, strict=True):
        least, _, most = name.replace(",", "").partition("-")
        assert count == sum(int(least) <= n <= int(most or least) for n in full)


@pytest.mark.parametrize(
    ("text", "band"),
    [
        ("", "nearly_ascii"),
        ("plain text, x = 1", "nearly_ascii"),
        ("a" * 199 + "é", "nearly_ascii"),
        ("a" * 99 + "é", "mostly_latin"),
        ("Żółty ser, mleko, chleb", "mostly_latin"),
        ("é" * 49 + "a" * 51, "mostly_latin"),
        ("é" * 50 + "a" * 50, "two_byte_scripts"),
        ("Привет, мир", "two_byte_scripts"),
        ("日" * 59 + "é" + "a" * 40, "two_byte_scripts"),
        ("日" * 60 + "a" * 40, "three_byte_scripts"),
        ("日本語", "three_byte_scripts"),
        ("😀", "three_byte_scripts"),
    ],
)
def test_language_bands_are_bytes_a_character(text: str, band: str) -> None:
    assert band_of(text) == band


def test_a_split_of_which_more_than_a_tenth_is_cut_is_warned_of() -> None:
    """Of 100 tokens 11 are cut in one split, and 10 in the other."""
    lines = [
        {"split": split, "group": "all", "full_tokens": 100, "cut_tokens": cut}
        for split, cut in (("annotated", 11), ("unannotated", 10), (BOTH, 21))
    ]
    (told,) = cut_lines(pd.DataFrame(lines))
    assert told.startswith("11% of the tokens of annotated documents are beyond seq_length and cut")
    lines = [{"split": "unannotated", "group": "all", "full_tokens": 100, "cut_tokens": 57}]
    (told,) = cut_lines(pd.DataFrame(lines))
    assert told.endswith("tokenization.long_documents: split keeps them all")
    nothing = [{"split": "annotated", "group": "all", "full_tokens": 0, "cut_tokens": 0}]
    assert cut_lines(pd.DataFrame(nothing)) == []
