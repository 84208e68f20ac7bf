"""Learners on a device of their own: a pretended one, which keeps its memory apart, or a GPU where there is one.

About 60 s on two busy cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest
import torch
from torch import distributed

from sim2real.errors import InputError
from sim2real_train.actors import answers, place
from sim2real_train.algorithm import Algorithm
from sim2real_train.cluster import local_cluster
from sim2real_train.colocated import Colocated
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.device import CPU, learning_device, set_apart
from sim2real_train.distill import DistillConfig, DistillLearner, Student, TeacherRef
from sim2real_train.encoder import ConvConfig
from sim2real_train.models import Actor, ModelConfig
from sim2real_train.moments import merge
from sim2real_train.peers import join_peers
from sim2real_train.placements import Machines, check_placement, placed
from sim2real_train.ppo import PpoConfig
from sim2real_train.sac import SacConfig
from sim2real_train.trainer import Schedule, train
from sim2real_train.worker import Worker
from tests.train.builders import iterate, keep, small_config
from tests.train.pretend_device import MixedDevicesError, pretending
from tests.train.test_worker import assert_same, run

pytestmark = pytest.mark.slow

GO2: Final = "go2-velocity-flat"
CUDA: Final = PlacementConfig(device="cuda")
NO_GPU: Final = "needs an NVIDIA GPU and a PyTorch that is built for CUDA"


def gru(**settings: Any) -> ModelConfig:
    return ModelConfig(hidden=(16,), recurrent="gru", recurrent_size=8, **settings)


def ppo(**settings: Any) -> PpoConfig:
    return PpoConfig(num_steps=8, epochs=2, minibatches=2, **settings)


def sac(**settings: Any) -> SacConfig:
    return SacConfig(
        num_steps=8, updates=4, batch_size=32, buffer_size=256, learning_starts=64, checkpoint_buffer=True, **settings
    )


STUDENT: Final = DistillConfig(
    teacher=TeacherRef(checkpoint="/nowhere", weights_sha256="0" * 64), num_steps=8, epochs=1, minibatches=2, rollouts=2
)
CASES: Final = {
    "ppo-mlp": small_config(algorithm=ppo()),
    "ppo-stale": small_config(algorithm=ppo(advantage="vtrace", weight_limit=1.5)),
    "ppo-gru": small_config(model=gru(recurrent_critic=True), algorithm=ppo()),
    "ppo-lstm": small_config(model=ModelConfig(hidden=(16,), recurrent="lstm", recurrent_size=8), algorithm=ppo()),
    "ppo-cnn": small_config(
        task=GO2,
        model=ModelConfig(hidden=(16,), encoder=ConvConfig(term="position", grid=(4, 3), kernel=2)),
        algorithm=ppo(),
    ),
    "ppo-augmented": small_config(task=GO2, algorithm=ppo(symmetry="augment", normalize_values=True, value_clip=0.2)),
    "ppo-symmetric": small_config(task=GO2, algorithm=ppo(symmetry="loss")),
    "sac": small_config(algorithm=sac()),
    "sac-scalar": small_config(algorithm=sac(atoms=1, pessimistic=True)),
    "distill": small_config(model=gru(), algorithm=STUDENT),
}
KINDS: Final = ("ppo-mlp", "ppo-gru", "sac", "distill")
"""Those that keep different things."""
each_case = pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())
each_kind = pytest.mark.parametrize("config", [CASES[name] for name in KINDS], ids=KINDS)


@pytest.fixture(
    params=[
        "pretended",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)),
    ]
)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[torch.device]:
    """Where learners learn."""
    if request.param == "pretended":
        with pretending() as pretended:
            yield pretended
        return
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    found = learning_device("cuda")
    assert found is not None
    yield found
    torch.use_deterministic_algorithms(False)


def worker_of(
    config: TrainConfig, device: torch.device | None, average: Callable[[torch.Tensor], None] = keep
) -> Worker:
    """The only worker of a run; a student's teacher is made up, has a memory, and no checkpoint."""
    if isinstance(config.algorithm, DistillConfig):
        worker = Worker(msgspec.structs.replace(config, algorithm=ppo()), 0, keep)
        worker.algorithm = student_of(config, worker.collector.sizes, device, average)
        return worker
    return Worker(config, 0, average, device=device)


