"""The images of a run: opened, made up, and cut into batches."""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kbench import (
    augment,
    datasets,
    errors,
    loop,
    models,
    preprocessing,
    strategies,
)
from kbench import input as input_lib
from kbench import params as params_lib

_log = logging.getLogger('kbench')

# Data sets that can be made up: classes, images to train on.
_SYNTHETIC = {
    'imagenet': (1000, 1_281_167),
    'cifar10': (10, 50_000),
    'cifar100': (100, 50_000),
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


def open_data(params: params_lib.Params) -> Data:
    """Opens the data of a run, or describes what is made up.

    Raises:
        UserError: in one line, what is wrong with which folder or file.
    """
    if not params_lib.is_real_data(params):
        name = params.data_name
        if name is None:
            name = models.get_spec(params.model).dataset
        num_classes, num_train = _SYNTHETIC[name]
        return Data(
            name=f'{name} (synthetic)',
            dataset=None,
            num_classes=params.num_classes or num_classes,
            num_examples=params.num_train_examples or num_train,
            image_dataset='cifar10' if name.startswith('cifar') else name,
        )
    dataset = datasets.open_dataset(
        params.data_dir,
        params.data_name,
        num_classes=params.num_classes,
        num_train_examples=params.num_train_examples,
        num_eval_examples=params.num_eval_examples,
        download=params.download,
    )
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


def make_prepare(program: Any) -> Callable:
    """What happens to a batch on the device before the model sees it."""
    if program.data.dataset is None:
        return lambda images, labels: (images, labels)
    dtype = program.precision.compute_dtype
    transpose = program.data_format == 'NCHW'

    def prepare(images, labels):
        # Other images come normalized from the pipeline.
        if images.dtype == tf.uint8:
            images = preprocessing.normalize(images, dtype)
        if transpose:
            images = tf.transpose(images, [0, 3, 1, 2])
        return images, labels

    return prepare


def _synthetic_batch(program: Any) -> Any:
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
            [count * program.replicas.total_replicas],
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


def input_config(
    program: Any, part: strategies.Part | None = None
) -> input_lib.InputConfig:
    """The input pipeline that the parameters ask for.

    Args:
        program: the objects of the run.
        part: what of the data; None for the part of this process.
    """
    params = program.params
    part = part or _own_part(program)
    return input_lib.InputConfig(
        distortions=params.distortions,
        resize_method=params.resize_method,
        eval_method=params.eval_method,
        fuse_decode_and_crop=params.fuse_decode_and_crop,
        distort_color_in_yiq=params.distort_color_in_yiq,
        cache_data=params.cache_data,
        batch_group_size=params.batch_group_size,
        dtype=program.precision.compute_dtype,
        augment=augment.AugmentConfig(
            policy=params.augment,
            random_erasing=params.random_erasing,
            mixup=params.mixup,
            cutmix=params.cutmix,
        ),
        data_service=params.data_service,
        num_replicas=part.num_replicas,
        shard_index=part.index,
        num_shards=part.count,
    )


def _own_part(program: Any) -> strategies.Part:
    replicas = program.replicas
    return strategies.Part(
        replicas.worker, replicas.num_workers, len(replicas.devices)
    )


class Batches:
    """The batches of a run.

    An error of the data says which file and which image it is about.

    Args:
        program: the objects of the run.
        split: which images; None for data_subset.
        replicas: who takes them; None for those of the program.
    """

    def __init__(
        self,
        program: Any,
        split: str | None = None,
        replicas: strategies.Replicas | None = None,
    ):
        self._program = program
        self._split = split or program.params.data_subset
        self._replicas = replicas or program.replicas
        self._bad_images = None
        if program.params.skip_bad_images:
            self._bad_images = input_lib.BadImages()

    @property
    def skipped_images(self) -> int:
        """Images that could not be read and were skipped."""
        return self._bad_images.count if self._bad_images else 0

    def train(self, steps_seen: int) -> Iterator:
        """Training batches, from the first that was not seen on."""
        program = self._program
        if program.data.dataset is None:
            return itertools.repeat(_synthetic_batch(program))
        count = len(program.replicas.devices)
        start = steps_seen * count
        stream = {
            'config': input_config(program),
            'batch_size': program.per_replica_step_size,
            'seed': program.params.tf_random_seed,
        }
        batches = program.replicas.distribute(
            lambda part: input_lib.create_train_dataset(
                program.data.dataset,
                image_size=program.image_size,
                start_batch=start + part.steps * count,
                split=self._split,
                bad_images=self._bad_images,
                **(stream | {'config': input_config(program, part)}),
            )
        )
        return self._with_named_errors(batches, start, stream)

    def eval(self) -> Iterator:
        """Every image of the split once, padding marked."""
        program = self._program
        batches = self._replicas.distribute(
            lambda part: input_lib.create_eval_dataset(
                program.data.dataset,
                config=input_config(program, part),
                image_size=program.image_size,
                batch_size=program.per_replica_batch_size,
                split=self._split,
                bad_images=self._bad_images,
            )
        )
        return self._with_named_errors(batches, 0, {})

    def _with_named_errors(self, batches, received, stream) -> Iterator:
        program = self._program
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except tf.errors.OpError as error:
                text = input_lib.describe_data_error(
                    error,
                    program.data.dataset,
                    split=self._split,
                    start_batch=received,
                    **stream,
                )
                raise errors.UserError(text) from None
            received += len(self._replicas.devices)
            yield batch


# Share of the time that a step may wait for images before that is advised on.
_MAX_WAIT_SHARE = 0.05


def report_input(program: Any, record: loop.Record, batches: Batches) -> None:
    """Says how long the timed steps waited for images, and what was skipped.

    Args:
        program: the objects of the run.
        record: of the timed steps.
        batches: what they consumed.
    """
    if program.data.dataset is None:
        return
    share = sum(record.input_wait_sec) / sum(record.step_times_sec)
    _log.info('the steps waited for images %.1f %% of their time', 100 * share)
    if share > _MAX_WAIT_SHARE:
        _log.warning(
            'the input is too slow for the model: see which stage with '
            '--benchmark_input, try --cache_data, or give the work to others '
            'with --data_service'
        )
    if batches.skipped_images:
        _log.warning(
            '%d images could not be read and were skipped',
            batches.skipped_images,
        )
