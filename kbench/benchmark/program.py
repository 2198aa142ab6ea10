"""From parameters to the objects that every mode needs."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbench import (
    averages,
    checkpoints,
    datasets,
    errors,
    losses,
    models,
    optimizers,
    precision,
    preprocessing,
    reporting,
    runtime,
    schedules,
    strategies,
)
from kbench import input as input_lib
from kbench import params as params_lib

_WARMUP_STEPS = 10

_log = logging.getLogger('kbench')

# Data sets that can be made up: classes, images to train and to evaluate.
_SYNTHETIC = {
    'imagenet': (1000, 1_281_167, 50_000),
    'cifar10': (10, 50_000, 10_000),
    'cifar100': (100, 50_000, 10_000),
}


@dataclasses.dataclass(frozen=True)
class Data:
    """The images of a run.

    Attributes:
        name: for the header.
        dataset: real data, or None for synthetic.
        num_classes: length of the logits.
        num_examples: images of an epoch.
        image_dataset: whose models suit it, `imagenet` or `cifar10`.
    """

    name: str
    dataset: datasets.Dataset | None
    num_classes: int
    num_examples: int
    image_dataset: str


@dataclasses.dataclass(frozen=True)
class Program:
    """The objects of a run, made from its parameters."""

    params: params_lib.Params
    data: Data
    spec: models.ModelSpec
    replicas: strategies.Replicas
    precision: precision.Precision
    data_format: str
    model: keras.Model

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
    def decayed(self) -> list[bool]:
        """Per trainable variable, whether weight decay applies."""
        return [
            losses.is_decayed(variable.path, self.params.weight_decay_all)
            for variable in self.model.trainable_weights
        ]

    @functools.cached_property
    def image_size(self) -> int:
        """Side of the images in pixels."""
        axis = 1 if self.data_format == 'NHWC' else 2
        return self.model.inputs[0].shape[axis]


def _open_data(params: params_lib.Params) -> Data:
    if not params_lib.is_real_data(params):
        name = params.data_name
        if name is None:
            name = models.get_spec(params.model).dataset
        num_classes, num_train, num_eval = _SYNTHETIC[name]
        return Data(
            name=f'{name} (synthetic)',
            dataset=None,
            num_classes=num_classes,
            num_examples=num_eval if params.eval else num_train,
            image_dataset='cifar10' if name.startswith('cifar') else name,
        )
    dataset = datasets.open_dataset(params.data_dir, params.data_name)
    return Data(
        name=dataset.name,
        dataset=dataset,
        num_classes=dataset.num_classes,
        num_examples=dataset.num_examples(_split(params)),
        image_dataset=dataset.image_dataset,
    )


def _split(params: params_lib.Params) -> str:
    if params.eval and params.data_subset == 'train':
        return 'validation'
    return params.data_subset


def _precision(params: params_lib.Params) -> precision.Precision:
    compute = params.compute_dtype or (
        'float16' if params.use_fp16 else 'float32'
    )
    variable = 'float16' if params.fp16_vars else 'float32'
    return precision.Precision(compute, variable)


def _create_replicas(params: params_lib.Params) -> strategies.Replicas:
    indices = [int(part) for part in params.gpu_indices.split(',') if part]
    devices = runtime.set_up_devices(
        params.device,
        params.num_gpus,
        indices,
        params.gpu_memory_frac_for_testing,
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
    )


def create_program(params: params_lib.Params) -> Program:
    """Makes the objects that every mode needs."""
    runtime.set_threads(params.num_intra_threads, params.num_inter_threads)
    replicas = _create_replicas(params)
    data = _open_data(params)
    spec = models.get_spec(params.model, data.image_dataset)
    numbers = _precision(params)
    on_gpu = 'gpu' in replicas.devices[0]
    default = 'NCHW' if on_gpu and numbers.compute_dtype == 'float32' else None
    data_format = params.data_format or default or 'NHWC'
    keras.utils.set_random_seed(params.tf_random_seed)
    if params.deterministic:
        tf.config.experimental.enable_op_determinism()
    with (
        replicas.strategy.scope(),
        _keras_config(numbers.policy, data_format),
        reporting.Progress().stage(f'building {spec.name}'),
    ):
        model = models.create_model(spec, data.num_classes)
    return Program(params, data, spec, replicas, numbers, data_format, model)


class _keras_config:
    """Sets what Keras layers take from the process, for a while."""

    def __init__(self, policy, data_format):
        self._policy = policy
        self._format = {'NHWC': 'channels_last', 'NCHW': 'channels_first'}[
            data_format
        ]

    def __enter__(self):
        self._before = (
            keras.config.dtype_policy(),
            keras.config.image_data_format(),
        )
        keras.config.set_dtype_policy(self._policy)
        keras.config.set_image_data_format(self._format)

    def __exit__(self, *_):
        keras.config.set_dtype_policy(self._before[0])
        keras.config.set_image_data_format(self._before[1])


def header(program: Program, mode: str, rate: float | None) -> str:
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
    if mode != 'evaluation':
        count = planned_steps(program)
        rows += [
            ('Num batches', f'{count}'),
            ('Num epochs', f'{count / program.steps_per_epoch:.2f}'),
        ]
    rows += [
        ('Devices', f'{replicas.devices}'),
        ('Data format', program.data_format),
        ('Precision', program.precision.policy),
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


def decays_weights(params: params_lib.Params) -> bool:
    return optimizers.OPTIMIZERS[params.optimizer].decays_weights


def make_prepare(program: Program) -> Callable:
    """What happens to a batch on the device before the model sees it."""
    if program.data.dataset is None:
        return lambda images, labels: (images, labels)
    dtype = program.precision.compute_dtype
    transpose = program.data_format == 'NCHW'

    def prepare(images, labels):
        images = preprocessing.normalize(images, dtype)
        if transpose:
            images = tf.transpose(images, [0, 3, 1, 2])
        return images, labels

    return prepare


def _synthetic_batch(program: Program) -> Any:
    """One fixed batch per replica: the same images for any split of them."""
    count = program.per_replica_step_size
    shape = program.model.inputs[0].shape[1:]
    seed = program.params.tf_random_seed

    def image(index):
        pixels = tf.random.stateless_uniform(shape, [seed, index], -1.0, 1.0)
        return tf.cast(pixels, program.precision.compute_dtype)

    def batch(replica):
        indices = tf.range(replica * count, (replica + 1) * count)
        labels = tf.random.stateless_uniform(
            [count * program.replicas.num_replicas],
            [seed, -1],
            maxval=program.data.num_classes,
            dtype=tf.int32,
        )
        return (
            tf.map_fn(
                image,
                indices,
                fn_output_signature=program.precision.compute_dtype,
            ),
            tf.gather(labels, indices),
        )

    return program.replicas.constant(batch)


def _input_config(program: Program) -> input_lib.InputConfig:
    params = program.params
    return input_lib.InputConfig(
        distortions=params.distortions,
        resize_method=params.resize_method,
        eval_method=params.eval_method,
        fuse_decode_and_crop=params.fuse_decode_and_crop,
        distort_color_in_yiq=params.distort_color_in_yiq,
        cache_data=params.cache_data,
        batch_group_size=params.batch_group_size,
        num_replicas=program.replicas.num_replicas,
    )


def train_batches(program: Program, steps_seen: int) -> Iterator:
    """Training batches, from the first that was not seen on."""
    if program.data.dataset is None:
        return itertools.repeat(_synthetic_batch(program))
    return _named_errors(
        program.replicas.distribute(
            lambda: input_lib.create_train_dataset(
                program.data.dataset,
                config=_input_config(program),
                image_size=program.image_size,
                batch_size=program.per_replica_step_size,
                seed=program.params.tf_random_seed,
                start_batch=steps_seen * program.replicas.num_replicas,
                split=_split(program.params),
            )
        )
    )


def eval_batches(program: Program) -> Iterator:
    """Batches with every image of the split once, padding marked."""
    return _named_errors(
        program.replicas.distribute(
            lambda: input_lib.create_eval_dataset(
                program.data.dataset,
                config=_input_config(program),
                image_size=program.image_size,
                batch_size=program.per_replica_batch_size,
                split=_split(program.params),
            )
        )
    )


def _named_errors(batches: Iterator) -> Iterator:
    """The same batches; an error says which file and image it is about."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise errors.UserError(error.message) from None
        yield batch


def planned_steps(program: Program) -> int:
    """Length of the run: timed steps, or with num_epochs all steps."""
    params = program.params
    if params.num_epochs is None:
        return params.num_batches
    return max(
        1, schedules.to_steps(params.num_epochs, program.steps_per_epoch)
    )


def warmup_steps(program: Program) -> int:
    """Steps before the timing starts."""
    params = program.params
    if params.num_warmup_batches is not None:
        return params.num_warmup_batches
    # cuDNN chooses after so many runs of an operation.
    return max(_WARMUP_STEPS, (params.autotune_threshold or 0) + 1)


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
