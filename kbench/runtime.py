"""The process around a run: environment, TensorFlow's start, devices.

Importing this module imports no TensorFlow: what has to happen before that
happens here.
"""

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kbench import errors

_LOG_LEVEL = 'TF_CPP_MIN_LOG_LEVEL'


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drops what native code writes to standard error, unless it fails.

    TensorFlow writes before its own log level holds.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            file.seek(0)
            os.write(kept, file.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def silence_native_code() -> None:
    """Keeps native code off standard error for the rest of the process.

    In a cluster it reports every connection there. Python keeps writing to
    standard error. A `TF_CPP_MIN_LOG_LEVEL` below 3 in the environment asks
    for the chatter, and leaves everything as it is.
    """
    if chatter_wanted() or not _owns_stderr():
        return
    sys.stderr.flush()
    kept = os.dup(2)
    # Children write there, native code of this process nowhere.
    sys.stderr = os.fdopen(kept, 'w', buffering=1, errors='backslashreplace')
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def chatter_wanted() -> bool:
    """Whether the user asked for what TensorFlow logs."""
    return os.environ.get(_LOG_LEVEL, '3') != '3'


def _owns_stderr() -> bool:
    try:
        return sys.stderr.fileno() == 2
    except (OSError, AttributeError):
        return False


# Of glibc's malloc.h.
_M_ARENA_MAX = -8
_PROCESSORS_PER_ARENA = 2


def limit_arenas() -> None:
    """Lets glibc's threads share heaps, which keeps the memory flat.

    With a heap for each thread, what the input pipeline frees in one is
    missing in another: over 20 epochs of photographs its memory grew by a
    quarter. A `MALLOC_ARENA_MAX` in the environment wins.
    """
    if 'MALLOC_ARENA_MAX' in os.environ or platform.libc_ver()[0] != 'glibc':
        return
    count = max(1, len(os.sched_getaffinity(0)) // _PROCESSORS_PER_ARENA)
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, count)


def import_tensorflow(environment: Mapping[str, str]) -> Any:
    """Imports TensorFlow, without its chatter unless that is asked for.

    Args:
        environment: variables to set before.

    Returns:
        The module. A `TF_CPP_MIN_LOG_LEVEL` in the environment of the
        process is the way to ask for the chatter.
    """
    limit_arenas()
    os.environ.update(environment)
    chatter = chatter_wanted()
    os.environ.setdefault(_LOG_LEVEL, '3')
    # A thread pool of its own per GPU keeps input from delaying launches.
    os.environ.setdefault('TF_GPU_THREAD_MODE', 'gpu_private')
    with contextlib.nullcontext() if chatter else _quiet():
        import tensorflow as tf

        tf.config.list_physical_devices()
    if not chatter:
        tf.get_logger().setLevel('ERROR')
    return tf


INTERRUPTED = 'interrupted'
_stop_reasons: list[str] = []


def request_stop(reason: str) -> None:
    """Asks a running training to save and to end after its step."""
    _stop_reasons.append(reason)


def stop_requested() -> str | None:
    """Why the training should end now, or None."""
    return _stop_reasons[0] if _stop_reasons else None


def catch_sigterm() -> None:
    """Lets SIGTERM ask for a stop, if this is the main thread.

    TensorFlow's collectives catch the signal as they start, so this is
    called again after that.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGTERM, lambda *_: request_stop('SIGTERM received')
        )


@contextlib.contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM ask for a stop while it lasts, in the main thread."""
    _stop_reasons.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    catch_sigterm()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stopping_on_ctrl_c() -> Iterator[None]:
    """Lets the first Ctrl-C ask for a stop, in the main thread.

    The second one ends the process as everywhere else: what a stop waits
    for may never come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(*_):
        signal.signal(signal.SIGINT, before)
        request_stop(INTERRUPTED)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def set_threads(
    intra_op: int | None, inter_op: int, automatic: int = 0
) -> None:
    """Sets the sizes of TensorFlow's thread pools; 0 leaves the choice to it.

    Args:
        intra_op: threads within an operation; None = `automatic`, unless
            TensorFlow runs already.
        inter_op: threads across operations.
        automatic: what suits the run.

    Raises:
        UserError: TensorFlow runs already, with other sizes.
    """
    import tensorflow as tf

    threading = tf.config.threading
    for name, wanted, get, put in (
        (
            'num_intra_threads',
            automatic if intra_op is None else intra_op,
            threading.get_intra_op_parallelism_threads,
            threading.set_intra_op_parallelism_threads,
        ),
        (
            'num_inter_threads',
            inter_op,
            threading.get_inter_op_parallelism_threads,
            threading.set_inter_op_parallelism_threads,
        ),
    ):
        if get() == wanted:
            continue
        try:
            put(wanted)
        except RuntimeError:
            if name == 'num_intra_threads' and intra_op is None:
                continue
            raise errors.UserError(
                f'--{name}={wanted} comes too late: TensorFlow runs in this '
                f'process already, with {get()}'
            ) from None


def _gpu_memory_mib(index: int) -> int:
    text = subprocess.run(
        [
            'nvidia-smi',
            '--query-gpu=memory.total',
            '--format=csv,noheader,nounits',
            f'--id={index}',
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return int(text)


def _set_up_gpus(gpus, count, indices, memory_fraction):
    import tensorflow as tf

    chosen = indices[:count] if indices else list(range(count))
    missing = [index for index in chosen if index >= len(gpus)]
    if missing:
        name = 'gpu_indices' if indices else 'num_gpus'
        value = ','.join(map(str, indices)) if indices else count
        raise errors.UserError(
            f'--{name}={value} asks for more than this machine has: '
            f'{len(gpus)} GPUs'
        )
    wanted = [gpus[index] for index in chosen]
    try:
        tf.config.set_visible_devices(wanted, 'GPU')
    except RuntimeError:
        # TensorFlow runs already: the first ones that it sees must do.
        if tf.config.get_visible_devices('GPU')[:count] != wanted:
            raise errors.UserError(
                f'GPUs {chosen} come too late: TensorFlow runs in this '
                'process already, with others'
            ) from None
        return [f'/gpu:{number}' for number in range(count)]
    if memory_fraction:
        for index in chosen:
            limit = int(memory_fraction * _gpu_memory_mib(index))
            tf.config.set_logical_device_configuration(
                gpus[index],
                [tf.config.LogicalDeviceConfiguration(memory_limit=limit)],
            )
    return [f'/gpu:{number}' for number in range(count)]


def _set_up_cpus(count, start):
    import tensorflow as tf

    cpu = tf.config.list_physical_devices('CPU')[0]
    if count > 1:
        with contextlib.suppress(RuntimeError):
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * count
            )
    found = len(tf.config.list_logical_devices('CPU')) if start else count
    if found < count:
        raise errors.UserError(
            f'--num_gpus={count} comes too late: TensorFlow runs in this '
            f'process already, with {found} logical CPU devices'
        )
    return [f'/cpu:{number}' for number in range(count)]


def set_up_devices(
    kind: str | None,
    count: int,
    gpu_indices: Sequence[int] = (),
    gpu_memory_fraction: float = 0.0,
    start: bool = True,
) -> list[str]:
    """Makes the compute devices of this process.

    Args:
        kind: `cpu`, `gpu`, or None for gpu where there is one.
        count: how many; of CPUs, so many logical ones.
        gpu_indices: which physical GPUs, in this order; empty: the first.
        gpu_memory_fraction: of each GPU's memory; 0: all of it.
        start: whether TensorFlow's runtime may start here, to see that the
            devices are there.

    Returns:
        Device names such as `/gpu:0`.

    Raises:
        UserError: there are not so many.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices('GPU')
    if kind == 'gpu' and not gpus:
        raise errors.UserError(
            '--device=gpu: this machine has no GPU that TensorFlow can use; '
            'legal here is --device=cpu'
        )
    if kind == 'gpu' or (kind is None and gpus):
        return _set_up_gpus(gpus, count, list(gpu_indices), gpu_memory_fraction)
    return _set_up_cpus(count, start)


def check_writable(name: str, directory: str) -> None:
    """Makes a folder and checks that files can be written there.

    Args:
        name: of the parameter that names it.
        directory: the folder.

    Raises:
        UserError: it cannot be made, or not be written.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise errors.UserError(
            f'--{name}={directory} cannot be written: {error.strerror}'
        ) from None
