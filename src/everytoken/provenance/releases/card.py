"""The dataset card of a release: ``README.md`` with the YAML head that Hugging Face reads.

It is a function of what the release holds: no date, no host, no path of a machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import yaml

from everytoken.address import SHARD_INDEX
from everytoken.corpus.scoring import SCORES_BY_ADDRESS, SCORES_BY_ID, SCORES_BY_USE
from everytoken.provenance.releases.manifest import MOST_ID_CHARACTERS, manifest_schema
from everytoken.provenance.releases.parameters import Licence
from everytoken.provenance.releases.published import not_public
from everytoken.provenance.releases.release import SPLITS
from everytoken.provenance.releases.released_texts import TEXT_RESCUE
from everytoken.redaction import is_web_link
from everytoken.reflections.published import QUOTED_CHARACTERS, ReleasedReflectionCounts
from everytoken.shards import type_name

_LINK = re.compile(r"\[[^\]]*\](\(\s*|:\s*)(?P<url>[^)\s]*)")

# identifiers of the hub where they are not the SPDX identifier in small letters
_HUB_LICENCES = {"ODC-By-1.0": "odc-by", "GFDL-1.3-or-later": "gfdl"}

_IN_MANIFEST = {
    "id": f"of the upstream; null where it has none, and where it is withheld (it would show {MOST_ID_CHARACTERS} or "
    "more characters of the text)",
    "id_type": "JSON type of the id, or `withheld`",
}
_MEANING = {
    "id": "of the upstream",
    "id_type": "JSON type of the id",
    "source": "name of the source",
    SHARD_INDEX: "number of the file among the sorted files of the source",
    "row": "number of the row in that file, before any filter",
    "text_hash": "first 8 bytes of the SHA-256 of the UTF-8 text, as a big-endian number",
    "safety_score": "class 0 (harmless) to 5",
    "safety_probs": "probability of each class; null where nothing says",
    "second_scores": "further scores by name, see `parameters.annotation.second_scores` of `recipe.json`",
    "is_bad": "whether the score is at or above the threshold",
    "has_annotation": "whether the document is in the annotated split",
    "token_length": "tokens of the content in its stream, without EOS; null in held_out, which is in no stream",
    "is_excluded": "taken down: the row keeps its place, its text is not used",
    "part": "number of the part that uses the document",
    "global_row": "number of the document in its split: parts one after the other",
    "text": "of the document",
}


def dataset_card(
    *,
    pretty_name: str,
    languages: Sequence[str],
    homepage: str | None,
    licences: Mapping[str, Licence],
    recipe: Mapping[str, Any],
    upstream: Mapping[str, Any],
    by_split: Mapping[str, Mapping[str, Any]],
    rescued: Mapping[str, Mapping[str, int]],
    classifications: Mapping[str, int],
    streams: Mapping[str, Mapping[str, Any]],
    reflections: ReleasedReflectionCounts | None = None,
) -> str:
    """Return the text of ``README.md``.

    Args:
        languages: of the documents, as the hub knows them.
        by_split: counts of each split, and of its sources under ``by_source``, see
            `everytoken.provenance.releases.manifest`.
        rescued: by split and source the documents whose text is in ``text_rescue``.
        classifications: rows of each table, and ``withheld``.
    """
    sections = [
        yaml_head(
            pretty_name,
            languages,
            licences,
            sum(counts["rows"] for counts in by_split.values()),
            _configs(by_split, rescued, classifications, reflections),
        ),
        _what_it_is(pretty_name, recipe["versions"]["everytoken"], homepage, by_split, streams, upstream),
        _counts(by_split, rescued),
        scores_section(recipe),
        _licences(licences, rescued),
        _pins(upstream),
        _left_out(by_split, classifications),
        *([] if reflections is None else [_reflections(reflections)]),
        _schemas(rescued, classifications, recipe["parameters"]["annotation"].get("second_scores", {})),
        _streams(streams, recipe["parameters"]["tokenization"]),
        _HOW_TO.format(
            eos=recipe["tokenizer"]["eos_token"],
            vocab_size=recipe["tokenizer"]["vocab_size"],
            sha256=recipe["tokenizer"]["sha256"],
            everytoken=recipe["versions"]["everytoken"],
            python=recipe["versions"]["python"],
            tokenizers=recipe["versions"]["tokenizers"],
        ),
    ]
    return "\n\n".join(sections) + "\n"


def yaml_head(
    pretty_name: str,
    languages: Sequence[str],
    licences: Mapping[str, Licence],
    documents: int,
    configs: Iterable[dict[str, Any]],
) -> str:
    """Return the YAML head; its keys are those of https://huggingface.co/docs/hub/datasets-cards."""
    names = sorted({_hub_licence(licence.spdx) for licence in licences.values()})
    head: dict[str, Any] = {"language": list(languages)} if languages else {}
    head["license"] = names[0] if len(names) == 1 else names
    others = {licence.spdx: licence.url for licence in licences.values() if _hub_licence(licence.spdx) == "other"}
    if len(others) == 1:  # the hub has a place for one
        ((spdx, url),) = others.items()
        head |= {"license_name": spdx.removeprefix("LicenseRef-").lower(), "license_link": url}
    head |= {
        "pretty_name": pretty_name,
        "size_categories": [size_category(documents)],
        "task_categories": ["text-generation"],
        "tags": ["everytoken", "pretraining", "token-provenance"],
        "configs": list(configs),
    }
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=10**6)}---"


