"""One process of a cluster that trains the two-scalar model of test_oracle.

Started by test_cluster_oracle.py. It prints one JSON line per training.
"""

import json
import sys

from kbench import cluster as cluster_lib
from kbench import runtime, serve

GLOBAL_BATCH = 12


def images(steps):
    import numpy as np

    rng = np.random.default_rng(5)
    return rng.uniform(0.5, 1.5, (steps, GLOBAL_BATCH)).astype(np.float32)


def train(replicas, optimizer, asynchronous=False):
    """Losses per step, A, B and the count of steps at the end."""
    import tensorflow as tf
    import test_oracle as oracle

    from kbench import loop, metrics

    step, state = oracle.create_step(replicas, optimizer)
    steps = oracle.STEPS
    values = images(steps)
    share = GLOBAL_BATCH // replicas.total_replicas

    def make_dataset(part):
        mine = part.num_replicas * share
        own = values[:, part.index * mine :][:, :mine]
        own = own.reshape(steps * part.num_replicas, share, 1, 1, 1)
        labels = tf.zeros([len(own), share], tf.int32)
        return tf.data.Dataset.from_tensor_slices((own, labels)).repeat()

    batches = replicas.distribute(make_dataset)
    losses = [
        float(done.metrics[metrics.LOSS])
        for done in loop.run_steps(step, batches, steps, replicas.lag or 0)
    ]
    return {
        'losses': losses,
        'weights': [float(weight.numpy()) for weight in state.weights],
        'steps': int(state.step.numpy()),
    }


def _out(**values):
    print(json.dumps(values), flush=True)


def servers(addresses, cases):
    """Coordinates: trains every case on the first workers and servers."""
    import tensorflow as tf

    from kbench import control, copies, scheduled

    tasks = [
        (f'{job} {index}', address)
        for job in ('worker', 'ps')
        for index, address in enumerate(addresses[job])
    ]
    control.wait_for(tasks, 100)
    monitor = control.Monitor(
        tasks, on_lost=print, on_back=print, on_preempted=print
    )
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(addresses), rpc_layer='grpc'
        )
    )
    for case in cases:
        replicas = scheduled.ScheduledReplicas(
            strategy,
            [f'/cpu:{index}' for index in range(case['devices'])],
            num_workers=case['workers'],
            num_ps=case['ps'],
            synchronous=case['kind'] != 'asynchronous',
            copies=copies.Copies(
                refresh=case['kind'] == 'refresh',
                staged=case['kind'] == 'staged',
            ),
        )
        found = train(replicas, case['optimizer'])
        _out(**case, **found, bytes=replicas.placement.bytes)
    monitor.end(control.DONE)


def peer(cluster, cases):
    """One worker of all-reduce."""
    from kbench import strategies

    devices = runtime.set_up_devices('cpu', cases[0]['devices'], start=False)
    replicas = strategies.create(
        'distributed_all_reduce',
        devices=devices,
        cluster=cluster,
        all_reduce_spec='xring',
        collective_timeout_secs=60,
    )
    for case in cases:
        _out(**case, **train(replicas, case['optimizer']))
    replicas.finish()


def main():
    told = json.loads(sys.argv[1])
    runtime.silence_native_code()
    runtime.import_tensorflow({})
    addresses = told['addresses']
    if told['job'] == 'chief':
        servers(addresses, told['cases'])
    else:
        cluster = cluster_lib.Cluster(
            (), tuple(addresses['worker']), (), 'worker', told['index']
        )
        peer(cluster, told['cases'])
    serve.leave(0)


if __name__ == '__main__':
    main()
