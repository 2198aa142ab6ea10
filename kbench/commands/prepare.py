"""`kbench prepare`: a folder of images, or the digits, as TFRecord shards.

    kbench prepare --data_name=digits --output_dir=DIR
    kbench prepare --image_dir=FOLDER --output_dir=DIR --num_shards=16

Running twice changes nothing; an interrupted run goes on where it was.
"""

import argparse
import logging
import os
from collections.abc import Callable, Sequence

from kbench import errors, runtime
from kbench.datasets import digits, image_folder, writer

_log = logging.getLogger('kbench')


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise errors.UserError(f'kbench prepare: {message}')


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog='kbench prepare', allow_abbrev=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        '--data_name', choices=['digits'], help='an embedded dataset'
    )
    source.add_argument(
        '--image_dir', help='a folder of images, a sub-folder for each class'
    )
    parser.add_argument(
        '--output_dir', required=True, help='where the shards go'
    )
    parser.add_argument(
        '--num_shards',
        type=int,
        default=None,
        help='training shards; default: one for about 100 MB',
    )
    parser.add_argument(
        '--validation_fraction',
        type=float,
        default=0.1,
        help='share of each class that is held out, where image_dir has no '
        'sub-folders train and validation; the digits bring their own split',
    )
    parser.add_argument(
        '--seed', type=int, default=0, help='of the order of the images'
    )
    options = parser.parse_args(argv)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    if options.num_shards is not None and not 1 <= options.num_shards <= 99999:
        raise errors.UserError(
            f'num_shards is {options.num_shards}, legal are 1 to 99999'
        )
    if not 0.0 <= options.validation_fraction < 1.0:
        raise errors.UserError(
            f'validation_fraction is {options.validation_fraction}, legal are '
            '0 and more, below 1'
        )


def main(
    argv: Sequence[str], progress: Callable[[str], None] = _log.info
) -> int:
    """Runs the command.

    Args:
        argv: the arguments after `prepare`.
        progress: is told in one line what has been done.

    Returns:
        The exit status, 0.

    Raises:
        UserError: in one line, what is wrong with which argument or file.
    """
    options = _parse(argv)
    if options.data_name == 'digits':
        plan = _plan_digits()
    else:
        plan = _plan_folder(options.image_dir, options.validation_fraction)
    writer.write_dataset(
        plan,
        options.output_dir,
        num_shards=options.num_shards,
        seed=options.seed,
        progress=progress,
        before_writing=lambda: runtime.import_tensorflow({}),
    )
    return 0


def _plan_digits() -> writer.Plan:
    items = {}
    for split, (images, labels) in digits.load_digits().items():
        items[split] = [
            writer.Item(
                f'{split}_{i:04d}.png', int(label), str(label), pixels=image
            )
            for i, (image, label) in enumerate(zip(images, labels, strict=True))
        ]
    return writer.Plan('digits', tuple('0123456789'), items, False, _encode)


def _plan_folder(image_dir: str, fraction: float) -> writer.Plan:
    folder = image_folder.scan_image_folder(image_dir, fraction)
    items = {
        split: [
            writer.Item(
                os.path.relpath(path, image_dir),
                label,
                folder.classes[label],
                path=path,
            )
            for path, label in members
        ]
        for split, members in folder.members.items()
    }
    return writer.Plan('image_folder', folder.classes, items, True, _encode)


def _encode(item: writer.Item) -> tuple[bytes, int, int]:
    """Returns the encoded bytes, height and width of an image."""
    # Late, so that a refused argument answers at once.
    import tensorflow as tf

    from kbench import preprocessing

    if item.path is None:
        encoded = tf.io.encode_png(item.pixels).numpy()
        return encoded, *item.pixels.shape[:2]
    try:
        with open(item.path, 'rb') as file:
            encoded = file.read()
        shape = preprocessing.decode(tf.constant(encoded)).shape
    except OSError as error:
        raise errors.UserError(
            f'{item.path} cannot be read: {error.strerror}'
        ) from None
    except tf.errors.InvalidArgumentError:
        raise errors.UserError(
            f'{item.path} cannot be decoded: expected a whole JPEG, PNG, GIF '
            'or BMP'
        ) from None
    return encoded, shape[0], shape[1]
