"""The input pipeline: a stream of batches that depends on numbers only.

A training stream is endless and numbered: image k of the stream belongs to
epoch k // n, and both the order of an epoch and the pixels of an image follow
from (seed, k). Parallelism changes neither, and resuming is a number.

Errors come out of the iterator as `tf.errors.OpError`;
`describe_data_error` turns them into a line that names the file.
"""

import dataclasses
import socket
from collections.abc import Callable

import tensorflow as tf

from kbench import augment as augment_lib
from kbench import bad_images as bad_images_lib
from kbench import datasets, errors, preprocessing
from kbench.datasets import faults, streams

BadImages = bad_images_lib.BadImages


_NO_AUGMENT = augment_lib.AugmentConfig()


@dataclasses.dataclass(frozen=True)
class InputConfig:
    """What the user chose for the pixels and the engine.

    Attributes:
        distortions: random colours in training, beside crop and flip; for
            small images crop and flip.
        resize_method: crop, nearest, bilinear, bicubic, area, round_robin.
        eval_method: vgg or inception.
        fuse_decode_and_crop: decode only the window of a JPEG.
        distort_color_in_yiq: hue and saturation in YIQ, not in HSV.
        cache_data: read one record and repeat it.
        batch_group_size: batches prepared ahead per replica.
        dtype: of the model. Pictures of bytes stay so, for the device to
            normalize; others come as -1..1 in this. None = as 0..255.
        augment: further augmentation of training pictures.
        data_service: address of a tf.data service that does the work of the
            training pipeline, `host:port`; None = this process does it.
        num_replicas: replicas of this process that share the stream.
        shard_index: which part of the data this process reads ...
        num_shards: ... of how many.
    """

    distortions: bool = True
    resize_method: str = 'bilinear'
    eval_method: str = 'vgg'
    fuse_decode_and_crop: bool = True
    distort_color_in_yiq: bool = False
    cache_data: bool = False
    batch_group_size: int = 1
    dtype: str | None = None
    augment: augment_lib.AugmentConfig = _NO_AUGMENT
    data_service: str | None = None
    num_replicas: int = 1
    shard_index: int = 0
    num_shards: int = 1


def create_train_dataset(
    dataset: datasets.Dataset,
    *,
    config: InputConfig,
    image_size: int,
    batch_size: int,
    seed: int,
    start_batch: int = 0,
    split: str = 'train',
    bad_images: BadImages | None = None,
) -> tf.data.Dataset:
    """Creates the endless stream of training batches of this process.

    With R replicas in the process, replica r takes batch `step * R + r`.

    Args:
        dataset: from `datasets.open_dataset`.
        config: pixels and engine.
        image_size: side of the images in pixels.
        batch_size: images per batch, that is per replica.
        seed: of order and augmentation.
        start_batch: batches of this stream that were consumed already; their
            records are skipped before they are decoded.
        split: which images.
        bad_images: skips and counts unreadable images; None = they are
            errors.

    Returns:
        Batches (images, labels): images (batch_size, image_size, image_size,
        3), uint8 or as `config.dtype` says; labels int32 (batch_size,), or
        with mixup or cutmix float32 (batch_size, num_classes).
    """
    if config.data_service and bad_images is not None:
        raise errors.UserError(
            'skip_bad_images cannot count what a data_service skips: choose '
            'one of the two'
        )
    part = dataset.split(split)
    share = streams.Share(config.shard_index, config.num_shards)
    start_record = start_batch * batch_size
    if config.cache_data:
        stream = _one_record(part, start_record)
    else:
        stream = streams.train_records(
            part, share, seed=seed, start_record=start_record
        )
    to_pixels = _make_train_pixels(
        dataset,
        streams.Reader(dataset, part),
        config=config,
        size=image_size,
        seed=share.seed(seed),
    )
    stream = bad_images_lib.map_images(stream, to_pixels, bad_images)
    stream = stream.batch(batch_size, drop_remainder=True)
    if bad_images is not None:
        bad_images.start(start_record)
        stream = bad_images_lib.count(stream, bad_images, int(tf.int64.max))
    stream = stream.map(_make_batch_step(dataset, config, share.seed(seed)))
    return finish(_distribute(stream, config), config)


