"""Training batches beside a bare memmap gather: windows a second, in order and shuffled, and microseconds a batch.

``python benchmarks/loader.py [--gigabytes 1] [--rounds 15] [--folder FOLDER]``

Files of random ids are written once (2,049 ids a window, and 257), and lie in the page cache, so this measures the work
and not the disk. In each round every system reads batches of the same shape, one after the other; figures are medians
over the rounds of CPU time, so that other work on the machine counts less (all of it is done in one thread). The bare
gather is what any trainer on a memmap does; it makes no mask and computes no order:

    np.asarray(memmap[indices]).astype(np.int64)

Ours gives tokens int64 and the loss mask, and computes which windows they are. ``one stream`` reads the windows that
the bare gather reads, in the same order, or the same shuffled numbers. ``three streams`` has 80.6 % compact, 19.4 %
annotated (padded) and some canary windows; ``spp`` is the float64 rule; ``phases`` has other weights in each quarter;
``permuted`` reads later epochs by the keyed permutation. ``raw shards`` are 16 files of flat ids, of which one
window in some hundred lies in two; ``small shards`` are so small that most windows do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.seeds import numpy_generator
from everytoken.tokens.order import DataParameters, SampleOrder, TrainingWindows, WindowStream, open_window_stream
from everytoken.tokens.streams import FlatTokens, WindowWriter

Batch = Callable[[np.ndarray], Any]


def written(folder: Path, window: int, count: int, padded: bool) -> Path:
    folder.mkdir(parents=True)
    generator = numpy_generator(0, window, count)
    lengths = generator.integers(0, window, count).astype("<i4") if padded else None
    with WindowWriter(folder / "stream", window, np.uint16) as writer:
        for start in range(0, count, 4096):
            ids = generator.integers(1, 50_000, (min(4096, count - start), window)).astype(np.uint16)
            if lengths is not None:
                ids[np.arange(window) >= lengths[start : start + len(ids), None]] = 0
            writer.write(ids)
    if lengths is not None:
        np.save(folder / "token_lengths.npy", lengths)
    return folder


def order(streams: tuple[WindowStream, ...], batch_size: int, **changed: Any) -> TrainingWindows:
    given = {"schedule": "integer", "weights": None, "replay": None, "later_epochs": "as_written", "seed": 0}
    data = DataParameters.model_validate({**given, "check": "sizes", "document_mask": False, **changed})
    names = [f"stream {number}" for number in range(len(streams))]
    return TrainingWindows(streams, SampleOrder(names, [len(stream) for stream in streams], data, batch_size))


def systems(folder: Path, window: int, count: int, batch_size: int) -> tuple[dict[str, Batch], int]:
    """Return what reads a batch by sample numbers, by name, and how many windows the first stream has."""
    compact = written(folder / f"compact_{window}", window, count, False)
    others = (
        written(folder / f"annotated_{window}", window, count * 194 // 806, True),
        written(folder / f"canary_{window}", window, max(1, count // 7128), True),
    )
    mapped = np.memmap(compact / "stream.bin", "<u2", "r", shape=(count, window))
    one = (open_window_stream(compact, "sizes"),)
    three = (*one, *(open_window_stream(other, "sizes") for other in others))
    weights = [
        {"from_step": step, "weights": {"stream 0": 8, "stream 1": 2 + step % 3, "stream 2": 0.01}}
        for step in range(0, count // batch_size, count // batch_size // 4 + 1)
    ]
    ids = mapped.reshape(-1)

    def flat(pieces: int) -> tuple[WindowStream, ...]:
        return (WindowStream("raw", FlatTokens(np.array_split(ids, pieces)).windows(window - 1), None, None),)

    later = order(three, batch_size, later_epochs="permuted")
    shift = sum(later.sizes)
    made = {
        "one stream": order(one, batch_size).read,
        "three streams": order(three, batch_size).read,
        "spp": order(three, batch_size, schedule="spp").read,
        "phases": order(three, batch_size, weights=weights).read,
        "permuted": lambda samples: later.read(samples + shift),
        "raw shards": order(flat(16), batch_size).read,
        "small shards": order(flat(len(ids) // (window - 60)), batch_size).read,
    }
    return {"bare gather": lambda samples: np.asarray(mapped[samples]).astype(np.int64), **made}, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1, help="of the compact stream of 2,049 ids a window")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where the files go for the time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        for batch_size, window, scale, times in ((960, 2049, 1.0, 4), (64, 257, 0.1, 60), (4, 257, 0.1, 400)):
            count = int(options.gigabytes * scale * 2**30 / 2 / window)
            made, count = systems(Path(temporary) / str(batch_size), window, count, batch_size)
            measure(made, count - count // 50, batch_size, window, times, options.rounds)


def measure(made: dict[str, Batch], count: int, batch_size: int, window: int, times: int, rounds: int) -> None:
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        firsts = numpy_generator(1, number).integers(0, count - batch_size, times)
        shuffled = numpy_generator(2, number).integers(0, count, (times, batch_size))
        in_order = [np.arange(first, first + batch_size) for first in firsts.tolist()]
        for kind, batches in (("in order", in_order), ("shuffled", list(shuffled))):
            for name, read in made.items():
                begun = time.thread_time()
                for samples in batches:
                    read(samples)
                if number:  # the first round brings files into the page cache
                    seconds.setdefault((kind, name), []).append((time.thread_time() - begun) / times)
    print(f"\nbatches of {batch_size} x {window} ids, {batch_size * window * 8 / 2**20:.2f} MiB as int64")
    print(f"{'':16}" + "".join(f"{kind:>14}{'us a batch':>12}{'times bare':>12}" for kind in ("in order", "shuffled")))
    for name in made:
        line = f"{name:16}"
        for kind in ("in order", "shuffled"):
            own, bare = (statistics.median(seconds[kind, one]) for one in (name, "bare gather"))
            line += f"{batch_size / own:>12,.0f}/s{own * 1e6:>12,.1f}{own / bare:>12.2f}"
        print(line)


if __name__ == "__main__":
    main()
