"""What every test shares: four logical CPU devices, a quiet TensorFlow."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices('CPU')[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)


@pytest.fixture(autouse=True)
def _small_and_quiet():
    yield
