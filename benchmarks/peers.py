"""Text files to a Megatron stream: everytoken beside datatrove, Megatron-LM's fast script and the bare libraries.

``python benchmarks/peers.py [--tokenizer tokenizer.json] [--gpt2 tokenizer.json] [--megabytes 225] [--rounds 5]``

The same .jsonl.zst files become .bin and .idx with 2 workers, system after system, round after round; each in a process
of its own, imports and loading included. Figures are medians over the rounds, with the range of the wall time:

- wall seconds, and megabytes of text a second;
- CPU seconds, user and system, of the process and all that it started;
- peak memory: the largest sum of resident memory over these processes (pages that they share count for each). Both as
  /proc shows them every 20 ms: ``wait4`` misses workers that their parent did not wait for, as datatrove's.

Text: files of the standard library and the installed packages up to 400 kB, and the documents of a made default run
(``data/``), in the order of a digest of their names, so it is the same text for the same installation.

Systems (``--only`` takes a list):

- ``reference``, ``fast``: ``everytoken tokenize`` with the engine tokenizers, and with the fastest that is proven. The
  proof is made before, if the user's cache has none (the time is shown): it is needed once for a tokenizer file.
- ``datatrove``: its MegatronDocumentTokenizer, run by its LocalPipelineExecutor with 2 tasks and 2 workers.
- ``prototype``: splintr-rs alone in 2 processes that are forks: it decompresses, parses, encodes and writes a ``.bin``
  of each file, and checks nothing. It is the limit of ``fast``, and a ratio of CPU seconds is printed.
- ``bare``: ``encode_batch_fast`` of the tokenizers library alone in 2 processes; its wall time is that of the encoding,
  without start, reading and taking the ids out.
- ``read``: the reading of everytoken in 2 processes, the texts written as bytes: no tokenizer.
- ``gpt2-fast``, ``gpt2-gigatoken`` (with ``--gpt2``): ``fast`` on GPT-2's tokenizer, and the steps of Megatron-LM's
  tools/preprocess_data_fast.py: gigatoken encodes the files, and ``IndexedDatasetBuilder.add_documents`` writes all
  documents, EOS included, as one flat array. megatron-core 0.16.1, the newest on PyPI, has no ``add_documents`` yet:
  its builder then gets the same flat array from here (`add_flat`). ``PYTHONPATH=CHECKOUT`` of Megatron-LM takes theirs.
  ``megatron.core`` imports torch, so two ratios are printed: of the whole processes, and of ours with its imports to
  theirs without.

Special tokens that a text spells become tokens here (``control``), as in the other systems. In the end the bytes of all
streams of a tokenizer are compared, and each .idx with what it says.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EOS = "<|endoftext|>"
WORKERS = 2
FILES = 8
SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt", ".html"}
MAX_FILE_BYTES = 400_000
NEEDS = {"datatrove": ["datatrove"], "prototype": ["splintr"], "gpt2-gigatoken": ["gigatoken", "megatron.core"]}


# ---------------------------------------------------------------------------------------------------- the corpus


def texts() -> Iterator[str]:
    """Yield real texts, in an order that only their names decide."""
    named: list[tuple[str, Path | None, str]] = []
    for kind in ("stdlib", "purelib"):
        root = Path(sysconfig.get_paths()[kind])
        for path in root.rglob("*"):
            inside = path.relative_to(root)
            if kind == "stdlib" and "site-packages" in inside.parts:
                continue
            if path.suffix in SUFFIXES or path.name == "METADATA":
                named.append((f"{kind}/{inside.as_posix()}", path, ""))
    named += [(name, None, text) for name, text in made_documents()]
    for _, path, text in sorted(named, key=lambda item: hashlib.sha256(item[0].encode()).digest()):
        if path is not None:
            if not path.is_file() or not 50 < path.stat().st_size <= MAX_FILE_BYTES:
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
        if text:
            yield text


def made_documents() -> Iterator[tuple[str, str]]:
    """Yield the documents of a made default run, if there is one."""
    from everytoken.shards import Store

    store = Store(ROOT / "data" / "02_intermediate" / "documents")
    if store.exists():
        for part in store.load():
            for batch in part.batches(["id", "text"]):
                yield from zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True)


def write_corpus(folder: Path, megabytes: float) -> tuple[int, int]:
    """Write the files; return documents and bytes of text."""
    import orjson
    import zstandard

    folder.mkdir()
    names = [folder / f"part_{index:02d}.jsonl.zst" for index in range(FILES)]
    lines: list[list[bytes]] = [[] for _ in names]
    size = count = 0
    for text in texts():
        if size >= megabytes * 1e6:
            break
        lines[count % FILES].append(orjson.dumps({"id": str(count), "text": text}))
        size += len(text.encode())
        count += 1
    if size < megabytes * 1e6:
        print(f"only {size / 1e6:.0f} MB of text are at hand here")
    for path, rows in zip(names, lines, strict=True):
        path.write_bytes(zstandard.ZstdCompressor(3).compress(b"".join(row + b"\n" for row in rows)))
    return count, size


# ---------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Run:
    """One run: seconds, bytes, and what the process printed as its last line."""

    wall: float
    cpu: float
    peak: int
    said: str


def measured(command: Sequence[str], log: Path) -> Run:
    """Run a command to its end."""
    with log.open("wb") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
        watch = _Watch(process.pid)
        watch.start()
        process.wait()
        wall = time.perf_counter() - begin
        watch.done.set()
        watch.join()
    said = log.read_text(encoding="utf-8", errors="replace").strip()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{said[-4000:]}")
    return Run(wall, sum(watch.cpu.values()), watch.peak, said.splitlines()[-1] if said else "")


class _Watch(threading.Thread):
    """Looks at a process and all below it."""

    def __init__(self, root: int) -> None:
        super().__init__()
        self.done = threading.Event()
        self.peak, self.cpu = 0, dict[int, float]()
        self._root = root

    def run(self) -> None:
        page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
        while not self.done.wait(0.02):
            resident = 0
            for pid in _tree(self._root):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:  # it ended meanwhile
                    continue
                self.cpu[pid] = (int(fields[11]) + int(fields[12])) / tick
                resident += int(fields[21]) * page
            self.peak = max(self.peak, resident)


def _tree(root: int) -> Iterator[int]:
    yield root
    try:
        tasks = list(Path(f"/proc/{root}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


# ---------------------------------------------------------------------------------------------------- the systems


def everytoken(corpus: Path, out: Path, tokenizer: Path, engine: str) -> list[str]:
    command = [str(Path(sys.executable).with_name("everytoken")), "tokenize", *map(str, sorted(corpus.iterdir()))]
    command += ["--out", str(out), "--tokenizer", str(tokenizer), "--eos", EOS, "--workers", str(WORKERS)]
    command += ["--engine", engine]
    return [*command, "--special-tokens-in-text", "control", "--max-lossy-share", "1"]


def itself(system: str, *arguments: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--run", system, *map(str, arguments)]


def run_datatrove(corpus: Path, out: Path, tokenizer: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer

    steps = [
        JsonlReader(str(corpus), glob_pattern="*.jsonl.zst"),
        MegatronDocumentTokenizer(str(out), tokenizer_name_or_path=str(tokenizer), eos_token=EOS),
    ]
    logs = str(out.with_name("datatrove_logs"))
    LocalPipelineExecutor(steps, tasks=WORKERS, workers=WORKERS, logging_dir=logs, skip_completed=False).run()


def run_prototype(corpus: Path, out: Path, tokenizer: Path) -> None:
    from multiprocessing import get_context

    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    out.mkdir()
    with get_context("fork").Pool(WORKERS) as pool:
        files = [(path, out / f"{path.name}.bin", tokenizer) for path in sorted(corpus.iterdir())]
        print(sum(pool.imap_unordered(_prototype, files, 1)))


_opened: list[Any] = []


def _prototype(task: tuple[Path, Path, Path]) -> int:
    import orjson
    import splintr
    import zstandard

    path, out, tokenizer = task
    if not _opened:
        _opened.append(splintr.from_json(str(tokenizer)))
    lines = zstandard.ZstdDecompressor().decompress(path.read_bytes()).splitlines()
    count = 0
    with out.open("wb") as file:
        for start in range(0, len(lines), 1024):
            batch = [orjson.loads(line)["text"] for line in lines[start : start + 1024]]
            flat, offsets = (
                np.frombuffer(data, kind)
                for data, kind in zip(_opened[0].encode_batch_flat(batch)[:2], ("<u4", "<u8"), strict=True)
            )
            file.write(np.insert(flat.astype(np.uint16), offsets[1:].astype(np.int64), 0).data)
            count += len(flat)
    return count


def run_bare(corpus: Path, out: Path, tokenizer: Path) -> None:
    _in_two(_bare, corpus, out, tokenizer)


def run_read(corpus: Path, out: Path, tokenizer: Path) -> None:
    out.mkdir()
    _in_two(_read, corpus, out, tokenizer)


def _in_two(work: Callable[..., None], corpus: Path, out: Path, tokenizer: Path) -> None:
    """Run in two processes; print the seconds of the slower one."""
    from multiprocessing import get_context

    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    paths = sorted(corpus.iterdir())
    spawn = get_context("spawn")
    told = spawn.SimpleQueue()
    processes = [spawn.Process(target=work, args=(paths[i::WORKERS], out, tokenizer, told)) for i in range(WORKERS)]
    for process in processes:
        process.start()
    seconds = [told.get() for _ in processes]
    for process in processes:
        process.join()
    print(max(seconds))


def _texts(path: Path) -> Any:
    from everytoken.text_to_stream import TextRange

    return TextRange(path, path.name, 0, path.stat().st_size, "text", 1 << 29)


def _bare(paths: Sequence[Path], out: Path, path_of_tokenizer: Path, told: Any) -> None:
    from tokenizers import Tokenizer

    from everytoken.text_to_stream import read_texts

    tokenizer, seconds = Tokenizer.from_file(str(path_of_tokenizer)), 0.0
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for path in paths:
        for batch in read_texts(_texts(path)):
            begin = time.perf_counter()
            tokenizer.encode_batch_fast(batch.texts, add_special_tokens=False)
            seconds += time.perf_counter() - begin
    told.put(seconds)


def _read(paths: Sequence[Path], out: Path, path_of_tokenizer: Path, told: Any) -> None:
    from everytoken.text_to_stream import read_texts

    begin = time.perf_counter()
    for path in paths:
        with (out / f"{path.name}.bin").open("wb") as file:
            for batch in read_texts(_texts(path)):
                file.write("".join(batch.texts).encode())
    told.put(time.perf_counter() - begin)


def run_gigatoken(corpus: Path, out: Path, tokenizer: Path) -> None:
    """What Megatron-LM's preprocess_data_fast.py does, in its order.

    Its last line is the wall and CPU seconds of all but the imports.
    """
    import gigatoken
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    out.mkdir()
    begin, cpu = time.perf_counter(), time.process_time()
    opened = gigatoken.Tokenizer(str(tokenizer))
    eos = {token["content"]: token["id"] for token in json.loads(tokenizer.read_bytes())["added_tokens"]}[EOS]
    source = gigatoken.JsonlFileSource([str(path) for path in sorted(corpus.iterdir())], field="text")
    documents = opened.encode_files(source)
    writing = time.perf_counter()
    dtype = DType.optimal_dtype(opened.vocab_size)
    builder = IndexedDatasetBuilder(str(out / "documents.bin"), dtype=dtype)
    if hasattr(builder, "add_documents"):
        builder.add_documents(documents, eod_token=eos)
    else:
        import awkward as ak

        add_flat(builder, np.asarray(ak.flatten(documents)), np.asarray(ak.num(documents, axis=1)), eos)
    builder.finalize(str(out / "documents.idx"))
    end = time.perf_counter()
    print(f"encoding {writing - begin:.2f} s, writing {end - writing:.2f} s")
    print(end - begin, time.process_time() - cpu)


def add_flat(builder: Any, ids: np.ndarray, lengths: np.ndarray, eos: int) -> None:
    """Add documents, each with EOS at its end, by one write, as ``add_documents`` of Megatron-LM does.

    Args:
        builder: an ``IndexedDatasetBuilder``.
        ids: token ids of all documents (tokens,).
        lengths: tokens of each document (documents,).
        eos: the id that ends each document.
    """
    flat = np.insert(ids.astype(builder.dtype), np.cumsum(lengths), eos)
    builder.data_file.write(flat.tobytes())
    first = len(builder.sequence_lengths)
    builder.sequence_lengths.extend((lengths + 1).tolist())
    builder.document_indices.extend(range(first + 1, first + len(lengths) + 1))


RUNS = {
    "datatrove": run_datatrove,
    "prototype": run_prototype,
    "bare": run_bare,
    "read": run_read,
    "gpt2-gigatoken": run_gigatoken,
}


# ---------------------------------------------------------------------------------------------------- the comparison


def documents_of(folder: Path) -> list[list[bytes]]:
    """Return the digests of the documents' tokens in each file of the corpus' order, whoever wrote the streams."""
    prefixes = sorted(path.with_suffix("") for path in folder.iterdir() if path.suffix == ".bin")
    return [_digests(prefix) for prefix in prefixes]


def _digests(prefix: Path) -> list[bytes]:
    from everytoken.tokens.streams import open_indexed

    stream = open_indexed(prefix)
    stream.check()
    expected = np.arange(len(stream) + 1)
    if not np.array_equal(stream.document_index, expected):
        raise SystemExit(f"{prefix}.idx: documents are not one sequence each")
    return [hashlib.sha256(stream[i].tobytes()).digest() for i in range(len(stream))]


def in_file_order(ranks: list[list[bytes]], counts: Sequence[int]) -> list[bytes]:
    """Return the documents of datatrove's ranks, each of which has every second file, as one stream has them."""
    at = [0] * len(ranks)
    ordered: list[bytes] = []
    for index, count in enumerate(counts):
        rank = index % len(ranks)
        ordered += ranks[rank][at[rank] : at[rank] + count]
        at[rank] += count
    return ordered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; else one is trained on the text")
    parser.add_argument("--gpt2", type=Path, help="GPT-2's tokenizer.json")
    parser.add_argument("--megabytes", type=float, default=225)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="systems to run")
    parser.add_argument("--run", nargs=4, metavar=("SYSTEM", "CORPUS", "OUT", "TOKENIZER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        system, *paths = given.run
        RUNS[system](*map(Path, paths))
        return
    with tempfile.TemporaryDirectory() as name:
        compare(Path(name), given)


def compare(folder: Path, given: argparse.Namespace) -> None:
    corpus = folder / "corpus"
    documents, size = write_corpus(corpus, given.megabytes)
    packed = sum(path.stat().st_size for path in corpus.iterdir())
    print(f"{documents:,} documents, {size / 1e6:.1f} MB of text in {FILES} .jsonl.zst files of {packed / 1e6:.1f} MB")
    tokenizer = given.tokenizer.resolve() if given.tokenizer else trained(folder)

    def plain(system: str, with_tokenizer: Path) -> Callable[[Path], list[str]]:
        return lambda out: itself(system, corpus, out, with_tokenizer)

    def ours(engine: str, with_tokenizer: Path) -> Callable[[Path], list[str]]:
        return lambda out: everytoken(corpus, out, with_tokenizer, engine)

    systems = {
        "reference": ours("tokenizers", tokenizer),
        "fast": ours("fastest", tokenizer),
        "datatrove": plain("datatrove", tokenizer),
        "prototype": plain("prototype", tokenizer),
        "bare": plain("bare", tokenizer),
        "read": plain("read", tokenizer),
    }
    if given.gpt2:
        gpt2 = given.gpt2.resolve()
        systems |= {"gpt2-fast": ours("fastest", gpt2), "gpt2-gigatoken": plain("gpt2-gigatoken", gpt2)}
    systems = {name: system for name, system in systems.items() if not given.only or name in given.only}
    for name, modules in NEEDS.items():
        missing = [module for module in modules if importlib.util.find_spec(module.split(".")[0]) is None]
        if missing and systems.pop(name, None):
            print(f"{name}: not run, {', '.join(missing)} not installed")
    for name in ("fast", "gpt2-fast"):
        if name in systems:
            first = measured(systems[name](folder / "first"), folder / "log")
            shutil.rmtree(folder / "first")
            print(f"{name}: the first run, which makes the proof if none is kept, takes {first.wall:.1f} s")
    runs: dict[str, list[Run]] = {name: [] for name in systems}
    for number in range(given.rounds):
        print(f"round {number + 1}, load average {Path('/proc/loadavg').read_text().split()[0]}", flush=True)
        for name, system in systems.items():
            out = folder / f"out_{name}"
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            runs[name].append(measured(system(out), folder / f"{name}.log"))
    show(runs, size)
    same(folder, [name for name in systems if name not in ("prototype", "bare", "read")])


def show(runs: dict[str, list[Run]], size: int) -> None:
    head = f"{'system':<16}{'wall s':>9}{'from':>8}{'to':>8}{'MB/s':>8}{'CPU s':>8}{'peak MB':>9}  {'of datatrove':<14}"
    print(f"\n{head}")
    other = runs.get("datatrove")
    for name, of_system in runs.items():
        walls = [float(run.said) if name in ("bare", "read") else run.wall for run in of_system]
        wall = statistics.median(walls)
        cpu, peak = (statistics.median(getattr(run, key) for run in of_system) for key in ("cpu", "peak"))
        ratio = ""
        if other:
            times = statistics.median(run.wall for run in other) / wall
            share = peak / statistics.median(run.peak for run in other)
            ratio = f"{times:.1f} times as fast, {share:.2f} of its memory"
        seconds = f"{wall:>9.2f}{min(walls):>8.2f}{max(walls):>8.2f}"
        print(f"{name:<16}{seconds}{size / 1e6 / wall:>8.1f}{cpu:>8.1f}{peak / 1e6:>9.0f}  {ratio}")
    if {"reference", "bare"} <= set(runs):
        bare = statistics.median(float(run.said) for run in runs["bare"])
        print(f"reference: {statistics.median(run.wall for run in runs['reference']) / bare:.3f} of the bare encoding")
    for other_name in ("prototype", "datatrove"):
        if {"fast", other_name} <= set(runs):
            ratios = [theirs.cpu / ours.cpu for theirs, ours in zip(runs[other_name], runs["fast"], strict=True)]
            median = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{other_name} / fast, CPU seconds: {median}")
    if {"gpt2-fast", "gpt2-gigatoken"} <= set(runs):
        pairs = list(zip(runs["gpt2-gigatoken"], runs["gpt2-fast"], strict=True))
        bare = [tuple(map(float, theirs.said.split())) for theirs, _ in pairs]
        compared = {
            "wall seconds": [theirs.wall / ours.wall for theirs, ours in pairs],
            "CPU seconds": [theirs.cpu / ours.cpu for theirs, ours in pairs],
            "wall seconds without its imports": [
                wall / ours.wall for (wall, _), (_, ours) in zip(bare, pairs, strict=True)
            ],
            "CPU seconds without its imports": [
                cpu / ours.cpu for (_, cpu), (_, ours) in zip(bare, pairs, strict=True)
            ],
        }
        for what, ratios in compared.items():
            median = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"gpt2-gigatoken / gpt2-fast, {what + ':':<34}{median}")


def same(folder: Path, systems: Sequence[str]) -> None:
    for group in (["reference", "fast", "datatrove"], ["gpt2-fast", "gpt2-gigatoken"]):
        found = [name for name in group if name in systems]
        whole = next((name for name in found if name in ("reference", "fast", "gpt2-fast")), None)
        if whole is None or len(found) < 2:
            continue
        by_file = json.loads((folder / f"out_{whole}" / "ledger.json").read_bytes())["statistics"]["by_file"]
        counts = [by_file[name]["documents"] for name in sorted(by_file)]
        expected = documents_of(folder / f"out_{whole}")[0]
        for name in found:
            streams = documents_of(folder / f"out_{name}")
            got = in_file_order(streams, counts) if len(streams) > 1 else streams[0]
            if got != expected:
                raise SystemExit(f"{name} and {whole} differ, first in document {_first(got, expected)}")
        print(f"identical: {', '.join(found)} ({len(expected):,} documents)")


def _first(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def trained(folder: Path) -> Path:
    """Train a tokenizer on the first 10 MB of the text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        special_tokens=[AddedToken(EOS, special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first_texts(10e6), trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def _first_texts(size: float) -> Iterator[str]:
    for text in texts():
        yield text
        size -= len(text)
        if size < 0:
            return


if __name__ == "__main__":
    main()
