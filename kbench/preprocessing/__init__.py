"""From one encoded image to the pixels that a network sees.

Every function works on one image and is pure: what is random comes in as
`seed`, an int64 tensor (2,), or as `draws`, uniform numbers made from it. So
a picture depends on (seed, record) alone, whatever runs in parallel. Pixels
are in 0..255: bytes, which the device normalizes, or float32, which are
normalized here where the compute dtype is given.
"""

import tensorflow as tf

from kbench.preprocessing import colors, decoding, geometry
from kbench.preprocessing import draws as draws_lib

decode = decoding.decode
normalize = colors.normalize
RESIZE_METHODS = geometry.RESIZE_METHODS
# Small images are padded by this many pixels before the random crop
# (arXiv 1512.03385, section 4.2).
SMALL_IMAGE_PADDING = 4


def train_image(
    encoded: tf.Tensor,
    boxes: tf.Tensor,
    seed: tf.Tensor,
    position: tf.Tensor | int,
    *,
    size: int,
    distortions: bool,
    resize_method: str,
    fused: bool,
    yiq: bool,
    dtype: str | None = None,
) -> tf.Tensor:
    """Makes a training picture of an encoded photograph.

    Args:
        encoded: scalar string.
        boxes: float32 (n, 4), objects as fractions of the image.
        seed: int64 (2,), distinct for every image of a run.
        position: of the image in the stream of images.
        size: side of the result in pixels.
        distortions: whether the colours change too; crop and flip are always
            random.
        resize_method: `round_robin` or one of `RESIZE_METHODS` for a random
            box, resized; `crop` for a window of `size`, not resized.
        fused: decode only the window of a JPEG.
        yiq: see `distort_color`.
        dtype: what is not uint8 is normalized into this; None = it is not.

    Returns:
        (size, size, 3): uint8 where the result has whole numbers only (no
        distortions, and `crop` or `nearest`); else 0..255 in float32, or
        -1..1 in `dtype`.
    """
    draws = draws_lib.make_draws(seed)
    crop = resize_method == 'crop'
    image = train_window(
        encoded, boxes, seed, size=size, crop=crop, fused=fused
    )
    image = geometry.flip(image, draws)
    # A crop has the right size already, unless the image is too small.
    method = 'nearest' if crop else resize_method
    image = geometry.resize(image, size, size, method, position)
    image.set_shape([size, size, 3])
    if distortions:
        return colors.distort_color(
            tf.cast(image, tf.float32), draws, position, yiq, dtype
        )
    if dtype is not None and image.dtype != tf.uint8:
        return normalize(image, dtype)
    return image


def train_window(
    encoded: tf.Tensor,
    boxes: tf.Tensor,
    seed: tf.Tensor,
    *,
    size: int,
    crop: bool,
    fused: bool,
) -> tf.Tensor:
    """Decodes the random part of a photograph that training shows.

    Args:
        encoded, boxes, seed, size, fused: as in `train_image`.
        crop: a window of `size`, rather than a random box of any size.

    Returns:
        uint8 (height, width, 3).
    """

    def window_of(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
        if crop:
            draws = draws_lib.make_draws(seed)
            return geometry.crop_window(height, width, size, draws)
        boxes_used = geometry.clean_boxes(boxes)
        return geometry.sample_window(height, width, boxes_used, seed)

    return decoding.decode_window(encoded, window_of, fused)


def eval_image(
    encoded: tf.Tensor,
    position: tf.Tensor | int,
    *,
    size: int,
    eval_method: str,
    resize_method: str,
) -> tf.Tensor:
    """Makes an evaluation picture of an encoded photograph.

    Args:
        encoded: scalar string.
        position: of the image in the stream of images.
        size: side of the result in pixels.
        eval_method: `vgg` keeps the aspect ratio, resizes to 1.15 times the
            crop and takes the centre; `inception` takes the central 87.5 % of
            each side and resizes that.
        resize_method: as in `train_image`; `crop` resizes bilinearly.

    Returns:
        float32 (size, size, 3), 0..255.
    """
    method = 'bilinear' if resize_method == 'crop' else resize_method
    image = decoding.decode(encoded)
    shape = tf.shape(image)
    height, width = shape[0], shape[1]
    if eval_method == 'inception':
        window = geometry.inception_window(height, width)
        image = image[
            window[0] : window[0] + window[2], window[1] : window[1] + window[3]
        ]
        image = geometry.resize(image, size, size, method, position)
    else:
        target = geometry.vgg_size(height, width, size)
        image = geometry.resize(image, target[0], target[1], method, position)
        top, left = tf.unstack((target - size) // 2)
        image = image[top : top + size, left : left + size]
    image = tf.cast(image, tf.float32)
    image.set_shape([size, size, 3])
    return image


def train_small_image(
    image: tf.Tensor,
    seed: tf.Tensor,
    *,
    size: int,
    distortions: bool,
    mirror: bool,
) -> tf.Tensor:
    """Pads by 4, crops at random, mirrors: the CIFAR augmentation.

    Args:
        image: uint8 (h, w, 3); resized first where it is not of `size`.
        seed: int64 (2,), distinct for every image of a run.
        size: side of the result in pixels.
        distortions: False only resizes.
        mirror: whether every second image is mirrored.

    Returns:
        (size, size, 3), 0..255, uint8 unless it was resized.
    """
    image = eval_small_image(image, size=size)
    if not distortions:
        return image
    draws = draws_lib.make_draws(seed)
    padding = SMALL_IMAGE_PADDING
    image = tf.pad(image, [[padding, padding], [padding, padding], [0, 0]])
    top = draws_lib.randint(draws[draws_lib.TOP], 2 * padding + 1)
    left = draws_lib.randint(draws[draws_lib.LEFT], 2 * padding + 1)
    image = tf.slice(image, tf.stack([top, left, 0]), [size, size, 3])
    if mirror:
        image = geometry.flip(image, draws)
    image.set_shape([size, size, 3])
    return image


def eval_small_image(image: tf.Tensor, *, size: int) -> tf.Tensor:
    """Returns a small image in the model's size, uint8 where it has it."""
    if image.shape[:2] == (size, size):
        return image
    image = geometry.resize(image, size, size, 'bilinear')
    image.set_shape([size, size, 3])
    return image
