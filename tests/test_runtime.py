"""The process around a run."""

import os
import platform
import subprocess
import sys

import pytest

_COUNT_HEAPS = """
import ctypes, threading
from kbench import runtime
runtime.limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
meeting = threading.Barrier(6)
def allocate():
    # All at once, so that no thread takes over the heap of another.
    meeting.wait()
    libc.malloc(ctypes.c_size_t(10000))
    meeting.wait()
threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b'w'))
libc.malloc_info(0, stream)
libc.fflush(stream)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != 'glibc', reason='a matter of glibc'
)
@pytest.mark.parametrize('limit', [None, '5'])
def test_threads_share_heaps(limit):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != 'MALLOC_ARENA_MAX'
    }
    if limit is not None:
        environment['MALLOC_ARENA_MAX'] = limit
    done = subprocess.run(
        [sys.executable, '-c', _COUNT_HEAPS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = limit or max(1, len(os.sched_getaffinity(0)) // 2)
    assert done.stdout.count('<heap nr=') == min(int(expected), 7)
