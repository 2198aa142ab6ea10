"""The pipeline measured alone."""

import input_helpers as helpers
import pytest

from kbench import datasets, input_benchmark
from kbench import input as input_lib


@pytest.mark.parametrize('kind', ['digits', 'photos'])
def test_shares_sum_to_one(tmp_path, kind):
    if kind == 'digits':
        dataset, size = datasets.open_dataset(None, 'digits'), 32
    else:
        records = [
            helpers.make_example(helpers.photo_bytes(name), 1 + i, name)
            for i, name in enumerate(helpers.PHOTOS)
        ]
        helpers.write_shard(tmp_path / 'train-00000-of-00001', records * 4)
        dataset, size = datasets.open_dataset(str(tmp_path), None), 224
    said = []
    speed = input_benchmark.measure(
        dataset,
        config=input_lib.InputConfig(),
        image_size=size,
        batch_size=8,
        seed=1,
        seconds=4,
        progress=said.append,
    )
    assert speed.images_per_sec > 5
    assert 0 < speed.first_batch_sec < 30
    assert list(speed.shares) == [
        'read',
        'decode and crop',
        'resize',
        'augment and batch',
    ]
    assert sum(speed.shares.values()) == pytest.approx(1)
    assert said[-1] == 'whole pipeline'
    if kind == 'photos':
        # A photograph is not free to decode.
        assert speed.shares['decode and crop'] > speed.shares['read'] / 2
