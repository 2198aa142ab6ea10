"""all_reduce_spec: grammar, what it becomes, and sums."""

import numpy as np
import pytest
import tensorflow as tf

from kbench import collectives
from kbench.collectives import Range

_SUM = tf.distribute.ReduceOp.SUM


@pytest.mark.parametrize(
    ('spec', 'wanted'),
    [
        ('nccl', [Range('nccl')]),
        ('pscpu#2', [Range('pscpu', 2)]),
        ('nccl/xring', [Range('nccl/xring')]),
        ('nccl#2/xring#3', [Range('nccl/xring', 3)]),
        ('pscpu:32k:xring', [Range('pscpu', 1, 32768), Range('xring')]),
        (
            'psgpu#4:2k:pscpu:4M:nccl',
            [
                Range('psgpu', 4, 2048),
                Range('pscpu', 1, 4 << 20),
                Range('nccl'),
            ],
        ),
        ('pscpu:100:xring', [Range('pscpu', 1, 100), Range('xring')]),
    ],
)
def test_grammar(spec, wanted):
    assert list(collectives.parse(spec)) == wanted


@pytest.mark.parametrize(
    ('spec', 'wanted'),
    [
        ('', 'it takes'),
        ('pscpu:', 'it takes'),
        ('pscpu:32k', 'it takes'),
        ('ring', "'ring' is none of"),
        ('xring/nccl', 'is none of'),
        ('pscpu:32x:xring', "'32x' is no limit"),
        ('pscpu:0:xring', 'is no limit'),
        ('pscpu:4M:xring:32k:nccl', 'must rise'),
        ('pscpu#0', 'no shard'),
        ('pscpu#x', 'is no alg'),
    ],
)
def test_what_is_no_spec(spec, wanted):
    with pytest.raises(collectives.SpecError, match=wanted):
        collectives.parse(spec)


@pytest.mark.parametrize('spec', ['nccl', 'psgpu', 'pscpu:2k:nccl/rechd'])
def test_what_needs_gpus_is_refused_on_cpus(spec):
    with pytest.raises(collectives.SpecError, match='needs GPUs'):
        collectives.create(spec, ['/cpu:0', '/cpu:1'])


@pytest.mark.parametrize('spec', ['xring', 'pscpu:2k:hierarchical_copy'])
def test_what_needs_even_devices_is_refused_on_three(spec, devices):
    with pytest.raises(collectives.SpecError, match='an even number'):
        collectives.create(spec, devices(3))


@pytest.mark.parametrize(
    ('spec', 'count'),
    [
        (None, 3),
        ('pscpu', 2),
        ('xring', 2),
        ('rechd', 4),
        ('hierarchical_copy', 2),
        ('collective', 3),
        ('pscpu/pscpu', 2),
        ('pscpu#3', 3),
        ('pscpu:32:xring', 2),
        ('xring#2:16:pscpu#5:40:hierarchical_copy', 4),
    ],
)
def test_sums(spec, count, devices):
    """Of tensors on all sides of the limits, one element to twenty."""
    strategy = tf.distribute.MirroredStrategy(
        devices(count),
        cross_device_ops=collectives.create(spec, devices(count)),
    )
    sizes = (1, 4, 8, 9, 10, 20)

    @tf.function(autograph=False)
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            values = [number * tf.range(1.0, n + 1.0) for n in sizes]
            return context.all_reduce(_SUM, values)

        return strategy.run(replica)

    per_replica = [strategy.experimental_local_results(one) for one in step()]
    total = count * (count + 1) / 2
    for size, values in zip(sizes, per_replica, strict=True):
        assert len(values) == count
        for value in values:
            np.testing.assert_allclose(value, total * np.arange(1, size + 1))


@pytest.mark.parametrize(
    ('spec', 'on_gpu', 'wanted'),
    [
        (None, False, 'RING'),
        (None, True, 'AUTO'),
        ('nccl', True, 'NCCL'),
        ('xring', False, 'RING'),
        ('collective', False, 'AUTO'),
        ('xring:32k:rechd', False, 'RING'),
    ],
)
def test_between_processes(spec, on_gpu, wanted):
    assert collectives.implementation(spec, on_gpu) == wanted


@pytest.mark.parametrize(
    ('spec', 'wanted'),
    [
        ('nccl', 'needs GPUs'),
        ('pscpu', 'does not join processes'),
        ('xring#2', 'does not join processes'),
        ('xring:32k:collective', 'one way'),
    ],
)
def test_what_cannot_join_processes(spec, wanted):
    with pytest.raises(collectives.SpecError, match=wanted):
        collectives.implementation(spec, False)