def size_category(documents: int) -> str:
    """Return the hub's bucket of a number of documents: ``n<1K``, ``1K<n<10K``, ... ``n>1T``."""
    names = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    place = sum(documents >= 10**power for power in range(3, 3 + len(names)))
    if place == 0:
        return f"n<{names[0]}"
    return f"{names[place - 1]}<n<{names[place]}" if place < len(names) else f"n>{names[-1]}"


def _hub_licence(spdx: str) -> str:
    return _HUB_LICENCES.get(spdx, "other" if spdx.startswith("LicenseRef-") else spdx.lower())


def _configs(
    by_split: Mapping[str, Mapping[str, Any]],
    rescued: Mapping[str, Mapping[str, int]],
    classifications: Mapping[str, int],
    reflections: ReleasedReflectionCounts | None,
) -> Iterator[dict[str, Any]]:
    """Yield what Hugging Face ``datasets`` loads under one name; it refuses what has no rows."""
    splits = [split for split in SPLITS if by_split[split]["rows"]]
    yield {"config_name": "corpus-manifest", "default": True, "data_files": _split_files("corpus-manifest", splits)}
    for table in _TABLES:
        if classifications[table]:
            name = "classifications" if table == "classifications" else f"classifications_{table}"
            yield {"config_name": name, "data_files": f"classifications/{table}_*.parquet"}
    if texts := [split for split in SPLITS if rescued[split]]:
        yield {"config_name": "text_rescue", "data_files": _split_files("text_rescue", texts)}
    if reflections and reflections["released"]:
        yield {"config_name": "reflections", "data_files": "reflections/*.parquet"}


def _split_files(folder: str, splits: Iterable[str]) -> list[dict[str, str]]:
    return [{"split": split, "path": f"{folder}/{split}/*.parquet"} for split in splits]


def _what_it_is(
    pretty_name: str,
    version: str,
    homepage: str | None,
    by_split: Mapping[str, Mapping[str, Any]],
    streams: Mapping[str, Mapping[str, Any]],
    upstream: Mapping[str, Any],
) -> str:
    documents = sum(counts["rows"] for counts in by_split.values())
    project = f"[everytoken]({_target(homepage)})" if homepage else "everytoken"
    return (
        f"# {_text(pretty_name)}\n\n"
        f"Everything that is needed to rebuild a corpus of {documents:,} documents and its token streams "
        f"({', '.join(streams)}) exactly, without its text: which documents of {_datasets(upstream['sources'])}, in "
        "which order, what was decided about each, and digests to check every byte that is rebuilt. The text is read "
        "from the upstreams."
        f"\n\nIt was made by, and is rebuilt with, {project} {version}, a [Kedro](https://kedro.org) project."
    )


def _datasets(sources: Mapping[str, Mapping[str, Any]]) -> str:
    private = not_public(sources)
    if not private:
        return "public datasets"
    named = f"{len(private):,} sources without a public address ({', '.join(private)})"
    return named if len(private) == len(sources) else f"public datasets and of {named}"


def scores_section(recipe: Mapping[str, Any]) -> str:
    """Say what made ``safety_score``."""
    parameters = recipe["parameters"]
    scorer = parameters["annotation"]["scorer"]
    second = [
        f"`{name}` ({one['kind']})" for name, one in sorted(parameters["annotation"].get("second_scores", {}).items())
    ]
    further = f"\n\nEvery document has further scores: {', '.join(second)}." if second else ""
    if scorer["kind"] == "none":
        return (
            "## Scores\n\nNothing was scored: `safety_score` is 0 and `safety_probs` null in every row, and `is_bad` "
            f"is false. They say nothing about the documents.{further}"
        )
    return (
        f"## Scores\n\n`safety_score` and `safety_probs` are those of {_scorer(scorer, recipe['datasets'])} "
        f"`is_bad` is a score of {parameters['subsampling']['annotation_threshold']} and more. "
        f"`recipe.json` has all parameters of the scorer under `parameters.annotation`.{further}"
    )


