"""What labels say about scores: precision of each predicted class, and of "at or above the threshold".

Labels of class k are a simple random sample of its N_k documents, so the sample is stratified by predicted class. The
correction for finite populations is left out: where a large share of a class is labelled, intervals are too wide.
Items that are not labelled, or where nobody can tell, are counted and in no proportion: the figures hold for documents
that can be told, and for all only if the others are like them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everytoken import __version__
from everytoken.arrays import Integers
from everytoken.corpus.documents import CLASS_NAMES, N_CLASSES
from everytoken.corpus.errors import BadRow, ScoringError
from everytoken.corpus.reading import parse_record
from everytoken.corpus.scoring.audit import AUDIT_FILE, AUDIT_FORMAT, KEY_FILE, SAMPLE_FILE
from everytoken.shards import file_sha256, write_text

REPORT_FILE = "report.json"
CONFIDENCE = 0.95

Labels = Mapping[int, int | None]


class Stratum(NamedTuple):
    """One class of a proportion: its documents, the labelled ones of them, and how many of these have the property."""

    population: int
    labelled: int
    having: int


def proportion(stratum: Stratum) -> dict[str, float | None]:
    """Return the proportion of a class and Wilson's score interval (1927; recommended by Brown, Cai, DasGupta 2001).

    Shares from 0 to 1: ``estimate``, ``low``, ``high``; all None without a label.
    """
    if stratum.labelled == 0:
        return {"estimate": None, "low": None, "high": None}
    from scipy.stats import binomtest  # imported here: scipy.stats is slow to load

    interval = binomtest(stratum.having, stratum.labelled).proportion_ci(CONFIDENCE, method="wilson")
    return {
        "estimate": stratum.having / stratum.labelled,
        "low": float(interval.low),
        "high": float(interval.high),
    }


def weighted_proportion(strata: Sequence[Stratum]) -> dict[str, float | None]:
    """Return the proportion among the documents of several classes, its standard error and an interval.

    With W_k = N_k / sum N, p_k = x_k / n_k (Cochran, Sampling Techniques, 3rd ed. 1977, section 5.10)::

        p = sum W_k p_k        variance = sum W_k^2 p_k (1 - p_k) / (n_k - 1)

    The interval is not p +- 1.96 standard errors, which is empty where every p_k is 0 or 1, as for rare labels. It
    combines Wilson's intervals (l_k, u_k) of the classes (Zou, Huang, Zhang 2009, Computational Statistics & Data
    Analysis 53, 1080-1085), and for one class is Wilson's::

        low = p - sqrt(sum W_k^2 (p_k - l_k)^2)        high = p + sqrt(sum W_k^2 (u_k - p_k)^2)

    All are None where a class that has documents has no label, or no document is there; the standard error also where
    a class has a single label.
    """
    strata = [stratum for stratum in strata if stratum.population]
    if not strata or any(stratum.labelled == 0 for stratum in strata):
        return {"estimate": None, "standard_error": None, "low": None, "high": None}
    n = np.array([stratum.labelled for stratum in strata], np.float64)
    p = np.array([stratum.having for stratum in strata]) / n
    population = np.array([stratum.population for stratum in strata], np.float64)
    weights = population / population.sum()
    bounds = [proportion(stratum) for stratum in strata]
    low, high = (np.array([bound[name] for bound in bounds], np.float64) for name in ("low", "high"))
    estimate = float(weights @ p)
    error = float(np.sqrt(np.sum(weights**2 * p * (1 - p) / (n - 1)))) if (n > 1).all() else None
    return {
        "estimate": estimate,
        "standard_error": error,
        "low": max(0.0, estimate - float(np.sqrt(np.sum((weights * (p - low)) ** 2)))),
        "high": min(1.0, estimate + float(np.sqrt(np.sum((weights * (high - p)) ** 2)))),
    }


def audit_report(population: Sequence[int], predicted: Mapping[int, int], labels: Labels) -> dict[str, object]:
    """Return the figures of an audit.

    Args:
        population: documents of each predicted class, 6 numbers.
        labels: label of the labelled items; None where the labeller cannot tell.

    Returns:
        The report as JSON: counts of items; ``by_class``, ``by_threshold`` (1 to 5) with proportions as `proportion`
        and `weighted_proportion` give them; ``confusion``, 6 rows of predicted class by 6 labels.
    """
    confusion = np.zeros((N_CLASSES, N_CLASSES), np.int64)  # predicted, label
    drawn, cannot_tell = np.zeros(N_CLASSES, np.int64), np.zeros(N_CLASSES, np.int64)
    for item, k in predicted.items():
        drawn[k] += 1
        if item in labels:
            label = labels[item]
            if label is None:
                cannot_tell[k] += 1
            else:
                confusion[k, label] += 1
    return {
        "confidence": CONFIDENCE,
        "items": len(predicted),
        "labelled": int(confusion.sum()),
        "cannot_tell": int(cannot_tell.sum()),
        "not_labelled": len(predicted) - len(labels),
        "by_class": [
            _of_class(k, population[k], int(drawn[k]), int(cannot_tell[k]), confusion[k]) for k in range(N_CLASSES)
        ],
        "by_threshold": [_of_threshold(threshold, population, confusion) for threshold in range(1, N_CLASSES)],
        "confusion": confusion.tolist(),
    }


def _of_class(k: int, population: int, drawn: int, cannot_tell: int, row: Integers) -> dict[str, object]:
    labelled = int(row.sum())

    def share(having: Integers) -> dict[str, float | None]:
        return proportion(Stratum(population, labelled, int(having.sum())))

    return {
        "class": k,
        "name": CLASS_NAMES[k],
        "population": population,
        "drawn": drawn,
        "labelled": labelled,
        "cannot_tell": cannot_tell,
        "not_labelled": drawn - labelled - cannot_tell,
        "precision": share(row[k]),  # the label is the predicted class
        "labelled_at_or_above": {str(threshold): share(row[threshold:]) for threshold in range(1, N_CLASSES)},
        "mean_label": float(row @ np.arange(N_CLASSES)) / labelled if labelled else None,
    }


def _of_threshold(threshold: int, population: Sequence[int], confusion: Integers) -> dict[str, object]:
    strata = [
        Stratum(population[k], int(confusion[k].sum()), int(confusion[k, threshold:].sum())) for k in range(N_CLASSES)
    ]
    return {
        "threshold": threshold,
        "predicted_at_or_above": sum(population[threshold:]),
        "precision": weighted_proportion(strata[threshold:]),
        "labelled_at_or_above_of_those_below": weighted_proportion(strata[:threshold]),
    }


def read_labels(path: Path, items: int, sample: str) -> dict[int, int | None]:
    """Return the labels of a file of lines ``{"item": 3, "label": 2}``, with null where the labeller cannot tell.

    Other keys are free, but for ``sample``, which must be the digest of the sample where it is given.

    Args:
        items: of the sample; they are numbered from 1.

    Raises:
        ScoringError: naming file and line: no such item, no such label, an item twice, or labels of another sample;
            or naming the file, which has no label.
    """
    labels: dict[int, int | None] = {}
    lines: dict[int, int] = {}
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        item, label = _label(f"{path}, line {number}", line, items, sample)
        if item in labels:
            raise ScoringError(
                f"{path}, line {number}: item {item} has a label in line {lines[item]} already; keep one of the two."
            )
        labels[item], lines[item] = label, number
    if not labels:
        raise ScoringError(f"{path} has no label. Label on the page, and give the labels.jsonl that it saves.")
    return labels


def _label(where: str, line: bytes, items: int, sample: str) -> tuple[int, int | None]:
    expected = 'expected {"item": 3, "label": 2} with a label of 0 to 5, or null for "cannot tell"'
    try:
        row = parse_record(line)
    except BadRow as error:
        raise ScoringError(f"{where}: no JSON to go by ({error.detail}); {expected}.") from None
    if not isinstance(row, dict) or not {"item", "label"} <= row.keys():
        raise ScoringError(f"{where}: found {line[:200].decode(errors='replace')}; {expected}.")
    item, label = row["item"], row["label"]
    if "sample" in row and row["sample"] != sample:
        raise ScoringError(
            f"{where}: this label is of the sample {str(row['sample'])[:16]}, the folder holds {sample[:16]}. "
            "Give the folder of its audit with --out."
        )
    if type(item) is not int or not 1 <= item <= items:  # true is an int, too
        raise ScoringError(f"{where}: there is no item {json.dumps(item)[:80]}; the sample has items 1 to {items}.")
    if label is not None and (type(label) is not int or not 0 <= label < N_CLASSES):
        raise ScoringError(f"{where}: the label of item {item} is {json.dumps(label)[:80]}; {expected}.")
    return item, label


def report_labels(folder: Path, labels_file: Path) -> dict[str, object]:
    """Compare labels with the scores of the audit in ``folder``; write ``report.json`` there and return it.

    Raises:
        ScoringError: the folder holds no audit, or its files are not those that were written; or as `read_labels`.
    """
    audit = _read_audit(folder)
    key = [json.loads(line) for line in (folder / KEY_FILE).read_text(encoding="utf-8").split("\n") if line]
    predicted = {row["item"]: row["safety_score"] for row in key}
    sample = audit["sha256"][SAMPLE_FILE]
    labels = read_labels(labels_file, len(predicted), sample)
    report = {
        "version": __version__,
        "sample": sample,
        "labels_sha256": file_sha256(labels_file),
        "scored_documents": audit["scored_documents"],
        "without_score": audit["without_score"],
        **audit_report(audit["population"], predicted, labels),
    }
    write_text(folder / REPORT_FILE, json.dumps(report, indent=1, allow_nan=False) + "\n")
    return report


def _read_audit(folder: Path) -> dict[str, Any]:
    again = "Draw it again: everytoken audit-scores without --labels, with the same --out, --seed and --per-class."
    try:
        audit: dict[str, Any] = json.loads((folder / AUDIT_FILE).read_text(encoding="utf-8"))
        if audit["format"] != AUDIT_FORMAT:
            raise ScoringError(
                f"{folder / AUDIT_FILE} has format {audit['format']!r}, this version reads {AUDIT_FORMAT!r}."
            )
        recorded = audit["sha256"][KEY_FILE]
        found = file_sha256(folder / KEY_FILE)
    except FileNotFoundError as error:
        raise ScoringError(f"{folder} holds no audit: {error.filename} is not there. {again}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ScoringError(f"{folder / AUDIT_FILE} is no audit ({type(error).__name__}: {error}). {again}") from error
    if found != recorded:
        raise ScoringError(
            f"{folder / KEY_FILE} is not the file that was written: SHA-256 {found}, expected {recorded}. {again}"
        )
    return audit


def report_lines(report: Mapping[str, Any], threshold: int) -> Iterator[str]:
    """Yield the report as tables of text; ``threshold`` is the one that the subsampling uses."""
    yield (
        f"{report['items']:,} items: {report['labelled']:,} labelled, {report['cannot_tell']:,} cannot tell, "
        f"{report['not_labelled']:,} not labelled"
    )
    if report["without_score"]:
        yield f"{report['without_score']:,} documents without a score are in no class, and in no figure here"
    yield ""
    yield (
        f"{'predicted':<14}{'population':>14}{'labelled':>10}{'cannot tell':>13}"
        f"{'label is the class':>26}{f'label >= {threshold}':>26}{'mean label':>12}"
    )
    for row in report["by_class"]:
        mean = "-" if row["mean_label"] is None else f"{row['mean_label']:.2f}"
        above = _interval(row["labelled_at_or_above"][str(threshold)]) if threshold else "-"
        yield (
            f"{row['class']} {row['name']:<12}{row['population']:>14,}{row['labelled']:>10,}{row['cannot_tell']:>13,}"
            f"{_interval(row['precision']):>26}{above:>26}{mean:>12}"
        )
    yield ""
    yield (
        f"{'threshold':<14}{'at or above':>14}{'labelled so, of those at or above':>36}{'s.e.':>9}"
        f"{'of those below':>26}"
    )
    for row in report["by_threshold"]:
        mark = "  (used)" if row["threshold"] == threshold else ""
        error = row["precision"]["standard_error"]
        yield (
            f"{row['threshold']}{mark:<13}{row['predicted_at_or_above']:>14,}{_interval(row['precision']):>36}"
            f"{'-' if error is None else f'{error:.1%}':>9}{_interval(row['labelled_at_or_above_of_those_below']):>26}"
        )
    yield ""
    yield f"{'predicted':<14}" + "".join(f"{f'label {k}':>9}" for k in range(N_CLASSES))
    for k, counts in enumerate(report["confusion"]):
        yield f"{k} {CLASS_NAMES[k]:<12}" + "".join(f"{count:>9,}" for count in counts)
    yield ""
    yield f"In brackets: {report['confidence']:.0%} confidence intervals, not corrected for finite populations."


def _interval(figure: Mapping[str, float | None]) -> str:
    if figure["estimate"] is None:
        return "-"
    return f"{figure['estimate']:.1%} ({figure['low']:.1%} - {figure['high']:.1%})"