def _check_service(address: str) -> None:
    """Refuses a dispatcher that is not there: TensorFlow would wait for it."""
    host, _, port = address.rpartition(':')
    if not host or not port.isdigit():
        raise errors.UserError(
            f'data_service is {address}, legal is host:port of a dispatcher'
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise errors.UserError(
            f'data_service {address} does not answer: {error}; start the '
            'dispatcher of the tf.data service first'
        ) from None


def _distribute(
    stream: tf.data.Dataset, config: InputConfig
) -> tf.data.Dataset:
    """Sends the pipeline to the workers of a tf.data service."""
    if not config.data_service:
        return stream
    address = config.data_service.removeprefix('grpc://')
    _check_service(address)
    # The source is the row of epochs: each worker gets whole ones.
    return stream.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            'grpc://' + address,
        )
    )


def _one_record(part: datasets.Split, start: int) -> tf.data.Dataset:
    """Repeats one record for ever, to take the storage out."""
    one = streams.ordered_records(part).take(1).cache().repeat()
    return one.map(lambda position, record: record).enumerate(start=start)


def _make_train_pixels(
    dataset: datasets.Dataset,
    reader: streams.Reader,
    *,
    config: InputConfig,
    size: int,
    seed: int,
) -> Callable[[tf.Tensor, tf.Tensor], tuple]:
    augment = augment_lib.make_image_augment(config.augment, size, seed)
    # Mixing, which follows in the batch, and augmenting work on 0..255.
    final = None if config.augment.mixes_labels else config.dtype
    dtype = final if augment is None else None

    @tf.autograph.experimental.do_not_convert
    def to_pixels(position: tf.Tensor, record: tf.Tensor) -> tuple:
        image, label, boxes = reader(record)
        record_seed = tf.stack([tf.constant(seed, tf.int64), position])
        if dataset.image_dataset == 'cifar10':
            image = preprocessing.train_small_image(
                _decoded(image),
                record_seed,
                size=size,
                distortions=config.distortions,
                mirror=dataset.mirror,
            )
            image = _normalized(image, dtype)
        else:
            image = preprocessing.train_image(
                image,
                boxes,
                record_seed,
                position,
                size=size,
                distortions=config.distortions,
                resize_method=config.resize_method,
                fused=config.fuse_decode_and_crop,
                yiq=config.distort_color_in_yiq,
                dtype=dtype,
            )
        if augment is not None:
            image = _normalized(augment(image, position), final)
        return position, image, label

    return to_pixels


def create_eval_dataset(
    dataset: datasets.Dataset,
    *,
    config: InputConfig,
    image_size: int,
    batch_size: int,
    split: str = 'validation',
    bad_images: BadImages | None = None,
) -> tf.data.Dataset:
    """Creates the finite stream of evaluation batches of this process.

    Every image comes once. The end is padded, so that all batches are full
    and every replica of every process gets equally many.

    Args:
        dataset: from `datasets.open_dataset`.
        config: pixels and engine.
        image_size: side of the images in pixels.
        batch_size: images per batch, that is per replica.
        split: which images.
        bad_images: skips and counts unreadable images; None = they are
            errors.

    Returns:
        Batches (images, labels, weights): as in training, and float32
        (batch_size,): 1 for an image, 0 for padding.
    """
    part = dataset.split(split)
    stream = streams.ordered_records(part).take(part.num_examples)
    # The numbers of the images of this process have no gaps.
    stream = stream.shard(config.num_shards, config.shard_index)
    stream = stream.map(lambda position, record: record).enumerate()
    end = len(range(config.shard_index, part.num_examples, config.num_shards))
    to_pixels = _make_eval_pixels(
        dataset, streams.Reader(dataset, part), config, image_size
    )
    stream = bad_images_lib.map_images(stream, to_pixels, bad_images)
    padding = tuple(
        tf.zeros(spec.shape, spec.dtype) for spec in stream.element_spec
    )
    padding = (tf.constant(end, tf.int64), *padding[1:])
    batches = num_eval_batches(part.num_examples, batch_size, config)
    stream = stream.concatenate(
        tf.data.Dataset.from_tensors(padding).repeat()
    ).take(batches * batch_size)
    stream = stream.batch(batch_size, drop_remainder=True)
    if bad_images is not None:
        bad_images.start(0)
        stream = bad_images_lib.count(stream, bad_images, end)
    stream = stream.map(_make_batch_step(dataset, None, 0))
    return finish(stream, config)


