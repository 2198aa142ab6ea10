"""Small tensors travel between processes as one.

A tensor that crosses processes costs a call of its own, however small it is:
a network of a hundred small variables spends more time on calls than on its
images. So the small tensors of one server and one type are put end to end for
the way, and cut again at its end. Large ones travel alone, beside each other.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

# Bytes: copying less than this into a pack is cheaper than a call, and a
# pack is small enough to be on its way while the next one is filled.
_SMALL, _WHOLE = 1 << 18, 1 << 22


@dataclasses.dataclass(frozen=True)
class Pack:
    """Tensors that travel together.

    Attributes:
        device: of the server at which they are at home.
        dtype: of all of them.
        members: their numbers.
        shapes: the shape of each.
    """

    device: str
    dtype: tf.DType
    members: tuple[int, ...]
    shapes: tuple[tf.TensorShape, ...]

    @property
    def shape(self) -> tf.TensorShape:
        """Of what travels."""
        if len(self.shapes) == 1:
            return self.shapes[0]
        return tf.TensorShape([sum(self.sizes)])

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor."""
        return [shape.num_elements() for shape in self.shapes]


def _plan(homes, shapes, dtypes):
    open_packs, done = {}, []
    for number, (home, shape, dtype) in enumerate(
        zip(homes, shapes, dtypes, strict=True)
    ):
        size = shape.num_elements() * dtype.size
        if size >= _SMALL:
            done.append((home, dtype, [number]))
            continue
        members, filled = open_packs.get((home, dtype), ([], _WHOLE))
        if filled + size > _WHOLE:
            members, filled = [], 0
            done.append((home, dtype, members))
        members.append(number)
        open_packs[home, dtype] = members, filled + size
    return [
        Pack(home, dtype, tuple(members), tuple(shapes[i] for i in members))
        for home, dtype, members in done
    ]


def _device(pack, at_home):
    return tf.device(pack.device) if at_home else contextlib.nullcontext()


class Packing:
    """How a list of tensors travels from and to their servers.

    Args:
        homes: device of each tensor's server.
        shapes: of each, fully known.
        dtypes: of each.

    Attributes:
        packs: what travels.
    """

    def __init__(
        self,
        homes: Sequence[str],
        shapes: Sequence[tf.TensorShape],
        dtypes: Sequence[tf.DType],
    ):
        self.packs = _plan(homes, [*map(tf.TensorShape, shapes)], dtypes)
        self._count = len(homes)

    def pack(
        self, tensors: Sequence[tf.Tensor], at_home: bool = False
    ) -> list[tf.Tensor]:
        """One tensor per pack.

        Args:
            tensors: in the order of the homes.
            at_home: on the servers, else on the current device.
        """
        packed = []
        for pack in self.packs:
            with _device(pack, at_home):
                flat = [tensors[i] for i in pack.members]
                if len(flat) > 1:
                    flat = [tf.concat([tf.reshape(t, [-1]) for t in flat], 0)]
                packed += flat
        return packed

    def unpack(
        self, packed: Sequence[tf.Tensor], at_home: bool = False
    ) -> list[tf.Tensor]:
        """The tensors that were packed, in their order."""
        tensors = [None] * self._count
        for pack, value in zip(self.packs, packed, strict=True):
            with _device(pack, at_home):
                if len(pack.members) == 1:
                    tensors[pack.members[0]] = tf.identity(value)
                    continue
                for i, shape, part in zip(
                    pack.members,
                    pack.shapes,
                    tf.split(value, pack.sizes),
                    strict=True,
                ):
                    tensors[i] = tf.reshape(part, shape)
        return tensors
