"""What a run returns."""

import dataclasses

from kbench import all_reduce_benchmark, checkpoints, evaluate


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run found.

    Attributes:
        mode: `training`, `forward-only`, `evaluation`, `input` or
            `all-reduce`.
        model: name of the model.
        images_per_sec: of the whole timed run, over all devices.
        losses: total loss of each timed step.
        top_1, top_5: training accuracies of each timed step, empty where
            they were not asked for.
        learning_rate: of the next update; None where nothing is trained.
        gradient_norms: global norms before clipping, with
            `gradient_clip_norm`.
        step_times_sec: duration of each timed step.
        input_wait_sec: how much of each was waiting for images.
        skipped_steps: updates left out for overflow since the training began.
        loss_scale: at the last step; 1 without one.
        step: updates done when the run ended.
        first_bad_step: first step whose loss was not finite, or None.
        checkpoint: the checkpoint written or evaluated, or None.
        saves: what the checkpoints cost, or None.
        recoveries: how often the run went back for `recover_on_nan`.
        evaluation: of the held-out images, the last one, or None.
        evaluations: step and evaluation of all that were made.
        all_reduce: a row per spec and set of tensors, refused ones included.
    """

    mode: str
    model: str
    images_per_sec: float
    losses: tuple[float, ...] = ()
    top_1: tuple[float, ...] = ()
    top_5: tuple[float, ...] = ()
    learning_rate: float | None = None
    gradient_norms: tuple[float, ...] = ()
    step_times_sec: tuple[float, ...] = ()
    input_wait_sec: tuple[float, ...] = ()
    skipped_steps: int = 0
    skipped_images: int = 0
    loss_scale: float = 1.0
    step: int = 0
    first_bad_step: int | None = None
    checkpoint: str | None = None
    saves: checkpoints.SaveTimes | None = None
    recoveries: int = 0
    evaluation: evaluate.Evaluation | None = None
    evaluations: tuple[tuple[int, evaluate.Evaluation], ...] = ()
    all_reduce: tuple[all_reduce_benchmark.AllReduceSpeed, ...] = ()
