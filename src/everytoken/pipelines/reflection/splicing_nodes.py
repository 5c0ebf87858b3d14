"""Splicing: the reflections of a run become part of the annotated windows."""

from collections.abc import Callable

from everytoken.parameters import ReflectionParameters, TokenizationParameters
from everytoken.provenance.indexes import index_reflected_stream
from everytoken.reflections import GenerationRun
from everytoken.reflections.splicing import write_reflected_stream
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.streams import StreamKind

Splice = Callable[[Artifact, Shards, Artifact, TokenizationParameters, ReflectionParameters], Artifact]


def splice_of(run: GenerationRun) -> Splice:
    """Return the function of the node that makes the stream of a run."""

    def splice_reflections(
        annotated_stream: Artifact,
        columns: Shards,
        tokenizer: Artifact,
        tokenization: TokenizationParameters,
        parameters: ReflectionParameters,
    ) -> Artifact:
        """Put the reflection of each row into its window; rows without one stay as they are."""
        return plan_artifact(
            write_reflected_stream,
            annotated=annotated_stream,
            columns=columns,
            run=run.name,
            generator=parameters.generator_of(run.name),
            rules=tokenization.encoding_rules(tokenizer),
            reflection_budget=tokenization.reflection_budget,
            voice=parameters.splice.voice,
            marker=parameters.splice.marker,
            canaries=parameters.splice.canaries,
        )

    return splice_reflections


def say_reflected_stream_is_made(stream: Artifact) -> Artifact:
    """Let nodes that also run without the stream wait for it in a run that makes it."""
    return stream


def index_of_reflected(kind: StreamKind) -> Callable[[Shards, Artifact, TokenizationParameters], Artifact]:
    """Return the function of the node that makes the index of a kind of reflected stream."""

    def make_reflected_index(tokens: Shards, stream: Artifact, tokenization: TokenizationParameters) -> Artifact:
        """Draw the order of the annotated windows again, and keep where reflections are in them."""
        return plan_artifact(
            index_reflected_stream,
            lengths=tokens,
            split=kind.split,
            reflected=stream,
            seq_length=tokenization.seq_length,
            seed=tokenization.seed,
        )

    return make_reflected_index
