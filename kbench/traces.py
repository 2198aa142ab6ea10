"""Profiles of steps: Chrome traces, costs by operation type, graphs.

TensorFlow 2.21 writes a profile as an XSpace: planes (the host, each GPU) of
lines (threads, streams) of events. What viewers of Chrome traces and people
read is made from that here.
"""

import contextlib
import glob
import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from kbench import errors, files

# `name of the node:type of the operation`.
_OPERATION = re.compile(r'^([^:\s][^:]*):([A-Za-z_]\w*)$')
# Waits of a thread pool, which have no length: many, and nobody reads them.
_NOISE = 'ThreadpoolListener::'
_CHROME = ('.json', '.json.gz')


class Cost(NamedTuple):
    """What the operations of one type cost.

    Attributes:
        kind: type of the operation, such as `Conv2D`.
        count: how often one ran.
        time_us: microseconds of all of them, without what ran inside.
    """

    kind: str
    count: int
    time_us: float


def is_chrome(path: str) -> bool:
    """Whether a trace of this name is one file for Chrome."""
    return path.endswith(_CHROME)


def _stats(plane, event) -> dict[str, Any]:
    """What is noted at an event, by name."""
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof('value')
        if kind is None:
            continue
        value = getattr(stat, kind)
        if kind == 'ref_value':
            value = plane.stat_metadata[value].name
        elif kind == 'bytes_value':
            continue
        found[plane.stat_metadata[stat.metadata_id].name] = value
    return found


def _name_of(plane, event) -> str:
    return plane.event_metadata[event.metadata_id].name


def _chrome_event(plane, line, event):
    name = _name_of(plane, event)
    arguments = {
        # Numbers of 64 bits are not exact in the viewer's JavaScript, and
        # some are not finite, which JSON cannot say.
        key: str(value)
        for key, value in _stats(plane, event).items()
        if not key.startswith('_')
    }
    operation = _OPERATION.match(name)
    if operation:
        arguments['op'], name = operation.groups()
    start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
    found = {'ph': 'X', 'name': name, 'ts': start}
    found['dur'] = event.duration_ps / 1e6
    return found | ({'args': arguments} if arguments else {})


def to_chrome(space: xplane_pb2.XSpace) -> dict[str, Any]:
    """Makes a Chrome trace, for chrome://tracing or ui.perfetto.dev.

    Args:
        space: a profile.

    Returns:
        `traceEvents`: a process per plane, a thread per line, a complete
        event (`X`) per event; times in microseconds from the first event.
        An operation has its type as its name, and its node as `args.op`.
    """
    found = []

    def describe(what, name, pid, **place):
        found.append(
            {'ph': 'M', 'name': what, 'pid': pid, 'args': {'name': name}}
            | place
        )

    for pid, plane in enumerate(space.planes, 1):
        if not plane.lines:
            continue
        describe('process_name', plane.name, pid)
        for tid, line in enumerate(plane.lines, 1):
            name = line.display_name or line.name
            describe('thread_name', name, pid, tid=tid)
            found += [
                _chrome_event(plane, line, event) | {'pid': pid, 'tid': tid}
                for event in line.events
                if not _name_of(plane, event).startswith(_NOISE)
            ]
    first = min((one['ts'] for one in found if 'ts' in one), default=0.0)
    for one in found:
        if 'ts' in one:
            one['ts'] = round(one['ts'] - first, 6)
    return {'displayTimeUnit': 'ms', 'traceEvents': found}


def _kind_of(plane, event) -> str | None:
    """Type of the operation that an event is of; None: of none."""
    name = _name_of(plane, event)
    if plane.name.startswith('/device:'):
        # A kernel of a GPU tells which operation started it.
        name = str(_stats(plane, event).get('tf_op', ''))
    operation = _OPERATION.match(name)
    return operation.group(2) if operation else None


def _own_times(plane, line) -> Iterator[tuple[str, int]]:
    """Type and own time, in picoseconds, of the operations of one line."""
    events = []
    for event in line.events:
        kind = _kind_of(plane, event)
        if kind is not None:
            events.append((event.offset_ps, -event.duration_ps, kind))
    events.sort()
    own = [-duration for _, duration, _ in events]
    around = []
    for number, (start, duration, _) in enumerate(events):
        while around and around[-1][0] <= start:
            around.pop()
        if around:
            own[around[-1][1]] += duration
        around.append((start - duration, number))
    for (_, _, kind), time in zip(events, own, strict=True):
        yield kind, max(0, time)


