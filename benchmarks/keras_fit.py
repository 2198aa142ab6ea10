"""The peer of train_speed.py: keras.applications with Model.fit.

Prints one JSON line: images/s over the timed steps.
"""

import argparse
import json
import time


def main() -> None:
    """Trains on one fixed batch and times the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--model', default='ResNet50')
    parser.add_argument('--batch_size', type=int, default=16)
    parser.add_argument('--num_batches', type=int, default=10)
    parser.add_argument('--num_warmup_batches', type=int, default=2)
    parser.add_argument('--policy', default='float32')
    parser.add_argument('--xla', action='store_true')
    options = parser.parse_args()

    import keras
    import tensorflow as tf

    keras.config.set_dtype_policy(options.policy)
    model = getattr(keras.applications, options.model)(weights=None)
    model.compile(
        optimizer=keras.optimizers.SGD(0.005),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        jit_compile=options.xla,
    )
    images = tf.random.uniform((options.batch_size, *model.input_shape[1:]))
    labels = tf.random.uniform([options.batch_size], 0, 1000, tf.int32)
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    ends = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(time.perf_counter())

    steps = options.num_warmup_batches + options.num_batches
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[Clock()])
    elapsed = ends[-1] - ends[options.num_warmup_batches - 1]
    rate = options.batch_size * options.num_batches / elapsed
    print(json.dumps({'images_per_sec': rate}))


if __name__ == '__main__':
    main()
