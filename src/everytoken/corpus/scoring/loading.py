"""Load a sequence classifier from the files of its artifact and from nowhere else: no network, no pickle, no cache.

A model that is not one of transformers' own runs the code that lies beside its weights.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from everytoken.corpus.errors import ScoringError
from everytoken.measurements import processor_name


def require_device(device: str) -> None:
    """Check that transformers is there and the device too.

    Raises:
        ScoringError: one is not.
    """
    try:
        importlib.import_module("transformers")
    except ImportError as error:
        raise ScoringError(
            f"scorer.kind transformers needs transformers ({error}): pip install 'everytoken[transformers]'."
        ) from None
    if device == "cpu":
        return
    import torch

    # read when the CUDA context is made; without it cuBLAS may use its workspaces in another order every time
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        raise ScoringError(
            f"scorer.device is {device}, and torch {torch.__version__} finds {count} CUDA devices here. Set "
            f"scorer.device to cpu, or score on a machine with one, with a torch that was built for it."
        )


def environment_of(device: str, threads: int) -> str:
    """Return versions, device and threads in one line."""
    import torch

    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "tokenizers"))
    if device == "cpu":
        named = f"cpu {processor_name()} {torch.backends.cpu.get_cpu_capability()}, {threads} threads"
    else:
        named = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return f"{versions}, torch {torch.__version__}, {named}"


def load_classifier(folder: Path, name: str, dtype: str, code: str | None) -> tuple[Any, Any]:
    """Return the model, on the CPU, and its tokenizer.

    Args:
        code: a digest of the files when the model is loaded by its own code; None for one of transformers.

    Raises:
        ScoringError: the files are not those of a sequence classifier, or its code cannot be had.
    """
    import torch

    state = torch.get_rng_state()  # weights are initialized before they are read: nobody else's draws may change by it
    try:
        with _quiet():
            tokenizer = _load_tokenizer(folder, name)
            model = _load_native(folder, name, dtype) if code is None else _load_own(folder, name, dtype, code)
    finally:
        torch.set_rng_state(state)
    _require_vocabulary(name, model.config.get_text_config(), tokenizer)
    return model, tokenizer


def _load_tokenizer(folder: Path, name: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # what is raised follows from where the reading of a damaged file ends
        raise ScoringError(
            f"the tokenizer of {name} cannot be loaded ({type(error).__name__}: {error}): tokenizer.json, or a file "
            f"beside it, is not what a fast tokenizer writes. Save it again with tokenizer.save_pretrained(folder)."
        ) from error


def _load_native(folder: Path, name: str, dtype: str) -> Any:
    """Load a model that transformers has."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification

    kind = read_json(folder, "config.json", name).get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ScoringError(
            f"{name} is of the type {kind!r}, which transformers {importlib.metadata.version('transformers')} does not "
            f"have. If it comes with code of its own, name the repository and the commit of that in "
            f"scorer.model.remote_code, or allow a folder's with scorer.model.custom_code; if not, install another "
            f"version of transformers."
        )
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    except Exception as error:  # what is raised follows from which value of config.json a constructor stumbles over
        raise ScoringError(
            f"transformers cannot load {name} as a sequence classifier ({type(error).__name__}: {error}). Where that "
            f"is a value of its config.json (for Padding_idx: pad_token_id), set the one that the model was trained "
            f"with, or save it again with model.save_pretrained(folder)."
        ) from error
    if unfit := sorted(info["mismatched_keys"]):
        shapes = [f"{key} is {tuple(found)}, expected {tuple(expected)}" for key, found, expected in unfit]
        raise ScoringError(
            f"the weights of {name} do not fit its config.json: {'; '.join(shapes[:5])}. Take both from the same "
            f"model.save_pretrained(folder)."
        )
    _require_all_weights(name, set(info["missing_keys"]), set())
    return model


