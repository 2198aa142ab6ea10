"""Windows, resizing and mirroring."""

import tensorflow as tf

from kbench.preprocessing import draws as draws_lib

# Of the original: sample boxes as Inception does (arXiv 1409.4842, section 6).
MIN_OBJECT_COVERED = 0.1
ASPECT_RATIO_RANGE = (3 / 4, 4 / 3)
AREA_RANGE = (0.05, 1.0)
MAX_ATTEMPTS = 100
# The vgg evaluation crop resizes to this many times the crop.
VGG_SCALE = 1.15
# The inception evaluation crop keeps this share of height and width.
INCEPTION_FRACTION = 0.875

RESIZE_METHODS = ('nearest', 'bilinear', 'bicubic', 'area')


def clean_boxes(boxes: tf.Tensor) -> tf.Tensor:
    """Clips boxes to the image; degenerate ones become the whole image.

    Args:
        boxes: float32 (n, 4): top, left, bottom, right in units of the image,
            n may be 0.

    Returns:
        float32 (n, 4), legal for the sampler.
    """
    boxes = tf.clip_by_value(boxes, 0.0, 1.0)
    legal = tf.reduce_all(boxes[:, 2:] > boxes[:, :2], axis=1, keepdims=True)
    return tf.where(legal, boxes, [[0.0, 0.0, 1.0, 1.0]])


def sample_window(
    height: tf.Tensor, width: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Samples the random crop of training.

    Args:
        height, width: int32, of the image in pixels.
        boxes: float32 (n, 4) as `clean_boxes` returns; none = whole image.
        seed: int64 (2,).

    Returns:
        int32 (4,): top, left, height, width. The whole image where no legal
        window was found in 100 attempts.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.stack([height, width, 3]),
        boxes[tf.newaxis],
        seed,
        min_object_covered=MIN_OBJECT_COVERED,
        aspect_ratio_range=ASPECT_RATIO_RANGE,
        area_range=AREA_RANGE,
        max_attempts=MAX_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], 0)


def crop_window(
    height: tf.Tensor, width: tf.Tensor, size: int, draws: tf.Tensor
) -> tf.Tensor:
    """Samples the window of `resize_method=crop`: no resizing where possible.

    Args:
        height, width: int32, of the image in pixels.
        size: side of the crop in pixels; a smaller image gives what it has.
        draws: from `make_draws`.

    Returns:
        int32 (4,): top, left, height, width.
    """
    crop_height = tf.minimum(size, height)
    crop_width = tf.minimum(size, width)
    top = draws_lib.randint(draws[draws_lib.TOP], height - crop_height + 1)
    left = draws_lib.randint(draws[draws_lib.LEFT], width - crop_width + 1)
    return tf.stack([top, left, crop_height, crop_width])


def resize(
    image: tf.Tensor,
    height: int | tf.Tensor,
    width: int | tf.Tensor,
    method: str,
    position: tf.Tensor | int = 0,
) -> tf.Tensor:
    """Resizes an image, with half-pixel centres.

    Args:
        image: uint8 or float32 (h, w, 3), 0..255.
        height, width: of the result, in pixels.
        method: one of `RESIZE_METHODS`, or `round_robin`: by `position`.
        position: of the image in the stream of images.

    Returns:
        (height, width, 3), 0..255; `nearest` keeps the dtype, the others give
        float32. Bicubic overshoots are clipped.
    """
    if method == 'round_robin':
        return tf.switch_case(
            tf.cast(position % len(RESIZE_METHODS), tf.int32),
            [
                lambda name=name: tf.cast(
                    resize(image, height, width, name), tf.float32
                )
                for name in RESIZE_METHODS
            ],
        )
    images = image[tf.newaxis]
    size = tf.stack([height, width])
    if method == 'nearest':
        resized = tf.raw_ops.ResizeNearestNeighbor(
            images=images, size=size, half_pixel_centers=True
        )
    elif method == 'bilinear':
        # To convert all bytes first is faster than the kernel, which converts
        # each of them as often as it is used.
        resized = tf.raw_ops.ResizeBilinear(
            images=tf.cast(images, tf.float32),
            size=size,
            half_pixel_centers=True,
        )
    elif method == 'bicubic':
        resized = tf.clip_by_value(
            tf.raw_ops.ResizeBicubic(
                images=images, size=size, half_pixel_centers=True
            ),
            0.0,
            255.0,
        )
    else:
        resized = tf.raw_ops.ResizeArea(images=images, size=size)
    return resized[0]


def flip(image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Mirrors every second image, left to right."""
    return tf.cond(
        draws[draws_lib.FLIP] < 0.5,
        lambda: tf.reverse(image, [1]),
        lambda: image,
    )


def vgg_size(height: tf.Tensor, width: tf.Tensor, size: int) -> tf.Tensor:
    """Returns height and width that the vgg method resizes to, int32 (2,)."""
    sides = tf.cast(tf.stack([height, width]), tf.float32)
    scaled = sides * (size * VGG_SCALE / tf.reduce_min(sides))
    # Rounding down must never make the picture smaller than the crop.
    return tf.maximum(tf.cast(scaled, tf.int32), size)


def inception_window(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns the central 87.5 %, int32 (4,): top, left, height, width."""
    sides = tf.stack([height, width])
    margin = tf.cast(
        tf.cast(sides, tf.float32) * ((1 - INCEPTION_FRACTION) / 2), tf.int32
    )
    return tf.concat([margin, sides - 2 * margin], 0)
