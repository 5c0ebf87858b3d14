"""Checks of this machine: packages, devices, files, folders and free space."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel

from everytoken.checks import Mismatch
from everytoken.contract import ContractError
from everytoken.corpus import LanguageParameters, require_identifier
from everytoken.corpus.scoring import EmbeddedScorer, ModelFolder, TransformersScorer, require_device, require_embedded
from everytoken.locks import require_locks
from everytoken.parameters import GivenStreamParameters, TokenizationParameters
from everytoken.preflight.ahead import Ahead
from everytoken.reflections import EmbeddedGenerator, IdentityCanaries, PromptFiles, ReflectionError
from everytoken.system_errors import existing
from everytoken.tokens.engines import REFERENCE, installed_engines
from everytoken.tokens.streams import files_read
from everytoken.training import DistributionParameters


def bundled_scorer(scorer: EmbeddedScorer, _: Ahead) -> str:
    """Look for the package of the bundled scorer."""
    require_embedded(scorer.version)
    return f"alt-profanity-check {scorer.version} is installed"


def classifier(scorer: TransformersScorer, _: Ahead) -> str:
    """Look for transformers and for the device of a classifier."""
    require_device(scorer.device)
    return f"transformers is installed; {scorer.device} is here"


def languages(parameters: LanguageParameters, _: Ahead) -> str:
    """Look for the package that identifies languages."""
    require_identifier(parameters.version)
    return f"py3langid {parameters.version} is installed"


def client(_: BaseModel, __: Ahead) -> str:
    """Look for the client of generators behind an API."""
    return _installed("openai", "pip install 'everytoken[reflect]'")


def embedded_generator(_: EmbeddedGenerator, __: Ahead) -> str:
    """Look for the library that runs GGUF files."""
    return _installed("gguf", "pip install 'everytoken[gguf]'")


def _installed(package: str, remedy: str) -> str:
    if find_spec(package) is None:
        raise ReflectionError(f"the package {package} is missing: {remedy}")
    return f"{package} is installed"


def engine(parameters: TokenizationParameters, _: Ahead) -> str | None:
    """Look for the tokenizer library that the parameters name."""
    found = {REFERENCE: "", **installed_engines()}
    if parameters.engine == "fastest":
        return None
    if parameters.engine not in found:
        raise ContractError(
            f"the engine {parameters.engine!r} is not installed; there is {', '.join(found)}. Name one of these "
            "(tokenization.engine), or install it (pip install '.[fast]' has those that are supported)"
        )
    return f"{parameters.engine} is installed"


def devices(distribution: DistributionParameters, _: Ahead) -> str | None:
    """Count the GPUs that a training needs on this machine."""
    if distribution.device == "cpu":
        return None
    import torch

    found = torch.cuda.device_count()
    if found < distribution.processes:
        raise Mismatch(
            "this machine",
            f"{distribution.processes} CUDA devices, one a process",
            str(found),
            "train on a machine that has them, or give training.distribution.processes, or device: cpu",
        )
    return f"{found} CUDA devices"


def model_folder(model: ModelFolder, _: Ahead) -> str:
    """Look for the folder of a classifier."""
    folder = Path(model.path)
    if not (folder / "config.json").is_file():
        raise Mismatch(str(folder), "a model as save_pretrained writes it", "no config.json", "correct model.path")
    return f"{folder} has a model"


def given_stream(given: GivenStreamParameters, _: Ahead) -> str:
    """Look for what is at a path: a stream, a tokenizer, a checkpoint. Its digest is compared by the run."""
    files = files_read(Path(given.path))
    if not files:
        raise Mismatch(given.path, "a stream, a file or a checkpoint", "nothing", "correct its path, or make it")
    size = sum(file.stat().st_size for file in files)
    return f"{len(files):,} files, {size:,} bytes; {'a' if given.sha256 else 'no'} digest is pinned"


def prompt_files(prompts: PromptFiles, _: Ahead) -> str:
    """Look for the files that the messages of a generator are made of."""
    _require_named({"folder": prompts.folder, "constitution": prompts.constitution, "guidelines": prompts.guidelines})
    return "folder, constitution and guidelines are here"


def identity_facts(canaries: IdentityCanaries, _: Ahead) -> str | None:
    """Look for the file of facts."""
    if canaries.disabled:
        return None
    _require_named({"facts": canaries.facts})
    return f"{canaries.facts} is here"


def _require_named(paths: dict[str, str]) -> None:
    if missing := [f"{name} ({path})" for name, path in paths.items() if not Path(path).exists()]:
        raise ReflectionError(f"there is no {', no '.join(missing)}: write it, or correct its path")


def writable(folder: Path, _: Ahead) -> str:
    """Write, rename and remove a file in a folder, or in the nearest one above it that exists."""
    place = existing(folder)
    with tempfile.NamedTemporaryFile(prefix=".preflight-", dir=place) as file:
        file.write(b"\0")
        file.flush()
        os.fsync(file.fileno())
    return f"{folder} can be written" if place == folder else f"{folder} can be made below {place}"


def keeps_locks(folder: Path, _: Ahead) -> str:
    """Ask for the type of a folder's file system, which must keep locks."""
    return f"the file system is {require_locks(existing(folder))}"


def free_space(_: object, ahead: Ahead) -> str:
    """Compare the free bytes of each disk with what is known of the bytes that the job writes there."""
    needed: dict[int, int] = defaultdict(int)
    places = {existing(folder).stat().st_dev: folder for folder in (ahead.raw, ahead.data)}
    for written in ahead.written:
        device = existing(written.folder).stat().st_dev
        needed[device] += written.size
        places.setdefault(device, written.folder)
    lines = []
    for device, folder in places.items():
        free = shutil.disk_usage(existing(folder)).free
        if free < needed[device]:
            known = ", ".join(
                f"{one.what} {one.size:,}" for one in ahead.written if existing(one.folder).stat().st_dev == device
            )
            raise Mismatch(
                f"the disk of {folder}",
                f"at least {needed[device]:,} bytes free ({known})",
                f"{free:,} bytes free",
                "free space, or choose another folder (globals.yml: data, raw)",
            )
        lines.append(f"{free:,} bytes are free on the disk of {folder}, at least {needed[device]:,} will be written")
    return "; ".join(lines)
