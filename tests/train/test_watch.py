from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from sim2real_train.cluster import local_cluster
from sim2real_train.placements import Machines, placed
from sim2real_train.watch import WorkerLostError
from tests.train.builders import small_config


def of_ray(name: str) -> psutil.Process:
    (found,) = [child for child in psutil.Process().children() if child.name() == name]
    return found


def is_of_ray(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ray::") and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("name", "called"),
    [pytest.param("gcs_server", "control store", marks=pytest.mark.slow), ("raylet", "scheduler")],
)
def test_a_run_ends_at_once_when_a_process_of_rays_own_dies(tmp_path: Path, name: str, called: str) -> None:
    """By itself Ray would wait for a minute, and then end this process without a word."""

    before = psutil.Process().children()
    others = {each.pid for each in psutil.process_iter()}

    def run() -> None:
        with placed(small_config(), Machines(), dumps=tmp_path) as workers:
            workers.collect()
            of_ray(name).kill()
            while True:
                workers.collect()

    with pytest.raises(WorkerLostError, match=f"Ray's {called} died"):
        run()
    assert psutil.Process().children() == before
    # Ray's agents are nobody's children any more once the scheduler is gone.
    assert not [each for each in psutil.process_iter() if each.pid not in others and is_of_ray(each)]


def test_what_waits_for_something_else_is_interrupted() -> None:
    def wait() -> None:
        with local_cluster(1):
            of_ray("raylet").kill()
            threading.Event().wait()

    with pytest.raises(WorkerLostError, match="Ray's scheduler died"):
        wait()