def op_costs(space: xplane_pb2.XSpace) -> list[Cost]:
    """Adds up the time of operations by their type, the dearest first.

    Args:
        space: a profile. Where GPUs have kernels in it, their time counts
            and not that of starting them.
    """
    planes = [
        plane
        for plane in space.planes
        if plane.name.startswith('/device:GPU')
        and any(
            _kind_of(plane, event)
            for line in plane.lines
            for event in line.events
        )
    ] or [plane for plane in space.planes if plane.name == '/host:CPU']
    counts, times = {}, {}
    for plane in planes:
        for line in plane.lines:
            for kind, time in _own_times(plane, line):
                counts[kind] = counts.get(kind, 0) + 1
                times[kind] = times.get(kind, 0) + time
    return sorted(
        (Cost(kind, counts[kind], times[kind] / 1e6) for kind in times),
        key=lambda cost: -cost.time_us,
    )


def cost_table(costs: Sequence[Cost], num_steps: int) -> str:
    """A table of costs for people.

    Args:
        costs: from `op_costs`.
        num_steps: steps that they are of.
    """
    total = sum(cost.time_us for cost in costs) or 1.0
    lines = [
        f'operations of {num_steps} steps by their type; times of all threads '
        'added up',
        f'{"operation":<40} {"runs/step":>10} {"ms/step":>10} {"share":>7} '
        f'{"sum":>7}',
    ]
    so_far = 0.0
    for cost in costs:
        so_far += cost.time_us
        lines.append(
            f'{cost.kind:<40} {cost.count / num_steps:>10.1f} '
            f'{cost.time_us / num_steps / 1e3:>10.3f} '
            f'{cost.time_us / total:>7.1%} {so_far / total:>7.1%}'
        )
    return '\n'.join(lines) + '\n'


def _read(folder) -> xplane_pb2.XSpace:
    space = xplane_pb2.XSpace()
    found = glob.glob(f'{glob.escape(folder)}/**/*.xplane.pb', recursive=True)
    if not found:
        raise errors.UserError('the profiler of TensorFlow wrote no profile')
    with open(max(found, key=os.path.getmtime), 'rb') as file:
        space.ParseFromString(file.read())
    return space


def _write(name, path, data):
    try:
        files.replace(path, data)
    except OSError as error:
        raise errors.UserError(
            f'--{name}={path} cannot be written: {error.strerror}'
        ) from None


@contextlib.contextmanager
def tracing(
    trace_file: str | None, tfprof_file: str | None, num_steps: int
) -> Iterator[None]:
    """Profiles what runs in it and writes what was asked for at its end.

    Args:
        trace_file: a name that ends in .json or .json.gz gets a Chrome
            trace; any other is a folder for TensorBoard's profile plugin.
        tfprof_file: gets the costs by operation type, as text.
        num_steps: steps that run in it.

    Raises:
        UserError: a file cannot be written, or another profile is under way.
    """
    keeps = trace_file is not None and not is_chrome(trace_file)
    folder = trace_file if keeps else tempfile.mkdtemp(prefix='kbench_trace')
    try:
        try:
            tf.profiler.experimental.start(folder)
        except tf.errors.OpError as error:
            raise errors.UserError(
                f'the steps cannot be profiled: {error.message}'
            ) from None
        try:
            yield
        finally:
            tf.profiler.experimental.stop()
        if not keeps or tfprof_file is not None:
            space = _read(folder)
        if trace_file is not None and not keeps:
            data = json.dumps(to_chrome(space)).encode()
            packed = trace_file.endswith('.gz')
            _write(
                'trace_file',
                trace_file,
                gzip.compress(data) if packed else data,
            )
        if tfprof_file is not None:
            table = cost_table(op_costs(space), num_steps)
            _write('tfprof_file', tfprof_file, table.encode())
    finally:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)


def with_graph_file(step: Callable, path: str) -> Callable:
    """Makes a step that writes its graph when it first runs.

    Args:
        step: a tf.function, or what wraps one as `__wrapped__`.
        path: gets the GraphDef, as text where it ends in `txt`.
    """
    function, written = step, False
    while not hasattr(function, 'get_concrete_function'):
        function = function.__wrapped__

    def first_writes(batch):
        nonlocal written
        if not written:
            written = True
            graph = function.get_concrete_function(batch).graph.as_graph_def()
            data = graph.SerializeToString()
            if path.endswith('txt'):
                data = text_format.MessageToString(graph).encode()
            _write('graph_file', path, data)
        return step(batch)

    return first_writes
