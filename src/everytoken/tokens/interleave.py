"""Which window sample i of a run is: a stateless map to (stream, window) by nested Bresenham schedules.

Streams in order, with weights w_0, w_1, ... (their sizes, unless others are given). At level m, among streams
m and following, the share that goes on to later streams is the float64

    r_m = (w_{m+1} + ... + w_last) / (w_m + ... + w_last),        p(i) = int((i + 1) * r_m).

Item i of level m belongs to stream m when ``p(i) == int(i * r_m)``, and then it is window ``(i - p(i)) mod
n_m``; otherwise it is item ``p(i) - 1`` of level m + 1. So every prefix of the run holds each stream in
proportion to its weight within one window, and no state is needed: any sample, step or range can be computed
for itself. For compact, annotated and canary streams this is the rule of the published run (``r = (n_a + n_k)
/ (n_c + n_a + n_k)``, ``q = n_k / (n_a + n_k)``).

At the end of an epoch float64 rounding can give a stream one window more or less (sizes 20 and 31: 51 * (31 /
51) is below 31). Windows are read in file order, modulo the size of the stream: there is no shuffle at
reading. float64 products are exact enough for the published order; a change of their order or type would move
samples, so they are part of the format.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everytoken.tokens.errors import StreamError


def later_shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Return ``r_m`` for each stream but the last, float64; 0 where no weight is left.

    Raises:
        StreamError: there is no weight, one is negative, or all are 0.
    """
    if not weights or any(weight < 0 for weight in weights) or not sum(weights) > 0:
        raise StreamError(f"the weights of the streams are {list(weights)}; expected none below 0 and a sum above 0")
    shares = []
    for m in range(len(weights) - 1):
        total = sum(weights[m:])
        shares.append(sum(weights[m + 1 :]) / total if total else 0.0)
    return tuple(shares)


def window_of_sample(sample: int, sizes: Sequence[int], weights: Sequence[float] | None = None) -> tuple[int, int]:
    """Return (stream, window) of one sample.

    Args:
        sample: number of the sample in the run, from 0.
        sizes: windows of each stream.
        weights: weight of each stream; proportional to the sizes when None.

    Raises:
        StreamError: a stream with weight has no windows, or the weights are wrong (see `later_shares`).
    """
    item, stream = sample, 0
    for share in later_shares(_weights(sizes, weights)):
        later = int((item + 1) * share)
        if later == int(item * share):
            return stream, (item - later) % sizes[stream]
        item, stream = later - 1, stream + 1
    return stream, item % sizes[stream]


def windows_of_samples(
    samples: np.ndarray, sizes: Sequence[int], weights: Sequence[float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the streams, int64 (n,), and windows, int64 (n,), of samples, int64 (n,): `window_of_sample` for
    arrays.
    """
    items = np.asarray(samples, np.int64)
    streams = np.empty(len(items), np.int64)
    windows = np.empty(len(items), np.int64)
    here = np.arange(len(items))  # which samples have reached this level
    shares = later_shares(_weights(sizes, weights))
    for stream, share in enumerate(shares):
        later = ((items + 1) * share).astype(np.int64)
        stays = later == (items * share).astype(np.int64)
        streams[here[stays]] = stream
        if stays.any():
            windows[here[stays]] = (items - later)[stays] % sizes[stream]
        here, items = here[~stays], later[~stays] - 1
    streams[here] = len(shares)
    if len(here):
        windows[here] = items % sizes[-1]
    return streams, windows


def _weights(sizes: Sequence[int], weights: Sequence[float] | None) -> Sequence[float]:
    chosen = sizes if weights is None else weights
    if len(chosen) != len(sizes):
        raise StreamError(f"{len(sizes)} streams have {len(chosen)} weights; give one each")
    for stream, (size, weight) in enumerate(zip(sizes, chosen, strict=True)):
        if size < 0 or (weight > 0 and size == 0):
            raise StreamError(
                f"stream {stream} has weight {weight} but {size} windows; leave it out or give it windows"
            )
    return chosen