def student_of(
    config: TrainConfig,
    sizes: tuple[int, int, int],
    device: torch.device | None,
    average: Callable[[torch.Tensor], None],
) -> DistillLearner:
    torch.manual_seed(0)
    teacher = Actor(ModelConfig(hidden=(8,), recurrent="lstm", recurrent_size=4), sizes[1], sizes[2])
    student = Student(config.model, sizes[0], sizes[2], teacher_share=STUDENT.share(0))
    return DistillLearner(
        student, teacher.requires_grad_(False), STUDENT, average, observation_size=sizes[1], seed=0, device=device
    )


def assert_acts_as_it_learned(algorithm: Algorithm) -> None:
    """What acts is on the CPU, and has the learner's weights."""
    learned = algorithm.state()["weights"]
    for name, tensor in algorithm.behaviour.weights().items():
        assert tensor.device == CPU
        np.testing.assert_array_equal(tensor.numpy(), learned[name], err_msg=name)


@each_case
def test_no_tensor_of_the_cpu_meets_one_of_the_device(config: TrainConfig) -> None:
    """And the learner's state is, bit by bit, that of the same sums on the CPU."""
    with pretending() as pretended:
        seen: set[torch.device] = set()
        apart = worker_of(config, pretended, lambda vector: seen.add(vector.device))
        for _ in range(2):
            iterate(apart)
            assert_acts_as_it_learned(apart.algorithm)
        assert seen == {pretended}
        assert {tensor.device for tensor in apart.algorithm.model.state_dict().values()} == {pretended}
        here = worker_of(config, CPU)
        run(here, 2)
        assert_same(apart, here)
        assert apart.weights_sha256() == here.weights_sha256()
        assert len(apart.evaluate(2, seed=0).success) == 2


@each_case
def test_a_device_learns_what_the_cpu_does(config: TrainConfig, device: torch.device) -> None:
    """From the same rollouts, which the one on the CPU collects; PPO's gradients are in closed form there."""
    age = int(config is CASES["ppo-stale"])
    here, there = worker_of(config, None), worker_of(config, device)
    for _ in range(4):
        # By weights that have missed so many updates.
        collected = here.collector.collect(here.algorithm.behaviour, here.algorithm.version - age)
        before = there.algorithm.state()["weights"]
        advantages = [each.algorithm.score([here.collector.rollout]) for each in (here, there)]
        np.testing.assert_allclose(advantages[0].mean, advantages[1].mean, rtol=1e-3, atol=1e-5)
        figures = [each.algorithm.learn(of_each) for each, of_each in zip((here, there), advantages, strict=True)]
        assert_acts_as_it_learned(there.algorithm)
        for name, figure in figures[0].items():
            assert figures[1][name] == pytest.approx(figure, rel=1e-2, abs=1e-4), name
        for each in (here, there):
            each.algorithm.publish(collected.observations)
        expected, got = (each.algorithm.state()["weights"] for each in (here, there))
        moved = max(float(np.abs(got[name] - array).max()) for name, array in before.items())
        for name, array in expected.items():
            # Adam's steps are of the learning rate's size, however small the gradient is that they follow.
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=0.02 * moved, err_msg=name)


@each_kind
def test_going_on_from_a_state_equals_never_having_stopped(config: TrainConfig, device: torch.device) -> None:
    whole, first, second = (worker_of(config, device) for _ in range(3))
    run(whole, 3)
    run(first, 2)
    run(second, 1)  # whatever it did before must not show through
    second.load_state(first.learner_state(), first.state())
    assert_acts_as_it_learned(second.algorithm)
    run(second, 1)
    assert_same(whole, second)


@each_kind
def test_a_state_is_the_same_whatever_the_device(config: TrainConfig, device: torch.device) -> None:
    there, here = worker_of(config, device), worker_of(config, None)
    run(there, 2)
    run(here, 2)
    for got, expected in (
        (there.state().arrays, here.state().arrays),
        *zip(there.learner_state().values(), here.learner_state().values(), strict=True),
    ):
        assert list(got) == list(expected)
        for name, array in got.items():
            assert (array.dtype, array.shape, type(array)) == (expected[name].dtype, expected[name].shape, np.ndarray)
    here.load_state(there.learner_state(), there.state())
    assert here.weights_sha256() == there.weights_sha256()
    assert_same(here, there)


