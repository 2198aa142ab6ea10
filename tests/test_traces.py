"""Profiles of steps: Chrome traces, costs by type, graphs."""

import gzip
import json
import os

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import kbench
from kbench import traces
from kbench.benchmark import tracing

US = 1_000_000  # picoseconds


def _space(planes):
    """A profile: plane name to line name to (name, start us, length us)."""
    space = xplane_pb2.XSpace()
    for plane_name, lines in planes.items():
        plane = space.planes.add(name=plane_name)
        plane.stat_metadata[1].name = 'tf_op'
        plane.stat_metadata[2].name = 'bytes'
        plane.stat_metadata[3].name = '_hidden'
        for number, (line_name, events) in enumerate(lines.items()):
            line = plane.lines.add(id=-(2**60) - number, name=line_name)
            line.timestamp_ns = 5_000
            for name, start, length, *stats in events:
                key = len(plane.event_metadata) + 1
                plane.event_metadata[key].name = name
                event = line.events.add(metadata_id=key)
                event.offset_ps = int(start * US)
                event.duration_ps = int(length * US)
                event.stats.add(metadata_id=3, int64_value=9)
                for text in stats:
                    event.stats.add(metadata_id=1, str_value=text)
                    event.stats.add(metadata_id=2, uint64_value=2**63)
    return space


HOST = {
    '/host:CPU': {
        'python': [('step', 10, 90)],
        'worker': [
            ('a/conv:Conv2D', 20, 30),
            ('ThreadpoolListener::Record', 21, 0),
            ('b/conv:Conv2D', 60, 10),
            ('cond:If', 75, 20),
            ('cond/relu:Relu', 80, 5),
            ('ExecutorState::Process', 96, 1),
        ],
    },
    'Task Environment': {},
}


def test_a_chrome_trace():
    trace = traces.to_chrome(_space(HOST))
    json.dumps(trace, allow_nan=False)
    events = trace['traceEvents']
    assert [e['args']['name'] for e in events if e['ph'] == 'M'] == [
        *['/host:CPU', 'python', 'worker'],
    ]
    complete = [e for e in events if e['ph'] == 'X']
    assert complete[0] == {
        **{'ph': 'X', 'name': 'step', 'ts': 0.0, 'dur': 90.0},
        **{'pid': 1, 'tid': 1},
    }
    assert complete[1] == {
        **{'ph': 'X', 'name': 'Conv2D', 'ts': 10.0, 'dur': 30.0},
        **{'pid': 1, 'tid': 2, 'args': {'op': 'a/conv'}},
    }
    assert not any('Threadpool' in e['name'] for e in complete)


def test_costs_of_the_host():
    assert traces.op_costs(_space(HOST)) == [
        ('Conv2D', 2, 40.0),
        ('If', 1, 15.0),
        ('Relu', 1, 5.0),
    ]


def test_costs_are_those_of_the_gpu_where_there_is_one():
    gpu = {
        '/device:GPU:0': {
            'Stream #1': [
                ('ampere_sgemm', 0, 8, 'fc/matmul:MatMul'),
                ('memcpy', 9, 4),
            ]
        }
    }
    space = _space(HOST | gpu)
    assert traces.op_costs(space) == [('MatMul', 1, 8.0)]
    args = [
        e['args']
        for e in traces.to_chrome(space)['traceEvents']
        if e['name'] == 'ampere_sgemm'
    ]
    assert args == [{'tf_op': 'fc/matmul:MatMul', 'bytes': str(2**63)}]


def test_the_table_of_costs():
    table = traces.cost_table(
        [traces.Cost('Conv2D', 6, 3000.0), traces.Cost('Relu', 3, 1000.0)], 3
    )
    rows = [line.split() for line in table.splitlines()[2:]]
    assert rows == [
        ['Conv2D', '2.0', '1.000', '75.0%', '75.0%'],
        ['Relu', '1.0', '0.333', '25.0%', '100.0%'],
    ]


