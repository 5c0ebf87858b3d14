"""The two files of a new environment: values that differ from base, each with its reason as a comment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from everytoken.new_environment.decisions import BATCH_WINDOWS, Decisions
from everytoken.new_environment.errors import NewEnvironmentError
from everytoken.new_environment.sample import SampleFacts
from everytoken.shards import write_text

PARAMETERS_FILE, GLOBALS_FILE = "parameters.yml", "globals.yml"
_SHOWN, _NAME_CHARACTERS = 8, 40
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MARKS = {"system": "System: ", "user": "User: ", "assistant": "Assistant: ", "tool": "Tool: "}


def require_new(conf: Path, name: str) -> None:
    """Check that the name can be that of a new environment.

    Raises:
        NewEnvironmentError: it is none, or there is one of that name.
    """
    if not _NAME.fullmatch(name):
        raise NewEnvironmentError(
            f"{name!r} is no name of an environment: give small letters, digits and _, first a letter."
        )
    if (conf / name).exists():
        raise NewEnvironmentError(f"conf/{name} exists. Choose another name, or remove it: rm -r conf/{name}")


def write_environment(
    conf: Path, name: str, facts: SampleFacts, chosen: Decisions, base_sources: Sequence[str]
) -> list[Path]:
    """Write the files of an environment and return their paths.

    Args:
        base_sources: names of the sources of base, which are switched off.
    """
    folder = conf / name
    folder.mkdir()
    source = f"{name}_text" if name in base_sources else name  # it would inherit what base says of that one
    texts = {
        GLOBALS_FILE: _globals(name, facts, chosen),
        PARAMETERS_FILE: _parameters(name, source, facts, chosen, base_sources),
    }
    for file, lines in texts.items():
        write_text(folder / file, "\n".join(lines) + "\n")
    return [folder / file for file in texts]


def facts_lines(facts: SampleFacts) -> Iterator[str]:
    """Yield what was found, a line each."""
    about = "" if facts.is_whole else "about "
    formats = ", ".join(f"{count:,} {kind}" for kind, count in facts.formats.items())
    yield f"{facts.files:,} files, {facts.bytes / 1e6:,.1f} MB: {formats}"
    what = "documents" if facts.shape is None else f"chats of the shape {facts.shape}"
    yield (
        f"{about}{facts.estimated_documents:,} {what}, {about}{facts.estimated_characters:,} characters; a sample of "
        f"{len(facts.lengths):,} was read"
    )
    if set(facts.formats) != {"txt"}:
        text = "" if facts.shape is not None else f"; the text is in {_plain(facts.text_column)}"
        more = f" and {len(facts.columns) - _SHOWN} more" if len(facts.columns) > _SHOWN else ""
        yield f"columns: {', '.join(map(_plain, facts.columns[:_SHOWN]))}{more}{text}"
    total = sum(facts.languages.values())
    ordered = sorted(facts.languages.items(), key=lambda item: (-item[1], item[0]))
    yield "languages, roughly: " + ", ".join(f"{language} {count / total:.0%}" for language, count in ordered[:4])
    if facts.duplicates:
        yield f"{facts.duplicates:,} of the sample have the text of another one"
    if facts.bad:
        yield "rows that cannot be read: " + ", ".join(f"{reason} {count:,}" for reason, count in facts.bad.items())


def _plain(name: str) -> str:
    """Return a name on one line: it is written into a comment."""
    return " ".join(name.split())[:_NAME_CHARACTERS]


def _globals(name: str, facts: SampleFacts, chosen: Decisions) -> Iterator[str]:
    yield f"# Made by everytoken new {name}: " + next(facts_lines(facts)) + "."
    yield f"data: data/{name}"
    yield f"model_size: {chosen.model_size}        # for about {chosen.estimated_tokens:,} tokens"


def _parameters(
    name: str, source: str, facts: SampleFacts, chosen: Decisions, base_sources: Sequence[str]
) -> Iterator[str]:
    for line in facts_lines(facts):
        yield f"# {line}"
    yield "ingestion:"
    if chosen.max_bad_share:
        yield f"  max_bad_share: {chosen.max_bad_share:g}    # twice the share of the sample"
    yield "  sources:"
    yield f"    {source}: {_flow(_source(facts))}"
    yield from (f"    {of_base}: null" for of_base in base_sources)
    yield from _scores(facts, chosen)
    yield "tokenization:"
    yield f"  tokenizer: {{vocab_size: {chosen.vocab_size}}}    # about 1,000 characters or more for each token"
    yield f"  seq_length: {chosen.seq_length}    # the median document has about {_median(facts):,} tokens"
    yield from _training(chosen)
    if not chosen.held_out_share:
        yield "evaluation:"
        yield '  generation: {prompts: [""]}    # none is held out to begin with'
    yield from _finetuning(name, source, facts)
    yield "release:"
    yield f"  pretty_name: {name}"
    yield f"  languages: [{'en' if facts.language == 'other' else facts.language}]    # roughly"
    yield f"  sources: {{{source}: {{public: false}}}}    # no public address; else: {{homepage: URL}}"
    yield "  licences:    # look it up and replace each ???; until then there is no release"
    yield f'    {source}: {{name: "???", spdx: "???", url: "???", attribution: "???"}}'


def _source(facts: SampleFacts) -> dict[str, object]:
    pattern = {} if facts.pattern == "**" else {"pattern": facts.pattern}
    source: dict[str, object] = {"upstream": {"kind": "path", "root": facts.root, **pattern}}
    if facts.encoding is not None:
        source["encoding"] = facts.encoding
    if facts.shape is not None:
        marks = {role: {"prefix": prefix, "suffix": ""} for role, prefix in _MARKS.items()}
        rules = {"empty": "drop", "neighbours": "merge", "opening": "user", "unanswered": "cut"}
        template = {**marks, "after_turn": "\n", "reserved": [], "reasoning": "leave_out", "tools": "leave_out"}
        ids = {"id_columns": ["id"]} if facts.has_ids else {}
        source["renderer"] = {"kind": "conversation", "shape": facts.shape, **ids, "rules": rules, "template": template}
    elif facts.text_column != "text":
        source["renderer"] = {"kind": "document", "text_column": facts.text_column}
    return source


def _scores(facts: SampleFacts, chosen: Decisions) -> Iterator[str]:
    if chosen.threshold is None:
        why = (
            "few texts are offensive"
            if facts.language == "en"
            else f"the scorer of base knows English, not {facts.language}"
        )
        why = "chats are not scored" if facts.shape is not None else why
        yield f"annotation: {{scorer: {{kind: none}}}}    # {why}"
    yield "subsampling:"
    if chosen.threshold is None:
        yield "  annotation_threshold: null    # nothing is scored, so nothing is annotated"
    else:
        yield f"  annotation_threshold: {chosen.threshold}    # the highest class up to 3 that 2 % of the sample reach"
    yield "  target_tokens: null    # all documents"
    yield f"  held_out_share: {chosen.held_out_share:g}    # about 20 documents or more; nothing of fewer than 50"


def _training(chosen: Decisions) -> Iterator[str]:
    steps = chosen.steps
    times = steps * BATCH_WINDOWS * chosen.seq_length / max(1, chosen.estimated_tokens)
    yield "training:"
    if chosen.threshold is None:
        yield "  streams: [compact]    # the annotated stream has no windows"
    yield "  optimisation:"
    yield f"    steps: {steps}    # of {BATCH_WINDOWS} windows: each token is read about {times:.1f} times"
    yield f"    warmup_steps: {chosen.warmup_steps}"
    if chosen.held_out_share:
        yield f"    held_out: {{every_steps: {-(-steps // 2)}, curve_every_steps: {-(-steps // 8)}}}"
    else:
        yield "    held_out: null    # too few documents"
    yield "    samples: null    # the evaluation writes some, after the beginnings of held-out documents"


def _finetuning(name: str, source: str, facts: SampleFacts) -> Iterator[str]:
    if facts.shape is None:
        return
    yield f"finetuning:    # kedro run --env {name} --pipelines finetuning"
    yield "  chats:"
    yield f"    sources: {{chats: null, flan_cot: null, {source}: {{kind: spans}}}}"
    yield f"    template: {source}"
    yield '  generation: {prompts: ["User: Hello!\\nAssistant:"]}'


def _median(facts: SampleFacts) -> int:
    ordered = sorted(facts.lengths)
    return round(ordered[len(ordered) // 2] / 3.5)


def _flow(value: object) -> str:
    """Return a value as YAML on one line: JSON, with plain keys, which is easier to read."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(of_key)}" for key, of_key in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value)
        and value not in ("null", "true", "no")
    ):
        return value
    return json.dumps(value, ensure_ascii=False)
