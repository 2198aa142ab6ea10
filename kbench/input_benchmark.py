"""Measures the input pipeline alone, stage by stage.

A pipeline cannot be timed inside: its stages run in parallel. So it is built
several times, each time one stage longer, and what a stage costs is what the
pipeline gets slower by.
"""

import dataclasses
import time
from collections.abc import Callable

import tensorflow as tf

from kbench import datasets, preprocessing
from kbench import input as input_lib
from kbench.datasets import streams
from kbench.preprocessing import geometry


@dataclasses.dataclass(frozen=True)
class InputSpeed:
    """What was measured.

    Attributes:
        images_per_sec: of the whole pipeline.
        first_batch_sec: from building it to its first batch.
        shares: of each stage in the time of an image; they sum to 1.
    """

    images_per_sec: float
    first_batch_sec: float
    shares: dict[str, float]


def measure(
    dataset: datasets.Dataset,
    *,
    config: input_lib.InputConfig,
    image_size: int,
    batch_size: int,
    seed: int,
    seconds: float = 10.0,
    split: str = 'train',
    progress: Callable[[str], None] = lambda stage: None,
) -> InputSpeed:
    """Measures the training pipeline.

    Args:
        dataset: from `datasets.open_dataset`.
        config: pixels and engine.
        image_size: side of the images in pixels.
        batch_size: images per batch.
        seed: of order and augmentation.
        seconds: for all the measurements together.
        split: which images.
        progress: is told which stage is being measured.
    """

    def create() -> tf.data.Dataset:
        return input_lib.create_train_dataset(
            dataset,
            config=config,
            image_size=image_size,
            batch_size=batch_size,
            seed=seed,
            split=split,
        )

    stages = _stages(dataset, config, image_size, batch_size, seed, split)
    budget = seconds / (len(stages) + 1)
    costs: dict[str, float] = {}
    before = 0.0
    for name, stream in stages.items():
        progress(name)
        elapsed, _ = _time_per_image(stream, batch_size, budget)
        # What hides behind a slower stage costs nothing.
        costs[name] = max(0.0, elapsed - before)
        before = max(before, elapsed)
    progress('whole pipeline')
    whole, first = _time_per_image(create(), batch_size, budget)
    costs['augment and batch'] = max(0.0, whole - before)
    total = sum(costs.values())
    return InputSpeed(
        images_per_sec=1.0 / whole,
        first_batch_sec=first,
        shares={name: cost / total for name, cost in costs.items()},
    )


def _time_per_image(
    stream: tf.data.Dataset, batch_size: int, seconds: float
) -> tuple[float, float]:
    """Returns seconds per image, and seconds to the first batch."""
    start = time.perf_counter()
    batches = iter(stream)
    next(batches)
    first = time.perf_counter() - start
    # Let autotuning settle and what was prefetched run out.
    warm_until = time.perf_counter() + seconds / 4
    while time.perf_counter() < warm_until:
        next(batches)
    count, start = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - start < seconds * 3 / 4:
        next(batches)
        count += batch_size
    return (time.perf_counter() - start) / count, first


def _stages(
    dataset: datasets.Dataset,
    config: input_lib.InputConfig,
    size: int,
    batch_size: int,
    seed: int,
    split: str,
) -> dict[str, tf.data.Dataset]:
    """Returns pipelines that end after each stage; their results are small."""
    part = dataset.split(split)
    share = streams.Share(config.shard_index, config.num_shards)
    reader = streams.Reader(dataset, part)

    def picture(
        position: tf.Tensor, record: tf.Tensor, resized: bool
    ) -> tf.Tensor:
        image, _, boxes = reader(record)
        if dataset.image_dataset == 'cifar10':
            if image.dtype == tf.string:
                image = preprocessing.decode(image)
            image = tf.ensure_shape(image, [None, None, 3])
        else:
            image = preprocessing.train_window(
                image,
                boxes,
                tf.stack([tf.constant(seed, tf.int64), position]),
                size=size,
                crop=config.resize_method == 'crop',
                fused=config.fuse_decode_and_crop,
            )
        if resized:
            method = config.resize_method
            method = 'nearest' if method == 'crop' else method
            image = geometry.resize(image, size, size, method, position)
        return tf.reduce_max(image[:1, :1])

    maps = {
        'read': lambda position, record: tf.shape(reader(record)[2]),
        'decode and crop': lambda *element: picture(*element, resized=False),
        'resize': lambda *element: picture(*element, resized=True),
    }
    built = {}
    for name, function in maps.items():
        stream = streams.train_records(part, share, seed=seed)
        stream = stream.map(
            tf.autograph.experimental.do_not_convert(function),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        stream = stream.batch(batch_size, drop_remainder=True)
        built[name] = input_lib.finish(stream, config)
    return built
