"""Reads TensorBoard's event files without TensorBoard."""

import glob

import numpy as np
import tensorflow as tf
from tensorflow.core.util import event_pb2


def read(folder):
    """(tag, step) to (plugin, value) of all event files of a folder."""
    found = {}
    for path in sorted(glob.glob(f'{folder}/events.out.tfevents.*')):
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = event_pb2.Event.FromString(record)
            for value in event.summary.value:
                plugin = value.metadata.plugin_data
                key = (value.tag, event.step)
                if plugin.plugin_name == 'hparams':
                    found[key] = ('hparams', plugin.content)
                    continue
                assert key not in found, key
                tensor = np.squeeze(tf.make_ndarray(value.tensor))
                found[key] = (plugin.plugin_name, tensor)
    return found