def _load_own(folder: Path, name: str, dtype: str, digest: str) -> Any:
    """Load a model by its own code, which lies in the artifact.

    The model is built by its constructor, on the device of its weights: transformers 5 builds on no device and then
    fills weights, which leaves tables that a constructor computes (``persistent=False`` buffers, such as the rotary
    ones of Alibaba-NLP/new-impl) with whatever was in memory.
    """
    import torch
    from safetensors.torch import load_file

    config_class = _own_class(folder, name, digest, "AutoConfig")
    model_class = _own_class(folder, name, digest, "AutoModelForSequenceClassification")
    try:
        model = model_class(config_class.from_pretrained(folder, local_files_only=True))
    except Exception as error:  # it is anybody's code
        raise ScoringError(
            f"the code of {name} cannot build it from its config.json ({type(error).__name__}: {error}). Pin a code "
            f"that belongs to the model and works with transformers {importlib.metadata.version('transformers')}."
        ) from error
    weights = {key: value for path in sorted(folder.glob("*.safetensors")) for key, value in load_file(path).items()}
    try:
        result = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # shapes
        raise ScoringError(f"the weights of {name} do not fit its code: {error}. Pin a code that does.") from None
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    _require_all_weights(name, set(result.missing_keys) - tied, set(result.unexpected_keys))
    _give_what_was_removed(model, config_class.__module__.partition(".")[0])
    for tensor in model.state_dict(keep_vars=True).values():  # tables that are computed stay as precise as they are
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(getattr(torch, dtype))
    return model


def _give_what_was_removed(model: Any, package: str) -> None:
    """Give classes of a model's own code the one method of transformers 4 that encoders of that time call."""
    for module in model.modules():
        kind = type(module)
        own = kind.__module__.startswith(f"{package}.") and hasattr(module, "config")
        if own and not hasattr(kind, "get_extended_attention_mask"):
            kind.get_extended_attention_mask = _extended_attention_mask


def _extended_attention_mask(model: Any, attention_mask: Any, input_shape: Any) -> Any:
    """Return what is added to attention scores: 0 for tokens, the least number for padding; (batch, 1, 1, length)."""
    import torch

    mask = attention_mask[:, None, None, :].to(model.dtype)
    return (1.0 - mask) * torch.finfo(model.dtype).min


def _own_class(folder: Path, name: str, digest: str, auto: str) -> Any:
    """Return the class that ``auto_map`` of config.json names: ``[repository--]module.Class``."""
    reference = str((read_json(folder, "config.json", name).get("auto_map") or {}).get(auto, ""))
    module, _, found = reference.rpartition("--")[2].rpartition(".")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", module) or not (folder / f"{module}.py").is_file():
        raise ScoringError(
            f"{name}: auto_map of its config.json has {reference!r} for {auto}, expected module.Class with the module "
            f"one of the code's {sorted(path.name for path in folder.glob('*.py'))}. Check scorer.model.remote_code."
        )
    package = f"everytoken_model_{digest[:16]}"
    sys.modules.setdefault(package, ModuleType(package)).__path__ = [str(folder)]
    importlib.invalidate_caches()
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is written into an artifact
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), found)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ScoringError(
            f"{name}: {reference} of its code cannot be imported ({type(error).__name__}: {error}). Install what it "
            f"imports, or pin a code that works with transformers {importlib.metadata.version('transformers')}."
        ) from None
    finally:
        sys.dont_write_bytecode = written


def read_json(folder: Path, file: str, name: str) -> dict[str, Any]:
    """Return the object that a file of a model holds.

    Raises:
        ScoringError: it is damaged; the message has ``name``, the model's.
    """
    try:
        return dict(json.loads((folder / file).read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ScoringError(
            f"{name}: {file} is no JSON object ({type(error).__name__}: {error}). Save the model again with "
            f"save_pretrained."
        ) from None


def _require_vocabulary(name: str, config: Any, tokenizer: Any) -> None:
    """Check that the model has an embedding for each token, and so for padding."""
    size = getattr(config, "vocab_size", None)
    largest = max([*tokenizer.get_vocab().values(), -1])
    if size is not None and largest >= size:
        raise ScoringError(
            f"the tokenizer of {name} has tokens up to {largest}, and the model's vocabulary has {size} (0 to "
            f"{size - 1}). Take the tokenizer that the model was trained with, or train it with "
            f"model.resize_token_embeddings({largest + 1})."
        )


def _require_all_weights(name: str, missing: set[str], unexpected: set[str]) -> None:
    if missing or unexpected:
        raise ScoringError(
            f"the weights of {name} are not those of a sequence classifier: missing {sorted(missing)[:5]}, without a "
            f"place {sorted(unexpected)[:5]}. What is missing would be random: choose a model that was trained to "
            f"classify."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Show no bars while weights are loaded."""
    from transformers import utils

    logging: Any = utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
