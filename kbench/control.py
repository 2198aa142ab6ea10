"""How the processes of a parameter-server job know of each other.

Every ps and worker runs a TensorFlow server. Beside the training, the chief
sends a sign of life through a queue on that server, and at the end how the job
ended; a server answers through a second queue. So no port beyond those of the
cluster is needed.
"""

import collections
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable

import tensorflow as tf

from kbench import errors

ALIVE, DONE, FAILED, PREEMPTED = b'alive', b'done', b'failed ', b'preempted'

# Seconds between signs of life, and without one until the other is lost.
BEAT_SECS = 2.0
LOST_SECS = 25.0
# Seconds between two words of a process that waits.
TELL_SECS = 10.0
_CALL_SECS = 10.0

_log = logging.getLogger('kbench')


class ClusterTimeout(errors.UserError):
    """Another process did not come, or is lost; its text is one line."""


class Mailbox:
    """The two queues on the server of one ps or worker.

    Args:
        address: host:port of the server.
        device: `/job:worker/task:1` of the server.
    """

    def __init__(self, address: str, device: str):
        graph = tf.Graph()
        self._boxes = {}
        with graph.as_default(), tf.device(device):
            for name in ('to_server', 'to_chief'):
                queue = tf.queue.FIFOQueue(
                    -1, [tf.string], [()], shared_name=f'kbench_{name}'
                )
                text = tf.compat.v1.placeholder(tf.string, [])
                self._boxes[name] = (
                    queue.size(),
                    queue.dequeue(),
                    text,
                    queue.enqueue(text),
                )
        config = tf.compat.v1.ConfigProto(
            # Without a filter the session waits for the whole cluster.
            device_filters=[device],
            operation_timeout_in_ms=int(1000 * _CALL_SECS),
        )
        self._session = tf.compat.v1.Session(
            f'grpc://{address}', graph=graph, config=config
        )

    def send(self, name: str, text: bytes) -> None:
        """Puts a message into `to_server` or `to_chief`."""
        _, _, placeholder, enqueue = self._boxes[name]
        self._session.run(enqueue, {placeholder: text})

    def receive(self, name: str) -> list[bytes]:
        """Takes all messages that are there; never waits for one."""
        size, dequeue, _, _ = self._boxes[name]
        count = self._session.run(size)
        return [self._session.run(dequeue) for _ in range(count)]


def device_of(name: str) -> str:
    """The device of a process by its name, `worker 1`."""
    job, index = name.split()
    return f'/job:{job}/task:{index}'


def listens(address: str) -> bool:
    """Whether somebody takes connections at host:port."""
    host, _, port = address.rpartition(':')
    try:
        socket.create_connection((host.strip('[]'), int(port)), 2).close()
    except OSError:
        return False
    return True


class Waiting:
    """Says every ten seconds for whom this process waits, until it gives up.

    Args:
        timeout_secs: when `still` raises.
    """

    def __init__(self, timeout_secs: float):
        self._timeout = timeout_secs
        self._start = time.monotonic()
        self._told = self._start

    def still(self, whom: str) -> None:
        """Says for whom; call it as often as you like.

        Raises:
            ClusterTimeout: it took too long.
        """
        now = time.monotonic()
        waited = now - self._start
        if waited > self._timeout:
            raise ClusterTimeout(
                f'gave up after {waited:.0f} s of waiting for {whom} '
                f'(--cluster_timeout_secs={self._timeout:g})'
            )
        if now - self._told >= TELL_SECS:
            self._told = now
            _log.info('waiting for %s, %.0f s so far', whom, waited)


