"""What a process of its own cannot do is said as it would be in this one."""

import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

from kri_core.errors import EngineError
from kri_core.running import processes
from kri_core.running.crossing import Job


@pytest.fixture
def job(tmp_path):
    return Job(
        task="needle8",
        task_params=(),
        docs=None,
        model=str(tmp_path / "nowhere"),
        revision=None,
        dtype="float32",
        device="cpu",
        cache=Path("unused"),
        scorers=(),
    )


def test_a_model_that_is_not_there_is_named_by_every_process(job, monkeypatch):
    monkeypatch.setattr(processes, "_worker", [])
    threads, running = torch.get_num_threads(), threading.active_count()
    processes._start(job)
    torch.set_num_threads(threads)

    for ask in (
        processes._report,
        lambda: processes._prepare(0),
        lambda: processes._answer((0, ())),
    ):
        with pytest.raises(
            EngineError, match="nowhere' is not a directory; give a model directory"
        ):
            ask()
    assert threading.active_count() <= running + 1  # in this process nothing waits for a parent


def test_a_process_that_is_gone_is_said_in_one_line(job):
    with (
        pytest.raises(EngineError, match=r"ended by itself \(killed\); give fewer --jobs"),
        processes.crew(job, 2),
    ):
        raise BrokenProcessPool("killed")