def _make_eval_pixels(
    dataset: datasets.Dataset,
    reader: streams.Reader,
    config: InputConfig,
    size: int,
) -> Callable[[tf.Tensor, tf.Tensor], tuple]:
    @tf.autograph.experimental.do_not_convert
    def to_pixels(position: tf.Tensor, record: tf.Tensor) -> tuple:
        image, label, _ = reader(record)
        if dataset.image_dataset == 'cifar10':
            image = preprocessing.eval_small_image(_decoded(image), size=size)
        else:
            image = preprocessing.eval_image(
                image,
                position,
                size=size,
                eval_method=config.eval_method,
                resize_method=config.resize_method,
            )
        return position, _normalized(image, config.dtype), label, 1.0

    return to_pixels


def num_eval_batches(
    num_examples: int, batch_size: int, config: InputConfig
) -> int:
    """Returns the batches of each process, a multiple of its replicas."""
    images = -(-num_examples // config.num_shards)
    batches = -(-images // batch_size)
    return -(-batches // config.num_replicas) * config.num_replicas


def finish(stream: tf.data.Dataset, config: InputConfig) -> tf.data.Dataset:
    """Adds prefetching and the options of the engine."""
    ahead = config.batch_group_size * config.num_replicas
    stream = stream.prefetch(max(2, ahead))
    options = tf.data.Options()
    options.deterministic = True
    # One image is decoded by one thread: the parallelism is between images.
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = True
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return stream.with_options(options)


def _make_batch_step(
    dataset: datasets.Dataset, config: InputConfig | None, seed: int
) -> Callable[..., tuple]:
    """Checks the labels of a batch and mixes its images, where asked."""
    low, count = dataset.label_offset, dataset.num_classes
    mix = config and augment_lib.make_batch_augment(config.augment, count, seed)

    @tf.autograph.experimental.do_not_convert
    def step(
        positions: tf.Tensor,
        images: tf.Tensor,
        labels: tf.Tensor,
        *rest: tf.Tensor,
    ) -> tuple:
        assertion = tf.debugging.Assert(
            tf.reduce_all((labels >= 0) & (labels < count)),
            [
                'label out of range: stored labels are',
                labels + low,
                f'legal are {low} to {low + count - 1}',
            ],
            summarize=-1,
        )
        with tf.control_dependencies([assertion]):
            labels = tf.identity(labels)
        if mix is not None:
            images, labels = mix(images, labels, positions[0])
            images = _normalized(images, config.dtype)
        return images, labels, *rest

    return step


def _normalized(image: tf.Tensor, dtype: str | None) -> tf.Tensor:
    """Normalizes where asked what is not bytes."""
    if dtype is None or image.dtype == tf.uint8:
        return image
    return preprocessing.normalize(image, dtype)


def _decoded(image: tf.Tensor) -> tf.Tensor:
    return preprocessing.decode(image) if image.dtype == tf.string else image


def describe_data_error(
    error: tf.errors.OpError,
    dataset: datasets.Dataset,
    *,
    split: str = 'train',
    config: InputConfig | None = None,
    batch_size: int = 1,
    seed: int = 0,
    start_batch: int = 0,
) -> str:
    """Returns one line that names the file and the image behind an error.

    Args:
        error: what the iterator of a dataset of this module raised.
        dataset: that was read.
        split: that was read.
        config: of the training stream; None where it is not known, which
            makes the search longer, not worse.
        batch_size: images per batch of that stream.
        seed: of that stream.
        start_batch: batches of that stream that were received already.
    """
    part = dataset.split(split)
    suspects = []
    if config is not None and not isinstance(error, tf.errors.DataLossError):
        share = streams.Share(config.shard_index, config.num_shards)
        stream = streams.train_records(
            part, share, seed=seed, start_record=start_batch * batch_size
        )
        ahead = max(2, config.num_replicas) * batch_size
        suspects = (record for _, record in stream.take(ahead))
    return faults.describe(error, dataset, part, preprocessing.decode, suspects)