def _run(**values):
    defaults = {
        'model': 'lenet',
        'device': 'cpu',
        'num_batches': 2,
        'num_warmup_batches': 0,
        'batch_size': 4,
        'learning_rate': 0.01,
    }
    return kbench.run(**(defaults | values))


def _events(path):
    with open(path, 'rb') as file:
        data = file.read()
    if path.endswith('.gz'):
        data = gzip.decompress(data)
    return json.loads(data)['traceEvents']


@pytest.mark.parametrize('name', ['new/trace.json', 'trace.json.gz'])
@pytest.mark.parametrize('forward_only', [False, True])
def test_the_trace_of_a_run(name, forward_only, tmp_path):
    path, table = str(tmp_path / name), str(tmp_path / 'cost' / 'table')
    result = _run(
        trace_file=path,
        tfprof_file=table,
        forward_only=forward_only,
        num_gpus=2,
        variable_update='replicated',
    )
    assert len(result.losses) == 2
    if not forward_only:
        assert result.step == tracing.TRACED_STEPS + 2
    events = _events(path)
    nodes = {e.get('args', {}).get('op') for e in events if e['ph'] == 'X'}
    assert any(node and 'conv' in node for node in nodes)
    # Every step of both devices.
    products = [e for e in events if 'Conv2D' in e['name']]
    per_step = 2 * (2 if forward_only else 5)
    assert len(products) == tracing.TRACED_STEPS * per_step
    assert all(e['ts'] >= 0 and e['dur'] > 0 for e in products)
    with open(table, encoding='utf-8') as file:
        assert 'Conv2D' in file.read()


def test_a_profile_for_tensorboard(tmp_path):
    _run(trace_file=str(tmp_path / 'profile'))
    files = [f for _, _, names in os.walk(tmp_path) for f in names]
    assert len(files) == 1 and files[0].endswith('.xplane.pb')
    assert (tmp_path / 'profile' / 'plugins' / 'profile').is_dir()


def test_tracing_changes_no_number(tmp_path):
    """The traced steps train as if they had been timed."""
    count = tracing.TRACED_STEPS
    plain = _run(num_batches=2 + count)
    traced = _run(trace_file=str(tmp_path / 'trace.json'))
    assert traced.losses == plain.losses[count:]


@pytest.mark.parametrize('steps', [1, 2, 6])
def test_epochs_bound_the_steps(steps, tmp_path):
    path = str(tmp_path / 'trace.json')
    result = _run(
        num_epochs=steps * 4 / 50_000,
        num_batches=100,
        data_name='cifar10',
        trace_file=path,
    )
    assert result.step == steps
    assert len(_events(path)) > 10


@pytest.mark.parametrize('num_gpus', [1, 2])
def test_the_graph_of_a_run(num_gpus, tmp_path):
    text, binary = (str(tmp_path / name) for name in ('g.pbtxt', 'new/g.pb'))
    results = [
        _run(
            graph_file=path,
            num_gpus=num_gpus,
            variable_update='replicated',
            optimizer='momentum',
        )
        for path in (text, binary)
    ]
    assert results[0].losses == results[1].losses
    with open(text, encoding='utf-8') as file:
        graph = text_format.Parse(file.read(), tf.compat.v1.GraphDef())
    kinds = [node.op for node in graph.node]
    assert kinds.count('Conv2D') == 2 * num_gpus
    assert any(kind.startswith('ResourceApply') for kind in kinds)
    other = tf.compat.v1.GraphDef()
    with open(binary, 'rb') as file:
        other.ParseFromString(file.read())
    assert len(other.node) == len(graph.node)


@pytest.mark.parametrize('name', ['trace_file', 'tfprof_file', 'graph_file'])
def test_unwritable_files_are_refused_early(name, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(kbench.UserError, match=f'--{name}='):
        _run(**{name: str(tmp_path / 'file' / 'x.json')})
    with pytest.raises(kbench.UserError, match='--eval'):
        kbench.make_params(
            eval=True, train_dir='x', **{name: str(tmp_path / 'x')}
        )
