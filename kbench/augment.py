"""Augmentation beyond the original, with Keras's layers.

The layers are used through `get_random_transformation`, which takes the
generator that they draw from. The one given here draws from (seed, position),
so augmented pixels follow from numbers like all others.
"""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from kbench import errors

POLICIES = ('randaugment', 'autoaugment')
# RandAugment's settings for ImageNet (arXiv 1909.13719, section 4.3): two
# operations, here at Keras's default strength, half of the range.
_NUM_OPS = 2
_STRENGTH = 0.5
_RANGE = (0, 255)


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """What is done to training pictures beside crop, flip and colours.

    Attributes:
        policy: None or one of `POLICIES`.
        random_erasing: probability that a rectangle of an image is erased.
        mixup: parameter of the beta distribution that mixes two images of a
            batch (arXiv 1710.09412), 0 = off.
        cutmix: the same for pasting a rectangle of one into the other (arXiv
            1905.04899), 0 = off. With both, every batch gets one of the two.
    """

    policy: str | None = None
    random_erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if self.policy is not None and self.policy not in POLICIES:
            raise errors.UserError(
                f'augment is {self.policy}, legal are {", ".join(POLICIES)}'
            )
        if self.mixup < 0.0:
            raise errors.UserError(
                f'mixup is {self.mixup}, legal are 0 and more'
            )
        # Keras's CutMix takes no parameter above 1.
        for name in ('random_erasing', 'cutmix'):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise errors.UserError(
                    f'{name} is {getattr(self, name)}, legal are 0 to 1'
                )

    @property
    def mixes_labels(self) -> bool:
        """Whether labels come as float32 (batch, num_classes)."""
        return self.mixup > 0.0 or self.cutmix > 0.0


class _KeyedSeed(keras.random.SeedGenerator):
    """Gives Keras a new seed at each call, made from a key."""

    def __init__(self, key: tf.Tensor) -> None:
        # Without the state of the original: the key is the state.
        self._key = key
        self._calls = 0

    def next(self, ordered: bool = True) -> tf.Tensor:
        del ordered
        self._calls += 1
        offset = tf.constant([7_368_787 * self._calls, 0], tf.int64)
        return tf.cast((self._key + offset) % (2**31 - 1), tf.int32)


def _apply(
    layer: keras.Layer, images: tf.Tensor, generator: _KeyedSeed
) -> tf.Tensor:
    transformation = layer.get_random_transformation(
        images, training=True, seed=generator
    )
    images = layer.transform_images(images, transformation, training=True)
    return tf.cast(images, tf.float32)


def _plain(layer_class: type, **options: object) -> keras.Layer:
    return layer_class(data_format='channels_last', **options)


def _rand_augment_layers() -> list[keras.Layer]:
    """Returns the eleven operations of Keras's RandAugment."""
    layers, strength = keras.layers, _STRENGTH
    ranged = {'value_range': _RANGE}
    return [
        _plain(layers.RandomShear, x_factor=strength, y_factor=strength),
        _plain(
            layers.RandomTranslation,
            height_factor=strength,
            width_factor=strength,
        ),
        # In turns: half a turn of the range would stand images on the head.
        _plain(layers.RandomRotation, factor=30 / 360),
        _plain(layers.RandomBrightness, factor=strength, **ranged),
        _plain(layers.RandomColorDegeneration, factor=strength, **ranged),
        _plain(layers.RandomContrast, factor=strength, **ranged),
        _plain(layers.RandomSharpness, factor=strength, **ranged),
        _plain(
            layers.Solarization,
            addition_factor=strength,
            threshold_factor=strength,
            **ranged,
        ),
        _plain(layers.RandomPosterization, factor=4, **ranged),
        _plain(layers.AutoContrast, **ranged),
        _plain(layers.Equalization, **ranged),
    ]


