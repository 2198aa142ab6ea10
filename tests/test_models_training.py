"""Every model trains: two replicas, float32 and bfloat16."""

import math

import model_helpers
import pytest

from kbench import models


def _distinct(specs):
    """Leaves out rows that are another row's network at another size."""
    return [spec for spec in specs if not spec.name.endswith('_299')]


@pytest.mark.parametrize(
    'spec', _distinct(models.list_specs()), ids=model_helpers.spec_id
)
@pytest.mark.parametrize('policy', ['float32', 'mixed_bfloat16'])
def test_two_steps_on_two_replicas(spec, policy):
    with model_helpers.policy(policy):
        _, losses, missing = model_helpers.train_on_two_replicas(spec)
    assert not missing
    assert all(math.isfinite(loss) for step in losses for loss in step)
