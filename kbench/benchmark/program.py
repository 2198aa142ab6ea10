"""From parameters to the objects that every mode needs."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from kbench import (
    averages,
    checkpoints,
    errors,
    losses,
    models,
    optimizers,
    precision,
    reporting,
    runtime,
    schedules,
    shards,
    strategies,
    train,
)
from kbench import job as job_lib
from kbench import journal as journal_lib
from kbench import params as params_lib
from kbench.benchmark import data as data_lib
from kbench.benchmark import tracing

_WARMUP_STEPS = 10

_log = logging.getLogger('kbench')


@dataclasses.dataclass(frozen=True)
class Program:
    """The objects of a run, made from its parameters."""

    params: params_lib.Params
    data: data_lib.Data
    spec: models.ModelSpec
    replicas: strategies.Replicas
    precision: precision.Precision
    data_format: str
    model: keras.Model
    journal: journal_lib.Journal

    @property
    def per_replica_batch_size(self) -> int:
        """Images per replica and forward pass."""
        return self.params.batch_size or self.spec.batch_size

    @property
    def per_replica_step_size(self) -> int:
        """Images per replica and update."""
        return self.per_replica_batch_size * self.params.num_grad_accumulation

    @property
    def global_batch_size(self) -> int:
        """Images per update over all replicas."""
        return self.per_replica_step_size * self.replicas.num_replicas

    @property
    def steps_per_epoch(self) -> float:
        """Updates per epoch, a fraction included."""
        return self.data.num_examples / self.global_batch_size

    @property
    def on_gpu(self) -> bool:
        """Whether the replicas compute on GPUs."""
        return 'gpu' in self.replicas.devices[0]

    @property
    def lag(self) -> int:
        """Steps that are under way while the host waits for another."""
        if self.replicas.lag is not None:
            return self.replicas.lag
        return 1 if self.on_gpu else 0

    @property
    def decayed(self) -> list[bool]:
        """Per trainable variable or piece, whether weight decay applies."""
        return [
            losses.is_decayed(variable.path, self.params.weight_decay_all)
            for variable in shards.expand(self.model.trainable_weights)
        ]

    @functools.cached_property
    def image_size(self) -> int:
        """Side of the images in pixels."""
        axis = 1 if self.data_format == 'NHWC' else 2
        return self.model.inputs[0].shape[axis]


def _precision(params: params_lib.Params) -> precision.Precision:
    compute = params.compute_dtype or (
        'float16' if params.use_fp16 else 'float32'
    )
    variable = 'float16' if params.fp16_vars else 'float32'
    return precision.Precision(compute, variable)


def _create_replicas(
    params: params_lib.Params, job: job_lib.Job
) -> strategies.Replicas:
    if job.topology == job_lib.SERVERS:
        # Another process computes on the devices of this machine.
        tf.config.set_visible_devices([], 'GPU')
        return strategies.create(
            params.variable_update,
            devices=[f'/cpu:{index}' for index in range(params.num_gpus)],
            cluster=job.cluster,
            workers_may_use_gpus=params.device != 'cpu',
            synchronous=params.cross_replica_sync,
            staged=params.staged_vars,
            ps_shard_bytes=params.ps_shard_bytes,
        )
    indices = [int(part) for part in params.gpu_indices.split(',') if part]
    devices = runtime.set_up_devices(
        params.device,
        params.num_gpus,
        indices,
        params.gpu_memory_frac_for_testing,
        # Collectives are configured before the runtime starts.
        start=job.topology != job_lib.PEERS,
    )
    on_gpu = 'gpu' in devices[0]
    if params.device is None and not on_gpu:
        _log.warning('no GPU found: running on the CPU')
    if params.data_format == 'NCHW' and not on_gpu:
        raise errors.UserError(
            '--data_format=NCHW does not run on the CPU: NHWC is the only '
            'layout there'
        )
    kept_on_gpu = on_gpu and params.local_parameter_device == 'gpu'
    return strategies.create(
        params.variable_update,
        devices=devices,
        parameter_device=devices[0] if kept_on_gpu else '/cpu:0',
        cluster=job.cluster,
        all_reduce_spec=params.all_reduce_spec,
        bytes_per_pack=params.bytes_per_pack,
        collective_timeout_secs=params.collective_timeout_secs,
    )


def _only_reads(params: params_lib.Params) -> bool:
    """Whether this host computes nothing but pictures.

    One thread makes one picture. Where XLA has more threads than one, it
    divides each picture's colours among them, which costs twice the time.
    """
    if params.benchmark_input:
        return True
    keeps_variables = params.local_parameter_device == 'cpu'
    adds = 'cpu' in (params.all_reduce_spec or '')
    on_gpu = params.device != 'cpu' and tf.config.list_physical_devices('GPU')
    return bool(on_gpu) and not keeps_variables and not adds


def create_program(
    params: params_lib.Params,
    job: job_lib.Job,
    met: Callable[[], None],
    journal: journal_lib.Journal,
) -> Program:
    """Makes the objects that every mode needs.

    Args:
        params: of the run.
        job: the part of this process.
        met: called when all processes of the job have met.
        journal: takes in how long each part takes.
    """
    runtime.set_threads(
        params.num_intra_threads,
        params.num_inter_threads,
        automatic=1 if _only_reads(params) else 0,
    )
    replicas = _create_replicas(params, job)
    met()
    journal.phase('devices')
    if not replicas.is_chief:
        reporting.mute()
    data = data_lib.open_data(params)
    journal.phase('data')
    spec = models.get_spec(params.model, data.image_dataset)
    numbers = _precision(params)
    on_gpu = 'gpu' in replicas.devices[0]
    default = 'NCHW' if on_gpu and numbers.compute_dtype == 'float32' else None
    data_format = params.data_format or default or 'NHWC'
    keras.utils.set_random_seed(params.tf_random_seed)
    if params.deterministic:
        tf.config.experimental.enable_op_determinism()
    with (
        replicas.scope(),
        models.keras_config(numbers.policy, data_format),
        reporting.Progress().stage(f'building {spec.name}'),
    ):
        model = models.create_model(spec, data.num_classes)
    journal.phase('model')
    program = Program(
        params, data, spec, replicas, numbers, data_format, model, journal
    )
    journal.numbers |= {
        'data': data.name,
        'global_batch_size': program.global_batch_size,
        'num_replicas': replicas.num_replicas,
        'num_workers': replicas.num_workers,
        'devices': _all_devices(replicas),
        'data_format': data_format,
        'precision': numbers.policy,
        'num_parameters': model.count_params(),
    }
    return program


def make_forward(program: Program, *, training: bool) -> Callable:
    """The model as `train.make_forward` has it, of weights or pieces."""
    model = program.model
    return shards.over_pieces(
        train.make_forward(
            model, seed=program.params.tf_random_seed, training=training
        ),
        model.trainable_weights,
        model.non_trainable_weights,
    )


def header(program: Program, mode: str, rate: float | None) -> str:
    """The block before a run.

    Args:
        program: the objects of the run.
        mode: `training`, `forward-only`, `evaluation` or `all-reduce`.
        rate: learning rate of the first update, None where none is made.
    """
    params, replicas = program.params, program.replicas
    rows = [
        ('TensorFlow', '.'.join(tf.__version__.split('.')[:2])),
        ('Model', program.spec.name),
        ('Dataset', program.data.name),
        ('Mode', mode),
        (
            'Batch size',
            f'{program.global_batch_size} global\n'
            f'{program.per_replica_batch_size} per device',
        ),
    ]
    if mode in ('training', 'forward-only'):
        count = planned_steps(program)
        rows += [
            ('Num batches', f'{count}'),
            ('Num epochs', f'{count / program.steps_per_epoch:.2f}'),
        ]
    rows += [
        ('Devices', f'{_all_devices(replicas)}'),
        ('Data format', program.data_format),
        ('Precision', _precision_text(program)),
    ]
    if rate is not None:
        in_loss = params.weight_decay and not decays_weights(params)
        what = f' + {params.weight_decay:g} * L2' if in_loss else ''
        rows += [
            ('Optimizer', params.optimizer),
            ('Learning rate', f'{rate:g}'),
            ('Loss', f'cross entropy{what}'),
        ]
    rows.append(('Variables', params.variable_update))
    return reporting.header(rows)


def _all_devices(replicas: strategies.Replicas) -> list[str]:
    if replicas.num_workers == 1 and not replicas.remote:
        return replicas.devices
    return [
        f'/job:worker/task:{worker}{device}'
        for worker in range(replicas.num_workers)
        for device in replicas.devices
    ]


def _precision_text(program: Program) -> str:
    text, params = program.precision.policy, program.params
    trains = params_lib.mode(params) == 'training'
    if program.precision.can_overflow and trains:
        kind = 'dynamic' if params.fp16_enable_auto_loss_scale else 'fixed'
        text += f', {kind} loss scale {loss_scale(program):g}'
    return text


def loss_scale(program: Program) -> float:
    """The loss scale that a training begins with."""
    return program.params.fp16_loss_scale or program.spec.loss_scale


def decays_weights(params: params_lib.Params) -> bool:
    return optimizers.OPTIMIZERS[params.optimizer].decays_weights


def planned_steps(program: Program) -> int:
    """Length of the run: timed steps, or with num_epochs all steps."""
    params = program.params
    if params.num_epochs is None:
        return params.num_batches
    return max(
        1, schedules.to_steps(params.num_epochs, program.steps_per_epoch)
    )


def warmup_steps(program: Program) -> int:
    """Steps before the timing starts, traced ones included."""
    params = program.params
    traced = tracing.extra_steps(params)
    if params.num_warmup_batches is not None:
        return params.num_warmup_batches + traced
    # cuDNN chooses after so many runs of an operation.
    own = max(_WARMUP_STEPS, (params.autotune_threshold or 0) + 1)
    return own + traced


def restore_weights(
    program: Program,
    path: str,
    values: Mapping[str, np.ndarray],
    *,
    averaged: bool = False,
) -> None:
    """Gives the model the weights of a checkpoint.

    Args:
        program: whose model.
        path: the checkpoint, for messages.
        values: what it holds.
        averaged: take the moving averages in place of the weights.

    Raises:
        CheckpointError: it is of another model, or holds no averages.
    """
    weights = {weight.path: weight for weight in program.model.weights}
    what = f'model {program.spec.name}'
    if averaged:
        weights = {
            averages.average_name(name): weight
            for name, weight in weights.items()
        }
        what += ' with --moving_average_decay'
    checkpoints.restore(path, values, weights, what=what, exact=False)