def make_image_augment(
    config: AugmentConfig, size: int, seed: int
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None:
    """Returns `augment(image, position)` for one image, None if it is off.

    Args:
        config: what to do.
        size: side of the images in pixels.
        seed: of this process.

    Returns:
        A function from (size, size, 3) in 0..255 and an int64 position to
        float32 (size, size, 3) in 0..255.
    """
    if config.policy is None and not config.random_erasing:
        return None
    erase = keras.layers.RandomErasing(
        factor=1.0, value_range=_RANGE, data_format='channels_last'
    )
    run_policy = _make_policy(config.policy)

    def augment(image: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        key = tf.stack([tf.constant(seed + 101, tf.int64), position])
        images = tf.cast(image, tf.float32)[tf.newaxis]
        images = tf.ensure_shape(images, [1, size, size, 3])
        images = run_policy(images, key)
        if config.random_erasing:
            images = tf.cond(
                _uniform(key, 1) < config.random_erasing,
                lambda: _apply(erase, images, _KeyedSeed(key + 1)),
                lambda: images,
            )
        images = tf.clip_by_value(images, 0.0, 255.0)
        return tf.ensure_shape(images[0], [size, size, 3])

    return augment


def _uniform(key: tf.Tensor, stream: int) -> tf.Tensor:
    offset = tf.constant([911 * stream, 0], tf.int64)
    return tf.random.stateless_uniform([], key + offset)


def _choose(key: tf.Tensor, stream: int, count: int) -> tf.Tensor:
    """Returns a number of 0..count-1."""
    draw = tf.cast(_uniform(key, stream) * count, tf.int32)
    return tf.minimum(draw, count - 1)


def _make_policy(
    policy: str | None,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    if policy is None:
        return lambda images, key: images
    if policy == 'autoaugment':
        return _make_auto_augment()
    layers = _rand_augment_layers()
    apply = _make_switch(layers)

    def rand_augment(images: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        for step in range(_NUM_OPS):
            draw = _choose(key, 10 + step, len(layers))
            images = apply(draw, images, key + 20 + step)
        return images

    return rand_augment


def _make_switch(
    layers: list[keras.Layer],
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns `apply(index, images, key)`: only that layer is computed.

    A function of its own is traced once, however often it is called.
    """

    @tf.function(autograph=False)
    def apply(index: tf.Tensor, images: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.switch_case(
            index,
            [
                lambda layer=layer: tf.ensure_shape(
                    _apply(layer, images, _KeyedSeed(key)), images.shape
                )
                for layer in layers
            ],
        )

    return apply


# The ImageNet policy of AutoAugment (arXiv 1805.09501, table 9): operation,
# probability, magnitude of 0..10 (0 where the operation has none), twice.
_AUTO_AUGMENT = (
    (('posterize', 0.4, 8), ('rotate', 0.6, 9)),
    (('solarize', 0.6, 5), ('autocontrast', 0.6, 0)),
    (('equalize', 0.8, 0), ('equalize', 0.6, 0)),
    (('posterize', 0.6, 7), ('posterize', 0.6, 6)),
    (('equalize', 0.4, 0), ('solarize', 0.2, 4)),
    (('equalize', 0.4, 0), ('rotate', 0.8, 8)),
    (('solarize', 0.6, 3), ('equalize', 0.6, 0)),
    (('posterize', 0.8, 5), ('equalize', 1.0, 0)),
    (('rotate', 0.2, 3), ('solarize', 0.6, 8)),
    (('equalize', 0.6, 0), ('posterize', 0.4, 6)),
    (('rotate', 0.8, 8), ('color', 0.4, 0)),
    (('rotate', 0.4, 9), ('equalize', 0.6, 0)),
    (('equalize', 0.0, 0), ('equalize', 0.8, 0)),
    (('invert', 0.6, 0), ('equalize', 1.0, 0)),
    (('color', 0.6, 4), ('contrast', 1.0, 8)),
    (('rotate', 0.8, 8), ('color', 1.0, 2)),
    (('color', 0.8, 8), ('solarize', 0.8, 7)),
    (('sharpness', 0.4, 7), ('invert', 0.6, 0)),
    (('shear', 0.6, 5), ('equalize', 1.0, 0)),
    (('color', 0.4, 0), ('equalize', 0.6, 0)),
    (('equalize', 0.4, 0), ('solarize', 0.2, 4)),
    (('solarize', 0.6, 5), ('autocontrast', 0.6, 0)),
    (('invert', 0.6, 0), ('equalize', 1.0, 0)),
    (('color', 0.6, 4), ('contrast', 1.0, 8)),
    (('equalize', 0.8, 0), ('equalize', 0.6, 0)),
)


def _auto_layer(name: str, magnitude: int) -> keras.Layer:
    """Returns the Keras layer of an operation at its strength.

    Keras draws strengths from 0 to a bound; the bound here is what the paper
    has as the strength.
    """
    layers, share = keras.layers, magnitude / 10
    ranged = {'value_range': _RANGE}
    table = {
        'posterize': (
            layers.RandomPosterization,
            {'factor': max(1, 8 - round(4 * share)), **ranged},
        ),
        'rotate': (layers.RandomRotation, {'factor': 30 / 360 * share}),
        'solarize': (
            layers.Solarization,
            {
                'threshold_factor': (1 - share, 1 - share),
                'addition_factor': 0.0,
                **ranged,
            },
        ),
        'autocontrast': (layers.AutoContrast, ranged),
        'equalize': (layers.Equalization, ranged),
        'invert': (layers.RandomInvert, {'factor': 1.0, **ranged}),
        'color': (
            layers.RandomColorDegeneration,
            {'factor': 0.9 * share, **ranged},
        ),
        'contrast': (layers.RandomContrast, {'factor': 0.9 * share, **ranged}),
        'sharpness': (
            layers.RandomSharpness,
            {'factor': 0.9 * share, **ranged},
        ),
        'shear': (layers.RandomShear, {'x_factor': 0.3 * share}),
    }
    layer_class, options = table[name]
    return _plain(layer_class, **options)


def _make_auto_augment() -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    # Many sub-policies share an operation: each is built once.
    kinds = sorted(
        {(name, level) for pair in _AUTO_AUGMENT for name, _, level in pair}
    )
    apply = _make_switch([_auto_layer(name, level) for name, level in kinds])
    table = [
        [(kinds.index((name, level)), chance) for name, chance, level in pair]
        for pair in _AUTO_AUGMENT
    ]
    indices = [[index for index, _ in pair] for pair in table]
    chances = [[chance for _, chance in pair] for pair in table]

    def auto_augment(images: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        chosen = _choose(key, 10, len(table))
        for step in range(2):
            index = tf.constant(indices)[chosen, step]
            images = tf.cond(
                _uniform(key, 11 + step) < tf.constant(chances)[chosen, step],
                lambda index=index, step=step, images=images: apply(
                    index, images, key + 20 + step
                ),
                lambda images=images: images,
            )
        return images

    return auto_augment


def make_batch_augment(
    config: AugmentConfig, num_classes: int, seed: int
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]] | None:
    """Returns `mix(images, labels, position)` for a batch, None if it is off.

    Args:
        config: what to do.
        num_classes: length of a mixed label.
        seed: of this process.

    Returns:
        A function from images (batch, h, w, 3) in 0..255, labels int32
        (batch,) and the int64 position of the first image, to float32 images
        and float32 labels (batch, num_classes) whose rows sum to 1.
    """
    layers = []
    if config.mixup:
        layers.append(_plain(keras.layers.MixUp, alpha=config.mixup))
    if config.cutmix:
        layers.append(
            _plain(keras.layers.CutMix, factor=(config.cutmix, config.cutmix))
        )
    if not layers:
        return None

    def mix_with(
        layer: keras.Layer, images: tf.Tensor, labels: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        data = {'images': images, 'labels': labels}
        how = layer.get_random_transformation(
            data, training=True, seed=_KeyedSeed(key)
        )
        mixed = layer.transform_images(images, how, training=True)
        labels = layer.transform_labels(labels, how, training=True)
        return tf.cast(mixed, tf.float32), tf.cast(labels, tf.float32)

    def mix(
        images: tf.Tensor, labels: tf.Tensor, position: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        key = tf.stack([tf.constant(seed + 211, tf.int64), position])
        images = tf.cast(images, tf.float32)
        labels = tf.one_hot(labels, num_classes)
        shapes = images.shape, labels.shape
        if len(layers) == 1:
            images, labels = mix_with(layers[0], images, labels, key)
        else:
            images, labels = tf.cond(
                _uniform(key, 1) < 0.5,
                lambda: mix_with(layers[0], images, labels, key),
                lambda: mix_with(layers[1], images, labels, key),
            )
        return (
            tf.ensure_shape(images, shapes[0]),
            tf.ensure_shape(labels, shapes[1]),
        )

    return mix