def _scorer(scorer: Mapping[str, Any], datasets: Mapping[str, Any]) -> str:
    match scorer["kind"]:
        case "embedded":
            return (
                f"the scorer `embedded` of everytoken: alt-profanity-check {scorer['version']}, a linear model over "
                f"words, on the first {scorer['max_chars']:,} characters. It knows words, not meaning: its classes are "
                "a stand-in, not a judgement of safety."
            )
        case "published":
            return f"published tables (scorer `published`): {_pinned(scorer['upstream'])}."
        case "transformers":
            model = scorer["model"]
            name = f"{model['repository']} at `{model['revision']}`" if model["kind"] == "hub" else "from a folder"
            return (
                f"a classifier (scorer `transformers`): {name}, root digest of its files "
                f"`{datasets['scorer']['root_digest']}`, in {scorer['dtype']}, on the first {scorer['max_tokens']:,} "
                "tokens."
            )
        case kind:
            raise AssertionError(f"a scorer of kind {kind!r}")


def _counts(by_split: Mapping[str, Mapping[str, Any]], rescued: Mapping[str, Mapping[str, int]]) -> str:
    lines = []
    for split in SPLITS:
        sources = by_split[split]["by_source"].items()
        for source, counts in [*sources, ("*all*", by_split[split])]:
            texts = rescued[split].get(source, 0) if source != "*all*" else sum(rescued[split].values())
            numbers = [counts[name] for name in ("rows", "tokens", "without_id", "withheld", "excluded")]
            cells = [f"{number:,}" for number in [*numbers, texts]]
            if split == "held_out":
                cells[1] = ""
            lines.append([split, source, *cells])
    head = ["split", "source", "documents", "tokens", "without id", "id withheld", "excluded", "text given"]
    return (
        "## Documents\n\n"
        + _table(head, lines)
        + "\n\nTokens are those of the content in the stream, without EOS; held-out documents are in none."
    )


def _licences(licences: Mapping[str, Licence], rescued: Mapping[str, Mapping[str, int]]) -> str:
    lines = []
    for source in sorted(licences):
        licence, texts = licences[source], sum(of_split.get(source, 0) for of_split in rescued.values())
        label = _plain(licence.name).replace("[", "\\[").replace("]", "\\]")
        link = f"[{label}]({_target(licence.url)})"
        lines.append([source, link, _text(licence.attribution), f"{texts:,}"])
    return (
        "## Licences and attribution\n\n"
        "What is said of the documents of a source is published under the licence of that source, and its notice must "
        "go with everything that is made from it.\n\n"
        + _table(["source", "licence", "attribution", "texts in this release"], lines)
    )


def _pins(upstream: Mapping[str, Any]) -> str:
    lines = []
    for source, described in sorted(upstream["sources"].items()):
        pin = described["upstream"]
        lines.append([source, pin["kind"], _pinned(pin), f"{len(described['files']):,}"])
    return (
        "## Upstreams\n\n"
        + _table(["source", "kind", "pinned", "files"], lines)
        + "\n\n`upstream.json` has the path and digest of each file, and the order in which the shards were read."
        + "".join(_without_address(upstream["sources"]))
    )


