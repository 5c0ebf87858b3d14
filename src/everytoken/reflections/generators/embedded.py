"""A small model in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everytoken.reflections.generators.asking import Generator, GeneratorError
from everytoken.reflections.parameters import EmbeddedGenerator


@asynccontextmanager
async def open_embedded(parameters: EmbeddedGenerator) -> AsyncIterator[Generator]:
    """Give the generator."""
    raise GeneratorError("not written yet")
    yield