def test_a_pretended_device_refuses_what_a_gpu_would() -> None:
    with pretending() as pretended:
        there, here = torch.ones(3, device=pretended), torch.ones(3)
        layer = set_apart(torch.nn.Linear(3, 1), pretended)
        assert layer(here).device == CPU
        with pytest.raises(MixedDevicesError, match=r"aten\.add\.Tensor"):
            _ = there + here
        with pytest.raises(MixedDevicesError, match=r"aten\.cat"):
            torch.cat((there, here))
        with pytest.raises(MixedDevicesError, match=r"aten\.index\.Tensor"):
            _ = there[torch.tensor([0])]
        with pytest.raises((TypeError, RuntimeError), match="numpy"):
            there.numpy()
        assert (there.to(CPU) + here).tolist() == [2.0, 2.0, 2.0]
        assert float(there.sum()) == 3.0


def test_a_device_computes_the_same_again_and_with_all_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    try:
        assert learning_device("cuda") == torch.device("cuda", 0)
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.use_deterministic_algorithms(False)
    assert learning_device("cpu") is None


@pytest.mark.parametrize(("device", "backend"), [(None, "gloo"), (CPU, "gloo"), (torch.device("cuda", 0), "nccl")])
def test_gradients_are_averaged_where_they_are(
    device: torch.device | None, backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What PyTorch is asked for; a build without CUDA has no NCCL."""
    asked: dict[str, Any] = {}

    def init_process_group(name: str, **options: Any) -> None:
        asked.update(options, name=name)

    monkeypatch.setattr(distributed, "init_process_group", init_process_group)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    assert join_peers(0, 1, str(tmp_path / "peers"), device) is not None
    assert not asked
    join_peers(1, 2, str(tmp_path / "peers"), device)
    assert (asked["name"], asked["rank"], asked["world_size"]) == (backend, 1, 2)
    assert asked["device_id"] == (device if backend == "nccl" else None)
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == "lo"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_a_machine_has_no_gpu_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = small_config(placement=CUDA)
    schedule = Schedule(iterations=1, evaluate_starts=4)
    with pytest.raises(InputError, match=r"this machine has 0 GPUs and 1 is asked for: its PyTorch .*; install|look"):
        train(config, schedule, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    # Simulators and the server take none.
    apart = PlacementConfig(kind="disaggregated", learners=2, inference="server", device="cuda")
    with pytest.raises(InputError, match=r"0 GPUs and 2 are asked for"):
        check_placement(small_config(num_workers=4, placement=apart), Machines())


def test_a_run_goes_on_on_the_device_that_it_began_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule(iterations=1, save_every=1, evaluate_starts=4)
    train(small_config(), schedule, tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match=r"other settings: placement\.device was 'cpu', now 'cuda'"):
        train(small_config(placement=CUDA), schedule, tmp_path, resume=True)


class Looks:
    """Tells which GPUs a worker sees."""

    def look(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_who_takes_a_gpu_sees_that_one_and_the_others_see_none() -> None:
    # Ray takes our word for how many there are.
    with local_cluster(3, num_gpus=2):
        workers = [place(Looks, num_cpus=1, num_gpus=gpus) for gpus in (1, 0, 1)]
        first, none, second = answers([worker.look.remote() for worker in workers])
    assert none == ""
    assert {first, second} == {"0", "1"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("kind", ["colocated", pytest.param("overlapped", marks=pytest.mark.slow)])
def test_a_learner_without_a_gpu_says_so(kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a cluster whose nodes have a GPU and a PyTorch that cannot use it."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = small_config(placement=PlacementConfig(kind=kind, device="cuda"))
    with (
        pytest.raises(InputError, match=r"placement\.device=cuda: the learner cannot use its GPU \(0\): its PyTorch"),
        placed(config, Machines(), dumps=tmp_path),
    ):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
@pytest.mark.parametrize("model", [ModelConfig(hidden=(16,)), gru()], ids=["mlp", "gru"])
def test_a_resumed_run_on_a_gpu_is_the_same(model: ModelConfig, tmp_path: Path) -> None:
    config = small_config(model=model, placement=CUDA)

    def trained(iterations: int, folder: Path, *, resume: bool = False) -> str:
        schedule = Schedule(iterations=iterations, save_every=1, evaluate_starts=4)
        return train(config, schedule, folder, resume=resume).weights_sha256

    trained(2, tmp_path / "parts")
    assert trained(4, tmp_path / "parts", resume=True) == trained(4, tmp_path / "whole")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
def test_replicas_on_gpus_stay_equal(tmp_path: Path) -> None:
    with placed(small_config(num_workers=2, placement=CUDA), Machines(), dumps=tmp_path) as workers:
        assert isinstance(workers, Colocated)
        for _ in range(3):
            collected = workers.collect()
            workers.learn(merge(workers.score()))
            workers.publish(merge(each.observations for each in collected))
            assert len(set(workers.weights_sha256())) == 1
