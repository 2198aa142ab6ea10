"""Modes become strategies."""

import numpy as np
import pytest
import tensorflow as tf

from kbench import collectives, strategies

MODES = {
    'parameter_server': 'CentralStorageStrategy',
    'replicated': 'MirroredStrategy',
    'independent': 'MirroredStrategy',
}


def _create(mode, devices):
    return strategies.create(mode, devices=devices, parameter_device='/cpu:0')


@pytest.mark.parametrize('count', [1, 2, 4])
@pytest.mark.parametrize('mode', MODES)
def test_replicas_and_their_strategy(mode, count, devices):
    replicas = _create(mode, devices(count))
    assert replicas.num_replicas == count
    assert replicas.devices == devices(count)
    assert MODES[mode] in type(replicas.strategy).__name__


@pytest.mark.parametrize(
    'names, kind',
    [
        (['/cpu:0', '/cpu:1'], tf.distribute.ReductionToOneDevice),
        (['/gpu:0', '/gpu:1'], tf.distribute.NcclAllReduce),
    ],
)
def test_gpus_reduce_with_nccl(names, kind):
    assert isinstance(collectives.create(None, names), kind)


@pytest.mark.parametrize('mode', MODES)
def test_replica_r_gets_element_step_times_replicas_plus_r(mode, devices):
    replicas = _create(mode, devices(2))
    batches = replicas.distribute(
        lambda part: tf.data.Dataset.range(8).batch(part.num_replicas)
    )
    seen = []
    for _ in range(2):
        batch = next(batches)
        parts = replicas.strategy.experimental_local_results(batch)
        seen.append([part.numpy().tolist() for part in parts])
    assert seen == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize('mode', MODES)
def test_constants_lie_on_their_devices(mode, devices):
    replicas = _create(mode, devices(2))
    value = replicas.constant(lambda replica: tf.constant([replica, 7]))
    parts = replicas.strategy.experimental_local_results(value)
    assert [part.numpy().tolist() for part in parts] == [[0, 7], [1, 7]]
    assert [part.device[-5:] for part in parts] == ['CPU:0', 'CPU:1']


@pytest.mark.parametrize(
    'mode, gradient, state',
    [
        # Means in the modes that join; a shared copy has the first's states.
        ('parameter_server', [2.0], [10.0]),
        ('replicated', [2.0, 2.0], [10.0, 30.0]),
        ('independent', [1.0, 3.0], [10.0, 30.0]),
    ],
)
def test_meet(mode, gradient, state, devices):
    """Each copy gets its update once, metrics are means everywhere."""
    replicas = _create(mode, devices(2))
    with replicas.strategy.scope():
        sums, states = (
            tf.Variable(
                0.0,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for _ in range(2)
        )

    def replica_step(value):
        def update(gradients, measured, new_states):
            tf.raw_ops.AssignAddVariableOp(
                resource=sums.handle, value=gradients[0]
            )
            tf.raw_ops.AssignAddVariableOp(
                resource=states.handle, value=new_states[0]
            )
            return measured[0]

        return replicas.meet(update, [value], [10 * value], [10 * value])

    values = replicas.constant(lambda replica: tf.constant(2.0 * replica + 1))
    measured = tf.function(
        lambda: replicas.first(replicas.run(replica_step, (values,)))
    )()
    assert float(measured) == 20.0
    for variable, wanted in ((sums, gradient), (states, state)):
        copies = replicas.strategy.experimental_local_results(variable)
        np.testing.assert_array_equal([c.numpy() for c in copies], wanted)
