"""POSIX shared memory of our own, and regions of it that calls use again.

An object is /dev/shm/ithaca-PID-RANDOM, removed when its maker closes it or
exits. A process that is killed leaves its objects behind; they are locked for as
long as their maker lives, so that the next process knows and removes them. The
C++ client does the same.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import threading
import weakref
from collections.abc import Callable
from typing import Any

import grpc

from ithaca import errors

_FOLDER = "/dev/shm"
_NAME = re.compile(r"ithaca-(\d+)-[0-9a-f]{16}")
_SMALLEST_BYTES = 64 << 10
_ATTEMPTS = 16
_NO_ROOM = {errno.ENOSPC, errno.ENOMEM, errno.EFBIG}

_open_objects: weakref.WeakSet[SharedObject] = weakref.WeakSet()


class SharedMemoryError(Exception):
    """No shared memory of this size is to be had here.

    for_good: whatever the size.
    """

    def __init__(self, message: str, *, for_good: bool):
        super().__init__(message)
        self.for_good = for_good


class SharedObject:
    """nbytes of shared memory, reserved, mapped at `view`."""

    def __init__(self, nbytes: int):
        try:
            self._fd, self._path = _create_locked()
        except OSError as error:
            raise SharedMemoryError(
                f"no shared memory in {_FOLDER}: {error.strerror}", for_good=True
            ) from error
        self._maker = os.getpid()
        try:
            # Reserved now: a full file system would else be a SIGBUS later.
            os.posix_fallocate(self._fd, 0, nbytes)
            memory = mmap.mmap(self._fd, nbytes)
        except (OSError, OverflowError) as error:
            self._remove()
            raise SharedMemoryError(
                f"no room for {nbytes} bytes in {_FOLDER}: {error}",
                for_good=getattr(error, "errno", None) not in _NO_ROOM,
            ) from error
        self.nbytes = nbytes
        # The mapping goes with the last view of it, ours or a caller's.
        self.view = memoryview(memory)
        _open_objects.add(self)

    @property
    def name(self) -> str:
        """As shm_open takes it."""
        return "/" + os.path.basename(self._path)

    def close(self) -> None:
        """Removes it; views that others hold stay valid."""
        if self._fd < 0:
            return
        _open_objects.discard(self)
        self.view = memoryview(b"")
        self._remove()

    def _remove(self) -> None:
        # A forked child has the descriptor too, and owns nothing.
        if os.getpid() == self._maker:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


@atexit.register
def _close_all() -> None:
    for each in list(_open_objects):
        each.close()


def _create_locked() -> tuple[int, str]:
    for _ in range(_ATTEMPTS):
        path = f"{_FOLDER}/ithaca-{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            # Between the two calls somebody may have taken it for abandoned.
            if os.fstat(fd).st_nlink:
                return fd, path
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))


def remove_abandoned() -> int:
    """Removes the objects of processes that are gone; how many."""
    removed = 0
    try:
        names = os.listdir(_FOLDER)
    except OSError:
        return 0
    for name in names:
        match = _NAME.fullmatch(name)
        if not match or _is_alive(int(match[1])):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(f"{_FOLDER}/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                # Process numbers say nothing across containers; the lock does.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(f"{_FOLDER}/{name}")
                removed += 1
            finally:
                os.close(fd)
    return removed


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def round_up(nbytes: int) -> int:
    """Eight sizes from a power of two to the next: similar calls share regions."""
    if nbytes <= _SMALLEST_BYTES:
        return _SMALLEST_BYTES
    step = (1 << ((nbytes - 1).bit_length() - 1)) // 8
    return -(-nbytes // step) * step


class PooledRegion:
    """A registered object, of one call at a time."""

    def __init__(self, shared: SharedObject, registration: Any):
        self.shared = shared
        self.registration = registration

    @property
    def nbytes(self) -> int:
        return self.shared.nbytes


class RegionPool:
    """Regions that are kept from call to call, up to max_idle_bytes.

    register, unregister, covers: the lease's. Thread-safe. What was refused
    once is not tried again before forgive(), but for a server that was away.
    """

    def __init__(self, lease: Any, max_idle_bytes: int):
        self._lease = lease
        self._max_idle_bytes = max_idle_bytes
        self._lock = threading.Lock()
        self._idle: list[PooledRegion] = []  # most lately used last
        self._refused_bytes: int | None = None
        self._refusal = ""
        self._cleaned = False

    def acquire(self, nbytes: int, timeout: Callable[[], float | None]) -> PooledRegion:
        """A region of at least nbytes, until release or drop.

        Raises SharedMemoryError (also for what the server refuses) or, if the
        server was not to be asked, errors.Error.
        """
        found = self._take_idle(nbytes)
        if found is not None:
            return found
        with self._lock:
            if self._refused_bytes is not None and nbytes >= self._refused_bytes:
                raise SharedMemoryError(self._refusal, for_good=False)
            if not self._cleaned:
                self._cleaned = True
                remove_abandoned()
        try:
            shared = self._make(round_up(nbytes))
        except SharedMemoryError as error:
            self._refuse(0 if error.for_good else nbytes, str(error))
            raise
        try:
            registration = self._lease.register_shared(shared, timeout)
        except errors.Error as error:
            shared.close()
            if error.code in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.CANCELLED,
            ):
                raise
            exhausted = error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
            self._refuse(nbytes if exhausted else 0, error.message)
            raise SharedMemoryError(error.message, for_good=not exhausted) from error
        return PooledRegion(shared, registration)

    def release(self, region: PooledRegion) -> None:
        """Keeps it for later."""
        dropped = []
        with self._lock:
            self._idle.append(region)
            while sum(each.nbytes for each in self._idle) > self._max_idle_bytes:
                dropped.append(self._idle.pop(0))
        for each in dropped:
            self.drop(each)

    def drop(self, region: PooledRegion) -> None:
        """Never uses it again; the workers may, until their call is over."""
        self._lease.unregister(region.registration)
        region.shared.close()

    def forgive(self) -> None:
        """Another server may judge otherwise."""
        with self._lock:
            self._refused_bytes = None

    def clear(self) -> None:
        """Drops what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            self.drop(each)

    def _take_idle(self, nbytes: int) -> PooledRegion | None:
        found, lost = None, []
        with self._lock:
            for region in reversed(self._idle[:]):
                if not self._lease.covers(region.registration):
                    lost.append(region)
                    self._idle.remove(region)
                elif found is None and _fits(region.nbytes, nbytes):
                    found = region
                    self._idle.remove(region)
        for each in lost:
            each.shared.close()
        return found

    def _make(self, nbytes: int) -> SharedObject:
        try:
            return SharedObject(nbytes)
        except SharedMemoryError as error:
            if error.for_good or not self._idle:
                raise
        self.clear()
        return SharedObject(nbytes)

    def _refuse(self, nbytes: int, why: str) -> None:
        with self._lock:
            if self._refused_bytes is None or nbytes < self._refused_bytes:
                self._refused_bytes, self._refusal = nbytes, why


def _fits(region_bytes: int, nbytes: int) -> bool:
    # A region may serve a call of half its size, not of less.
    return region_bytes >= nbytes and (
        region_bytes <= 2 * nbytes or region_bytes == _SMALLEST_BYTES
    )
