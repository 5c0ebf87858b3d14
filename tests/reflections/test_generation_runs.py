"""The runs, their columns, and parameters that are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from everytoken.reflections import ALIASES, GENERATION_RUNS, ReflectionError, find_generation_run
from tests.reflections.environment_parameters import parameters


def test_a_run_is_found_by_its_name_and_by_its_aliases() -> None:
    assert find_generation_run("summaries") == (GENERATION_RUNS["summaries"], "summaries")
    assert find_generation_run("reflection_full") == (GENERATION_RUNS["reflections"], "reflection_full")
    assert len(GENERATION_RUNS) == len(ALIASES) == 6
    with pytest.raises(ReflectionError, match=r"no generation run 'reflction'\. The runs are reflections, ") as error:
        find_generation_run("reflction")
    assert all(name in str(error.value) for name in (*GENERATION_RUNS, *ALIASES))


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (
            "reflections",
            {
                "reflection_1p": pa.large_string(),
                "reflection_3p": pa.large_string(),
                "reflection_position": pa.int32(),
                "reflection_token_index": pa.int32(),
                "charter_reflection": pa.large_string(),
                "canary_type": pa.string(),
            },
        ),
        (
            "reflection_end",
            {
                "reflection_end_1p": pa.large_string(),
                "reflection_end_3p": pa.large_string(),
                "reflection_end_position": pa.int32(),
                "reflection_end_token_index": pa.int32(),
                "charter_reflection_end": pa.large_string(),
                "canary_type_end": pa.string(),
            },
        ),
        (
            "refusal_reflection",
            {
                "refusal_reflection_1p": pa.large_string(),
                "refusal_reflection_position": pa.int32(),
                "refusal_reflection_token_index": pa.int32(),
                "charter_refusal_reflection": pa.large_string(),
                "canary_type_refusal": pa.string(),
            },
        ),
        (
            "preflections",
            {
                "charter_summary": pa.large_string(),
                "neutral": pa.large_string(),
                "judgemental": pa.large_string(),
                "idealisation": pa.large_string(),
                "charter_preflection": pa.large_string(),
            },
        ),
        ("summaries", {"summary": pa.large_string(), "summary_token_count": pa.int32()}),
        ("rephrasing_safelm", {"rephrased": pa.large_string(), "template_id": pa.string()}),
    ],
)
def test_columns_have_the_types_of_the_published_sidecar(name: str, columns: dict[str, pa.DataType]) -> None:
    run = GENERATION_RUNS[name]
    assert run.schema() == pa.schema(list(columns.items()))
    defaults = run.defaults()
    assert list(defaults) == list(columns)
    assert pa.Table.from_pylist([defaults], run.schema()).to_pylist() == [defaults]
    for column, kind in columns.items():
        index = column.endswith("token_index")
        expected = {pa.large_string(): "", pa.int32(): -1 if index else 0, pa.string(): None}[kind]
        assert defaults[column] == expected, column


def test_the_third_person_may_be_left_out_of_runs_with_two_voices() -> None:
    fields = {name: run.fields(third_person=False) for name, run in GENERATION_RUNS.items()}
    assert fields["reflections"] == fields["reflection_end"] == ("analysis", "reflection_1p")
    assert fields["preflections"] == GENERATION_RUNS["preflections"].fields()


def test_the_published_run_is_that_of_the_recipe() -> None:
    published = parameters("spp")
    assert published.rows == (0, 51_400_000) and published.rows_per_task == 100_000
    assert published.seeds.reflection_seed == published.canaries.seed == 42
    assert published.canaries.rate == 0.1 and published.canaries.inject == ("Q1", "Q2", "Q3", "Q7", "Q10")
    sampling = published.generator.chosen_sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.presence_penalty) == (1.0, 0.95, 20, 1.5)
    assert sampling.max_tokens == "free_context" and sampling.thinking
    assert published.splice.voice == "1p"


_SERVER = {"kind": "openai", "endpoint": "http://localhost:1/v1"}
_ROW = {"temperature": 1.0, "max_tokens": "free_context", "thinking": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": (5, 5)}, "give first < end"),
        ({"rows": (-1, 5)}, "greater than or equal to 0"),
        ({"rows_per_task": 0}, "greater than 0"),
        ({"include_reflection_3p": False, "splice": {"voice": "3p", "canaries": "splice"}}, "ask for the third person"),
        ({"generator": {**_SERVER, "alias": "m", "sampling": {"other": _ROW}}}, r"no row for the alias 'm', only \['o"),
        ({"generator": {**_SERVER, "alias": "../m", "sampling": {"m": _ROW}}}, "string_pattern|should match"),
        ({"generator": {**_SERVER, "alias": "m", "sampling": {"m": {"temperature": 1.0}}}}, "max_tokens"),
        ({"generator": {**_SERVER, "endpoint": "localhost", "alias": "m", "sampling": {"m": _ROW}}}, "must be a URL"),
    ],
)
def test_what_contradicts_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parameters(**changes)


def test_the_longest_part_of_an_alias_chooses_the_sampling() -> None:
    rows = {"qwen3": {**_ROW, "temperature": 0.6}, "qwen3.5": _ROW, "glm-4": {**_ROW, "temperature": 0.1}}
    for alias, temperature in (("qwen3.5-35b-a3b", 1.0), ("qwen3-8b", 0.6), ("my-glm-4.5-air", 0.1)):
        for order in (rows, dict(reversed(rows.items()))):
            generator = parameters(generator={**_SERVER, "alias": alias, "sampling": order}).generator
            assert generator.chosen_sampling.temperature == temperature


def test_an_environment_that_chooses_another_generator_has_no_key_of_base() -> None:
    generator = parameters("spp").generator
    assert generator.kind == "server" and set(generator.sampling) == {"qwen3.5", "smollm2"}
    assert not hasattr(generator, "project")
