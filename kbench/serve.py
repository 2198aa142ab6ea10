"""A ps or worker of a parameter-server job: serves until the chief ends it.

A worker that is the chief as well starts its own server, in a child process
that ends with it.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from kbench import cluster as cluster_lib
from kbench import errors, reporting, runtime

# Exit status of a process that a SIGTERM ended in good order: 128 + 15.
PREEMPTED_STATUS = 143
# Seconds that a parameter server waits for the chief to save before it ends.
_SAVE_SECS = 25.0

_log = logging.getLogger('kbench')


def _server_config(num_cpus: int, gpus: str | None) -> Any:
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(device_count={'CPU': num_cpus})
    if gpus is None:
        config.device_count['GPU'] = 0
    else:
        config.gpu_options.visible_device_list = gpus
        config.gpu_options.allow_growth = True
    return config


def _start_server(cluster, num_cpus, gpus):
    import tensorflow as tf

    try:
        return tf.distribute.Server(
            cluster.spec(),
            job_name=cluster.job,
            task_index=cluster.index,
            protocol='grpc',
            config=_server_config(num_cpus, gpus),
        )
    except tf.errors.OpError as error:
        raise errors.UserError(
            f'{cluster.name} cannot serve at {cluster.address}: '
            f'{error.message.splitlines()[0]}'
        ) from None


class _Preemption:
    """What SIGTERM asks for: a worker goes at once, a ps after a save."""

    def __init__(self, cluster, listener):
        self.since = None
        self._told = False
        self._cluster, self._listener = cluster, listener
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_):
        self.since = self.since or time.monotonic()

    def check(self):
        """Ends the process when that is due."""
        from kbench import control

        if self.since is None:
            return
        name = self._cluster.name
        waited = time.monotonic() - self.since
        saves = self._cluster.job == cluster_lib.PS and self._listener.connected
        if not saves or waited > _SAVE_SECS:
            _log.warning('%s is preempted', name)
            raise SystemExit(PREEMPTED_STATUS)
        if not self._told:
            self._told = True
            _log.warning('%s is preempted: the chief saves first', name)
            self._listener.tell(control.PREEMPTED)


# Whether this process took part in a job: it has to `leave` then.
joined = False


def serve(
    cluster: cluster_lib.Cluster,
    *,
    num_devices: int,
    kind: str | None,
    gpus: str,
    timeout_secs: float,
) -> None:
    """Serves as the process that the cluster says; does not return early.

    Args:
        cluster: the job; this process is a ps or a worker.
        num_devices: devices that compute; of CPUs, so many logical ones.
        kind: cpu, gpu, or None for gpu where there is one.
        gpus: which GPUs, `0,1`, empty for all.
        timeout_secs: how long to wait for the chief.

    Raises:
        UserError: the port is taken; the chief did not come, is lost, or
            failed.
        SystemExit: with PREEMPTED_STATUS, after a SIGTERM.
    """
    tf = runtime.import_tensorflow({})
    from kbench import control

    on_gpu = kind != 'cpu' and bool(tf.config.list_physical_devices('GPU'))
    if kind == 'gpu' and not on_gpu:
        raise errors.UserError(
            f'--device=gpu: {cluster.name} has no GPU that TensorFlow can use'
        )
    server = _start_server(
        cluster,
        1 if on_gpu or cluster.job == cluster_lib.PS else num_devices,
        gpus if on_gpu and cluster.job != cluster_lib.PS else None,
    )
    listener = control.Listener(cluster.address, cluster.name, timeout_secs)
    preemption = _Preemption(cluster, listener)
    chief = 'chief' if cluster.chief else 'worker 0, which is the chief'
    try:
        listener.listen(chief, preemption.check)
    except errors.UserError:
        if preemption.since is not None:
            raise SystemExit(PREEMPTED_STATUS) from None
        raise
    _log.info('%s: the job is done', cluster.name)
    del server


# Called with the reason when a thread other than the main one ends the process.
before_leaving: list[Callable[[str], None]] = []


def leave(status: int, reason: str | None = None) -> None:
    """Ends this process at once.

    Args:
        status: of the process.
        reason: why, where nothing is raised that would say so.

    TensorFlow's servers and remote contexts have no orderly end: their
    destructors wait for peers that are gone.
    """
    if reason is not None:
        for tell in before_leaving:
            tell(reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Child:
    """The server of a worker that is the chief as well.

    It is started again when it dies, and ends when this process ends.
    """

    def __init__(self, cluster: cluster_lib.Cluster, **settings: Any):
        text = json.dumps({'cluster': cluster.__dict__, 'settings': settings})
        code = 'from kbench import serve; serve.main()'
        self._command = [sys.executable, '-c', code, text]
        self._name = cluster.name
        self._ended = False
        self._start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _start(self):
        # The child ends when this pipe does: whatever ends this process.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=sys.stderr,
        )

    def _watch(self):
        while True:
            status = self._process.wait()
            if self._ended:
                return
            _log.warning(
                'the server of %s ended with status %s: starting it again',
                self._name,
                status,
            )
            self._start()

    def let_end(self) -> None:
        """Its end is no surprise from now on: it is not started again."""
        self._ended = True

    def end(self) -> None:
        """Gives the child time to end by itself, then ends it."""
        self.let_end()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _end_with_parent():
    sys.stdin.buffer.read()
    leave(1)


def main() -> None:
    """The child process of `Child`."""
    # Ctrl-C on a terminal reaches the child too; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runtime.silence_native_code()
    reporting.route_logging()
    logging.getLogger('kbench').setLevel(logging.WARNING)
    told = json.loads(sys.argv[1])
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in told['cluster'].items()
    }
    try:
        serve(cluster_lib.Cluster(**fields), **told['settings'])
    except errors.UserError as error:
        reporting.error(error)
        leave(1)
    except SystemExit as ended:
        leave(ended.code)
    leave(0)
