"""Copies of many megabytes, on several threads: one does not reach the memory's
rate, and numpy lets go of the interpreter while it copies.
"""

from __future__ import annotations

import concurrent.futures
import os

import numpy as np

_BYTES_PER_THREAD = 16 << 20
_MAX_THREADS = 8


def copy(target: memoryview, source: memoryview) -> None:
    """REQUIRES: both are of bytes, as many, and do not overlap."""
    to, of = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
    threads = min(len(of) // _BYTES_PER_THREAD, os.cpu_count() or 1, _MAX_THREADS)
    if threads < 2:
        to[:] = of
        return
    step = -(-len(of) // threads)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for at in range(0, len(of), step):
            pool.submit(np.copyto, to[at : at + step], of[at : at + step])
