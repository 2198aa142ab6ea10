"""Loads an export where there is no kbench; started by test_export.py.

Arguments: the folder of the export, a file of images, a file for the answer.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf


def main():
    folder, images, answer = sys.argv[1:]
    with open(images, encoding='utf-8') as file:
        encoded = [bytes.fromhex(text) for text in json.load(file)]
    loaded = tf.saved_model.load(f'{folder}/saved_model')
    served = loaded.signatures['serving_default'](images=tf.constant(encoded))
    pixels = loaded.signatures['preprocess'](images=tf.constant(encoded))
    found = {
        'saved_model': served['probabilities'].numpy(),
        'pixels': pixels['pixels'].numpy(),
    }
    try:
        model = keras.models.load_model(f'{folder}/model.keras')
        found['keras'] = model.predict(found['pixels'], verbose=0)
    except ValueError as error:
        assert 'not found' in str(error), error
    assert 'kbench' not in sys.modules
    np.savez(answer, **found)


if __name__ == '__main__':
    main()
