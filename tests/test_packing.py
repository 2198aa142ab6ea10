"""What travels together."""

import numpy as np
import tensorflow as tf

from kbench import packing

_CPUS = ('/cpu:1', '/cpu:0')


def test_small_tensors_of_a_server_and_type_travel_as_one():
    large = packing._SMALL // 4
    rows = [
        (_CPUS[0], [2, 3], tf.float32),
        (_CPUS[1], [4], tf.float32),
        (_CPUS[0], [], tf.int64),
        (_CPUS[0], [large], tf.float32),
        (_CPUS[0], [5], tf.float32),
        (_CPUS[0], [], tf.float32),
    ]
    found = packing.Packing(*zip(*rows, strict=True))
    assert [pack.members for pack in found.packs] == [
        (0, 4, 5),
        (1,),
        (2,),
        (3,),
    ]
    assert [pack.shape.as_list() for pack in found.packs] == [
        [12],
        [4],
        [],
        [large],
    ]
    values = [
        tf.cast(tf.fill(shape, number), dtype)
        for number, (_, shape, dtype) in enumerate(rows)
    ]
    packed = found.pack(values, at_home=True)
    assert packed[0].device[-5:] == 'CPU:1'
    for value, back in zip(values, found.unpack(packed), strict=True):
        np.testing.assert_array_equal(value, back)


def test_a_full_pack_is_followed_by_another():
    count, size = 20, packing._SMALL // 4 - 1
    found = packing.Packing(
        [_CPUS[0]] * count, [[size]] * count, [tf.float32] * count
    )
    assert [len(pack.members) for pack in found.packs] == [16, 4]
