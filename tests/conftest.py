"""What every test shares: TensorFlow's start, and four CPU devices."""

import os

# Before TensorFlow starts: later its native code has read it.
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

import pytest
import tensorflow as tf

from kbench import runtime

_NUM_DEVICES = 4

# Before any operation runs: later the devices of the process are fixed.
runtime.set_up_devices('cpu', _NUM_DEVICES)


@pytest.fixture(scope='session')
def devices():
    """A function from a number to so many names of CPU devices."""

    def names(count):
        assert count <= _NUM_DEVICES
        return [f'/cpu:{index}' for index in range(count)]

    return names


def pytest_collection_modifyitems(items):
    """Skips what needs a GPU where there is none."""
    if tf.config.list_physical_devices('GPU'):
        return
    for item in items:
        if item.get_closest_marker('gpu'):
            item.add_marker(pytest.mark.skip(reason='needs a GPU'))
