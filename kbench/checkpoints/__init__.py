"""Checkpoints: named arrays in TensorFlow's bundle format, and others'.

Names are the paths of the variables, so that every mode and every number of
replicas reads what any other wrote.
"""

from kbench.checkpoints.files import (
    CheckpointError,
    DamagedError,
    all_steps,
    check_finite,
    latest,
    load,
    load_newest,
    make_snapshot,
    path_of,
    remove,
    save,
    set_aside,
    step_of,
)
from kbench.checkpoints.name_maps import drop_unused_class
from kbench.checkpoints.restoring import rename, restore, shown, split_head
from kbench.checkpoints.sources import Source, read
from kbench.checkpoints.writer import SaveTimes, Writer

__all__ = [
    'CheckpointError',
    'DamagedError',
    'SaveTimes',
    'Source',
    'Writer',
    'all_steps',
    'check_finite',
    'drop_unused_class',
    'latest',
    'load',
    'load_newest',
    'make_snapshot',
    'path_of',
    'read',
    'remove',
    'rename',
    'restore',
    'save',
    'set_aside',
    'shown',
    'split_head',
    'step_of',
]
