"""Learning on a GPU beside learning on the CPU: PPO on the Go2's flat ground, by a perceptron and by a GRU.

    python benchmarks/device_learner.py                   # 1,024 and 4,096 environments, on the first GPU
    python benchmarks/device_learner.py --rehearse --envs 64    # the GPU's code on a CPU, to see that all of it works

For each network, number of environments and device there is the time of an update (scoring, learning, publishing),
that of collecting its batch, and environment steps per second of both together. The simulation is on the CPU in either
case. Then it is checked on the device that a worker that goes on from a state ends with the weights of one that never
stopped, and, where there are two GPUs, that replicas which average over NCCL stay equal. Exit code: 0 (both hold), 1
(one does not), 2 (there is no GPU).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec
import torch

from sim2real.errors import Sim2RealError
from sim2real_train.colocated import Colocated
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.device import CPU, learning_device
from sim2real_train.models import ModelConfig
from sim2real_train.moments import merge
from sim2real_train.placements import Machines, placed
from sim2real_train.ppo import PpoConfig
from sim2real_train.presets import preset_of
from sim2real_train.worker import Worker

TASK: Final = "go2-velocity-flat"
NETWORKS: Final = {"MLP": ModelConfig(hidden=(128, 128)), "GRU": ModelConfig(recurrent="gru", recurrent_size=64)}
WARM_UP: Final = 1


def main() -> bool:
    """Print a table, then whether both checks hold; return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[1024, 4096], help="numbers of environments (1024 4096)")
    parser.add_argument("--iterations", type=int, default=3, help="iterations measured (3)")
    parser.add_argument("--rehearse", action="store_true", help="take the CPU for the GPU")
    arguments = parser.parse_args()
    device = CPU if arguments.rehearse else learning_device("cuda")
    print(f"{'network':8s}{'envs':>6s}  {'learner':8s}{'update':>10s}{'collect':>10s}{'env-steps/s':>13s}")
    for network in NETWORKS:
        for envs in arguments.envs:
            for name, where in (("cpu", None), ("device", device)):
                update, collect = measure(config_of(network, envs), where, arguments.iterations)
                rate = envs * config_of(network, envs).algorithm.num_steps / (update + collect)
                print(f"{network:8s}{envs:6d}  {name:8s}{update:8.3f} s{collect:8.3f} s{rate:13,.0f}", flush=True)
    held = [resumes_exactly(network, device) for network in NETWORKS]
    if torch.cuda.device_count() >= 2 and not arguments.rehearse:
        held += [replicas_stay_equal(network) for network in NETWORKS]
    else:
        print("replicas: not tried, which takes two GPUs")
    return all(held)


def config_of(network: str, num_envs: int, *, num_workers: int = 1) -> TrainConfig:
    """Return a run with the task's preset; a memory has no mirror, so that nobody learns from images."""
    algorithm = preset_of(TASK, "ppo").algorithm
    assert isinstance(algorithm, PpoConfig)
    return TrainConfig(
        task=TASK,
        robot=None,
        engine="mujoco",
        seed=0,
        num_envs=num_envs,
        num_workers=num_workers,
        command_delay=(0.0, 0.02),
        delays=None,
        randomization=None,
        model=NETWORKS[network],
        placement=PlacementConfig(device="cuda" if num_workers > 1 else "cpu"),
        algorithm=msgspec.structs.replace(algorithm, symmetry="none"),
    )


def worker_of(config: TrainConfig, device: torch.device | None) -> Worker:
    """Return the only worker of a run, with all CPUs for its simulation."""
    return Worker(config, 0, keep, num_threads=len(os.sched_getaffinity(0)), device=device)


def keep(vector: torch.Tensor) -> None:
    """Average over one replica."""


def measure(config: TrainConfig, device: torch.device | None, iterations: int) -> tuple[float, float]:
    """Return the median times [s] of an update and of collecting its batch."""
    worker = worker_of(config, device)
    times: list[tuple[float, float]] = []
    for _ in range(WARM_UP + iterations):
        began = time.perf_counter()
        collected = worker.collect()
        begun = time.perf_counter()
        worker.learn(merge([worker.score()]))
        # What acts is copied to the CPU at the end, so that nothing is under way on the GPU.
        worker.publish(collected.observations)
        times.append((time.perf_counter() - begun, begun - began))
    worker.collector.close()
    update, collect = zip(*times[WARM_UP:], strict=True)
    return statistics.median(update), statistics.median(collect)


def resumes_exactly(network: str, device: torch.device | None) -> bool:
    """Say whether two iterations and two more from their state end with the weights of four."""
    whole, first, second = (worker_of(config_of(network, 64), device) for _ in range(3))
    run(whole, 4)
    run(first, 2)
    second.load_state(first.learner_state(), first.state())
    run(second, 2)
    held = whole.weights_sha256() == second.weights_sha256()
    print(f"resume, {network}: {'the same bit for bit' if held else 'NOT the same'}", flush=True)
    return held


def run(worker: Worker, iterations: int) -> None:
    """Let a worker collect and learn."""
    for _ in range(iterations):
        collected = worker.collect()
        worker.learn(merge([worker.score()]))
        worker.publish(collected.observations)


def replicas_stay_equal(network: str) -> bool:
    """Say whether two workers that average their gradients have the same weights after three iterations."""
    config = config_of(network, 64, num_workers=2)
    with tempfile.TemporaryDirectory() as dumps, placed(config, Machines(), dumps=Path(dumps)) as workers:
        assert isinstance(workers, Colocated)
        for _ in range(3):
            collected = workers.collect()
            workers.learn(merge(workers.score()))
            workers.publish(merge(each.observations for each in collected))
        held = len(set(workers.weights_sha256())) == 1
    print(f"replicas, {network}: {'equal' if held else 'NOT equal'}", flush=True)
    return held


if __name__ == "__main__":
    try:
        sys.exit(not main())
    except Sim2RealError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