def _without_address(sources: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say of each source without a public address where it is from, and how it is replayed."""
    for name in not_public(sources):
        homepage = sources[name].get("homepage")
        where = f"see [its page]({_target(homepage)})" if homepage else "it is not public"
        yield (
            f"\n\n`{name}` has no public address: {where}. Who has its files names their folder to rebuild it: "
            f"`--params ingestion.sources.{name}.upstream.root=FOLDER`."
        )


def _text(text: str) -> str:
    """Return text of the parameters as Markdown that has no tag, and no link but to the web."""
    return _LINK.sub(lambda found: found.group() if is_web_link(found["url"]) else f"\\{found.group()}", _plain(text))


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _target(url: str) -> str:
    """Return a URL as the target of a link: nothing in it ends the link."""
    return url.replace("(", "%28").replace(")", "%29")


def _pinned(pin: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} `{value}`" for key, value in pin.items() if value is not None and key != "kind")


def _left_out(by_split: Mapping[str, Mapping[str, Any]], classifications: Mapping[str, int]) -> str:
    withheld = sum(counts["withheld"] for counts in by_split.values())
    excluded = sum(counts["excluded"] for counts in by_split.values())
    return (
        "## Withheld and excluded\n\n"
        f"Withheld ids in the manifest: {withheld:,}; {MOST_ID_CHARACTERS} or more of their characters stand in the "
        "text of a document, or their document was taken down. Rows left out of the classifications for the same "
        f"reason: {classifications['withheld']:,}. The addresses in the manifest say which documents these are.\n\n"
        f"Excluded documents: {excluded:,}. Their rows keep their places, so that all others keep theirs."
    )


def _reflections(counts: ReleasedReflectionCounts) -> str:
    return (
        "## Reflections\n\n"
        f"`reflections/` has {counts['released']:,} documents as they were trained on, each with what a generator "
        "wrote about it and the token before which that was inserted. These texts are generated. "
        f"Reflections on texts that may not be given: {counts['no_text']:,}. Withheld reflections, which repeat "
        f"{QUOTED_CHARACTERS} or more characters of their document: {counts['quotes']:,}."
    )


# the tables of scores, and what their rows are
_TABLES: dict[str, tuple[str, pa.Schema]] = {
    "classifications": ("one row an id", SCORES_BY_ID),
    "by_address": ("rows whose id does not tell their score", SCORES_BY_ADDRESS),
    "by_use": ("the same of documents that are used twice", SCORES_BY_USE),
}


def _schemas(
    rescued: Mapping[str, Mapping[str, int]], classifications: Mapping[str, int], second_scores: Iterable[str]
) -> str:
    manifest = manifest_schema(second_scores)
    shown = [("corpus-manifest/{split}/part_*.parquet", manifest, {**_MEANING, **_IN_MANIFEST})]
    if any(rescued.values()):
        shown.append(("text_rescue/{split}/part_*.parquet", TEXT_RESCUE, _MEANING))
    for table, (what, schema) in _TABLES.items():
        if classifications[table]:
            shown.append((f"classifications/{table}_*.parquet, {what}", schema, _MEANING))
    return "## Columns\n\n" + "\n\n".join(
        f"### {title}\n\n{_columns(schema, meaning)}" for title, schema, meaning in shown
    )


def _columns(schema: pa.Schema, meaning: Mapping[str, str]) -> str:
    lines = [[f"`{field.name}`", type_name(field.type), meaning[field.name]] for field in schema]
    return _table(["column", "type", "meaning"], lines)


def _streams(streams: Mapping[str, Mapping[str, Any]], tokenization: Mapping[str, Any]) -> str:
    length = tokenization["seq_length"]
    annotated = length - tokenization["reflection_budget"]
    is_split = tokenization.get("long_documents") == "split"
    compact = "each whole, with its EOS" if is_split else f"each cut at {length:,} tokens with its EOS"
    lines = []
    for name, stream in streams.items():
        statistics = stream["statistics"]
        windows = f"{statistics['windows']:,}" if "windows" in statistics else f"{statistics['shards']:,} shards"
        counts = [windows, f"{statistics['documents']:,}", f"{statistics['tokens']:,}"]
        lines.append([name, *counts, f"`{stream['root_digest']}`"])
    return (
        "## Streams\n\n"
        + _table(["stream", "windows", "documents", "tokens", "root digest"], lines)
        + "\n\n`verification/streams.json` has size and SHA-256 of every file; beside it are the indexes, the lengths "
        "of the documents, and a CRC-32 of each window.\n\n"
        f"seq_length is {length:,}: a window has {length + 1:,} tokens, the last of which is only predicted. compact: "
        f"documents one after the other, {compact}, windows without padding. "
        f"annotated: one document a window, cut at {annotated:,} tokens with its EOS, the rest is padding."
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
    )


_HOW_TO = """## Load it

```python
from datasets import load_dataset

manifest = load_dataset("path/to/this/folder", "corpus-manifest", split="annotated")
```

## Rebuild the corpus and its streams

In the folder of a project of everytoken {everytoken} (this release was made with Python {python} and tokenizers \
{tokenizers}):

```
kedro run --env replay --params replay.release=path/to/this/folder
```

reads the documents from the upstreams, checks each against its hash, encodes them with `tokenizer/tokenizer.json`
({vocab_size:,} tokens, EOS `{eos}`, SHA-256 `{sha256}`), and compares every stream with this release. The documents are
then in `data/replay/04_feature`, the streams in `data/replay/05_model_input`.

## Verify

```
sha256sum -c SHA256SUMS                                   # the files of this folder
everytoken verify path/to/this/folder data/replay         # and the streams that were rebuilt from it
```"""
