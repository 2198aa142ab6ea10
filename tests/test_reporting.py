"""The lines that people parse, to the character."""

import logging

from kbench import reporting, throughput


def test_step_line():
    speed = throughput.Throughput(2348.74, 69.16, 154.8)
    assert reporting.step_line(10, speed, 9.7041) == (
        '10\timages/sec: 2348.7 +/- 69.2 (jitter = 154.8)\t9.704'
    )
    assert reporting.step_line(1, speed, 1.0, [0.25, 0.5]) == (
        '1\timages/sec: 2348.7 +/- 69.2 (jitter = 154.8)\t1.000\t0.250\t0.500'
    )


def test_table_head():
    assert reporting.table_head(False) == 'Step\tImg/sec\ttotal_loss'
    assert reporting.table_head(True) == (
        'Step\tImg/sec\ttotal_loss\ttop_1_accuracy\ttop_5_accuracy'
    )


def test_total():
    rule = '-' * 64
    assert reporting.total_lines(2187.934) == (
        f'{rule}\ntotal images/sec: 2187.93\n{rule}'
    )


def test_header():
    text = reporting.header(
        [('Model', 'vgg16'), ('Batch size', '64 global\n32 per device')]
    )
    assert text == (
        'Model:       vgg16\n'
        'Batch size:  64 global\n'
        '             32 per device\n'
        '=========='
    )


def test_evaluation():
    assert reporting.evaluation_line(0.98765, 1.0, 355, 0.0261) == (
        'Accuracy @ 1 = 0.9877 Accuracy @ 5 = 1.0000 [355 examples] '
        'loss = 0.0261'
    )


def test_notices_go_to_standard_error(capsys):
    reporting.route_logging()
    reporting.route_logging()
    logging.getLogger('kbench').warning('step %d', 3)
    reporting.error('two\nlines')
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err == 'kbench: step 3\nkbench: error: two lines\n'


def test_a_stage_is_one_line_where_nobody_watches(capsys):
    with reporting.Progress().stage('training', total=5) as stage:
        for _ in range(5):
            stage.advance()
    with reporting.Progress().stage('warming up', total=0):
        pass
    captured = capsys.readouterr()
    assert captured.out == '' and captured.err == 'kbench: training\n'