def wait_for(
    tasks: Iterable[tuple[str, str]],
    timeout_secs: float,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Waits until all of these processes listen.

    Args:
        tasks: name and address of each.
        timeout_secs: how long.
        check: called while waiting; may raise.

    Raises:
        ClusterTimeout: naming those that did not come.
    """
    missing = dict(tasks)
    waiting = Waiting(timeout_secs)
    while True:
        missing = {n: a for n, a in missing.items() if not listens(a)}
        if not missing:
            return
        check()
        waiting.still(
            ', '.join(f'{name} at {where}' for name, where in missing.items())
        )
        time.sleep(0.2)


def wait_until_gone(
    tasks: Iterable[tuple[str, str]], timeout_secs: float
) -> None:
    """Waits until none of these processes listens any more, or long enough."""
    end = time.monotonic() + timeout_secs
    for _, address in tasks:
        while listens(address) and time.monotonic() < end:
            time.sleep(0.1)


class StartWatch:
    """Says for whom this process waits while TensorFlow waits for them.

    Args:
        tasks: name and address of the others.
        timeout_secs: how long they may take.
    """

    def __init__(self, tasks: Iterable[tuple[str, str]], timeout_secs: float):
        self._ended = threading.Event()
        self._tasks, self._timeout = list(tasks), timeout_secs
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        """All have met."""
        self._ended.set()

    def _watch(self):
        start = time.monotonic()
        while not self._ended.wait(TELL_SECS):
            missing = ', '.join(
                f'{name} at {where}'
                for name, where in self._tasks
                if not listens(where)
            )
            waited = time.monotonic() - start
            if not missing:
                continue
            if waited > self._timeout:
                _log.error(
                    'error: gave up after %.0f s of waiting for %s '
                    '(--cluster_timeout_secs=%g)',
                    waited,
                    missing,
                    self._timeout,
                )
                # TensorFlow waits in native code: no exception reaches it.
                os._exit(1)
            _log.info('waiting for %s, %.0f s so far', missing, waited)


class Monitor:
    """The chief's threads that keep in touch with every ps and worker.

    Args:
        tasks: name and address of each.
        on_lost: told the name of a process that no longer answers.
        on_back: told the name of one that answers again.
        on_preempted: told the name of one that is about to be ended.
    """

    def __init__(
        self,
        tasks: Iterable[tuple[str, str]],
        *,
        on_lost: Callable[[str], None],
        on_back: Callable[[str], None],
        on_preempted: Callable[[str], None],
    ):
        self._on = (on_lost, on_back, on_preempted)
        self._last_word = None
        self._ended = threading.Event()
        self._told = collections.Counter()
        self._threads = [
            threading.Thread(target=self._keep, args=task, daemon=True)
            for task in tasks
        ]
        for thread in self._threads:
            thread.start()

    def end(self, word: bytes) -> None:
        """Tells everyone how the job ended, as far as they answer."""
        self._last_word = word
        self._ended.set()
        until = time.monotonic() + _CALL_SECS
        for thread in self._threads:
            # What notices a loss may be one of them.
            if thread is threading.current_thread():
                continue
            thread.join(max(0.0, until - time.monotonic()))

    def _keep(self, name: str, address: str) -> None:
        on_lost, on_back, on_preempted = self._on
        box, heard, lost = None, time.monotonic(), False
        while True:
            # One last message is sent after the end.
            last = self._ended.is_set()
            try:
                box = box or Mailbox(address, device_of(name))
                box.send('to_server', self._last_word if last else ALIVE)
                if PREEMPTED in box.receive('to_chief'):
                    on_preempted(name)
                heard = time.monotonic()
                if lost:
                    on_back(name)
                lost = False
            except (tf.errors.OpError, RuntimeError):
                box = None
                if not lost and time.monotonic() - heard > LOST_SECS:
                    lost = True
                    on_lost(name)
            if last:
                return
            self._ended.wait(BEAT_SECS)


class Listener:
    """The side of a ps or worker: waits for the word that ends it.

    Args:
        address: of its own server.
        name: of this process.
        timeout_secs: how long to wait for the first sign of the chief.

    Attributes:
        connected: whether the chief has given a sign.
    """

    def __init__(self, address: str, name: str, timeout_secs: float):
        self.connected = False
        self._box = Mailbox(address, device_of(name))
        self._timeout = timeout_secs

    def tell(self, text: bytes) -> None:
        """Sends a message to the chief."""
        with contextlib.suppress(tf.errors.OpError):
            self._box.send('to_chief', text)

    def listen(self, chief: str, check: Callable[[], None]) -> None:
        """Returns when the chief says that the job is done.

        Args:
            chief: who it is, for messages.
            check: called every now and then; may raise.

        Raises:
            ClusterTimeout: the chief did not come, is lost, or failed.
        """
        waiting, heard = Waiting(self._timeout), None
        while True:
            for text in self._box.receive('to_server'):
                if text == DONE:
                    return
                if text.startswith(FAILED):
                    reason = text.removeprefix(FAILED).decode()
                    raise ClusterTimeout(f'{chief} ended the job: {reason}')
                if heard is None:
                    _log.info('connected to %s', chief)
                    self.connected = True
                heard = time.monotonic()
            check()
            if heard is None:
                waiting.still(chief)
            elif time.monotonic() - heard > LOST_SECS:
                raise ClusterTimeout(
                    f'{chief} is lost: no sign of it for {LOST_SECS:.0f} s'
                )
            time.sleep(0.3)
