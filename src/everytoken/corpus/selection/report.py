"""What became of the rows of each source: a table from the statistics of parts and of the selection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everytoken.corpus.errors import SelectionError
from everytoken.corpus.personal_data import PERSONAL_DATA_KINDS
from everytoken.corpus.selection.decisions import RowsChosen
from everytoken.corpus.selection.mixture import MixtureRow
from everytoken.corpus.statistics import DocumentCounts, RowCounts, add_statistics


def read_counts(statistics: Iterable[DocumentCounts]) -> dict[str, RowCounts]:
    """Return rows_in, kept and set_aside by reason of each source, sorted by name.

    Args:
        statistics: of the parts of `everytoken.corpus.ingestion.ingest.read_part`, each of one source.
    """
    counts: dict[str, RowCounts] = {}
    for part in statistics:
        (source,) = part["by_source"]
        entry = counts.setdefault(source, {"rows_in": 0, "kept": 0, "set_aside": {}})
        entry["rows_in"] += part["rows_in"]
        entry["kept"] += part["kept"]
        entry["set_aside"] = dict(Counter(entry["set_aside"]) + Counter(part["set_aside"]))
    return dict(sorted(counts.items()))


def unread_by_source(statistics: Iterable[DocumentCounts]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the keys of each source of chats that are not in its documents, by why and name; others have none."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for part in statistics:
        if "unread_keys" in part:
            (source,) = part["by_source"]
            counts[source] = add_statistics([counts.get(source, {}), part["unread_keys"]])
    return dict(sorted(counts.items()))


def personal_data_by_source(statistics: Iterable[DocumentCounts]) -> dict[str, dict[str, int]]:
    """Return documents with personal data, and how much of each kind, of each source where it is looked for."""
    counts: dict[str, dict[str, int]] = {}
    for part in statistics:
        if "personal_data" in part:
            (source,) = part["by_source"]
            counts[source] = dict(add_statistics([counts.get(source, {}), part["personal_data"]]))
    return dict(sorted(counts.items()))


def personal_data_line(counts: Mapping[str, int]) -> str:
    """Return how many documents of a source have personal data, and how much of each kind, for people."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if kind != "documents")
    return f"personal data in {counts['documents']:,} documents: {kinds}"


def selection_table(
    read: Mapping[str, RowCounts],
    selected: Mapping[str, RowsChosen],
    mixture: Sequence[MixtureRow] | None,
    unread_keys: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None,
    personal_data: Mapping[str, Mapping[str, int]] | None = None,
) -> list[dict[str, object]]:
    """Return what became of the rows of each source, an entry a source and one of all: a flat table.

    ``rows_read = kept + (set aside by each reason)`` in every entry; a reason is a column when any row has it. With a
    mixture the columns of `mixture_table` follow, what was intended and what came out. With ``unread_keys``, see
    `unread_by_source`, the columns ``keys_passed_over``, ``keys_unknown`` and ``keys_ignored`` count values of keys.
    With ``personal_data``, see `personal_data_by_source`, ``personal_documents`` counts documents that have some, and
    ``personal_email``, ``personal_iban``, ``personal_ip`` and ``personal_phone`` how much.
    """
    keys = {source: _keys(by_reason) for source, by_reason in (unread_keys or {}).items()}
    if keys:
        keys["all sources"] = add_statistics(keys.values())
    personal = {source: _personal(counts) for source, counts in (personal_data or {}).items()}
    if personal:
        personal["all sources"] = add_statistics(personal.values())
    mixed = {row["source"]: {name: dict(row)[name] for name in _MIXTURE} for row in mixture or ()}
    entries: dict[str, dict[str, Any]] = {}
    for source, counts in read.items():
        chosen = selected.get(source, _NONE)
        aside = Counter(counts["set_aside"])
        aside.update(chosen["set_aside"])
        amounts = {name: chosen[name] for name in ("kept", "characters", "utf8_bytes")}
        entries[source] = {"rows_read": counts["rows_in"], **amounts, "set_aside": aside}
    total: dict[str, Any] = {name: sum(entry[name] for entry in entries.values()) for name in _AMOUNTS}
    total["set_aside"] = sum((entry["set_aside"] for entry in entries.values()), Counter())
    reasons = sorted(total["set_aside"])
    return [
        {
            "source": source,
            "rows_read": entry["rows_read"],
            "kept": entry["kept"],
            "keep_rate": entry["kept"] / entry["rows_read"] if entry["rows_read"] else 0.0,
            "characters": entry["characters"],
            "utf8_bytes": entry["utf8_bytes"],
            **{reason: entry["set_aside"][reason] for reason in reasons},
            **({**_keys({}), **keys.get(source, {})} if keys else {}),
            **({**_personal({}), **personal.get(source, {})} if personal else {}),
            **mixed.get(source, {}),
        }
        for source, entry in [*entries.items(), ("all sources", total)]
    ]


def unread_line(by_reason: Mapping[str, Mapping[str, int]]) -> str:
    """Return which keys were not read and how often, the most frequent first, for people."""
    parts = []
    for why, counts in sorted(by_reason.items()):
        frequent = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        shown = ", ".join(f"{name} {count:,}" for name, count in frequent[:_SHOWN])
        more = f" and {len(frequent) - _SHOWN:,} more" if len(frequent) > _SHOWN else ""
        parts.append(f"{why.replace('_', ' ')} {shown}{more}")
    return "; ".join(parts)


def _keys(by_reason: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {f"keys_{why}": sum(by_reason.get(why, {}).values()) for why in ("passed_over", "unknown", "ignored")}


def _personal(counts: Mapping[str, int]) -> dict[str, int]:
    return {f"personal_{name}": counts.get(name, 0) for name in ("documents", *PERSONAL_DATA_KINDS)}


def require_documents(read: Mapping[str, RowCounts], selected: Mapping[str, RowsChosen]) -> None:
    """Stop when no document is left: an empty corpus is a mistake in the parameters or the files.

    Raises:
        SelectionError: none is left, with the rows that were read and why they went.
    """
    if any(counts["kept"] for counts in selected.values()):
        return
    reasons: Counter[str] = Counter()
    for counts in (*read.values(), *selected.values()):
        reasons.update(counts["set_aside"])
    rows = sum(counts["rows_in"] for counts in read.values())
    raise SelectionError(
        f"no document is left of {rows:,} rows of the sources {sorted(read)}; set aside: "
        f"{dict(sorted(reasons.items()))}. Check the files and the rules: min_chars, quality, max_text_bytes, mixture."
    )


_NONE = RowsChosen(rows_in=0, kept=0, set_aside={}, characters=0, utf8_bytes=0)
_SHOWN = 10
_AMOUNTS = ("rows_read", "kept", "characters", "utf8_bytes")
_MIXTURE = ("uses", "budget_tokens", "tokens", "weight", "realised_weight", "relative_difference")
