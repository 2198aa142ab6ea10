"""The images of a run: opened, made up, and cut into batches."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kbench import datasets, errors, models, preprocessing, strategies
from kbench import input as input_lib
from kbench import params as params_lib

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


def open_data(params: params_lib.Params) -> Data:
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


def make_prepare(program: Any) -> Callable:
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


def _input_config(program: Any, part: strategies.Part) -> input_lib.InputConfig:
    params = program.params
    return input_lib.InputConfig(
        distortions=params.distortions,
        resize_method=params.resize_method,
        eval_method=params.eval_method,
        fuse_decode_and_crop=params.fuse_decode_and_crop,
        distort_color_in_yiq=params.distort_color_in_yiq,
        cache_data=params.cache_data,
        batch_group_size=params.batch_group_size,
        num_replicas=part.num_replicas,
        shard_index=part.index,
        num_shards=part.count,
    )


def train_batches(program: Any, steps_seen: int) -> Iterator:
    """Training batches, from the first that was not seen on."""
    if program.data.dataset is None:
        return itertools.repeat(_synthetic_batch(program))
    return _named_errors(
        program.replicas.distribute(
            lambda part: input_lib.create_train_dataset(
                program.data.dataset,
                config=_input_config(program, part),
                image_size=program.image_size,
                batch_size=program.per_replica_step_size,
                seed=program.params.tf_random_seed,
                start_batch=(steps_seen + part.steps) * part.num_replicas,
                split=_split(program.params),
            )
        )
    )


def eval_batches(program: Any) -> Iterator:
    """Batches with every image of the split once, padding marked."""
    return _named_errors(
        program.replicas.distribute(
            lambda part: input_lib.create_eval_dataset(
                program.data.dataset,
                config=_input_config(program, part),
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
