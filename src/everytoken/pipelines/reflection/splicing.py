"""Splicing: annotated stream, columns of a run -> stream with reflections, and its index."""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.reflection.splicing_nodes import index_of_reflected, say_reflected_stream_is_made, splice_of
from everytoken.reflections import GenerationRun
from everytoken.tokens.streams import STREAM_KINDS


def splicing_pipeline(run: GenerationRun) -> Pipeline:
    """Return the nodes that make the stream of a run; none of a run whose texts are columns alone."""
    if run.stream is None:
        return Pipeline([])
    kind, base = STREAM_KINDS[run.stream], STREAM_KINDS["annotated"]
    return Pipeline(
        [
            Node(
                splice_of(run),
                [base.dataset, f"{run.name}_columns", "tokenizer", "params:tokenization", "params:reflection"],
                kind.dataset,
                name=f"splice_{run.name}",
            ),
            Node(say_reflected_stream_is_made, kind.dataset, kind.input, name=f"say_{kind.name}_stream_is_made"),
            Node(
                index_of_reflected(kind),
                [f"{kind.split}_tokens", kind.dataset, "params:tokenization"],
                kind.index,
                name=f"index_{run.name}",
            ),
        ]
    )
