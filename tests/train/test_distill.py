from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from sim2real.errors import InputError
from sim2real.tasks import get_task
from sim2real_train.algorithm import Average
from sim2real_train.checkpoint import State, write_checkpoint
from sim2real_train.commands import EvaluateArgs, run_evaluate
from sim2real_train.config import TrainConfig, check_config
from sim2real_train.distill import DistillConfig, DistillLearner, Lessons, Student, TeacherRef, imitation_loss
from sim2real_train.environments import check_task
from sim2real_train.evaluate import evaluate, run_episodes
from sim2real_train.export import export
from sim2real_train.models import Actor, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.policy import TorchPolicy
from sim2real_train.rollout import Rollout
from sim2real_train.subject import load_subject
from sim2real_train.teacher import load_teacher, teacher_at
from sim2real_train.trainer import Schedule, train
from sim2real_train.worker import Worker
from tests.train.builders import TASK, iterate, keep, make_worker, metrics, small_config
from tests.train.test_worker import assert_same, run

ACROBOT = "acrobot-swingup"
"""A task whose critic sees more than the policy."""
OBSERVATION, SEEN, ACTION = 3, 5, 2
GRU = ModelConfig(hidden=(8,), recurrent="gru", recurrent_size=6)
LSTM = ModelConfig(hidden=(8,), recurrent="lstm", recurrent_size=6)
MLP = ModelConfig(hidden=(8,))
NOBODY = TeacherRef(checkpoint="/nowhere", weights_sha256="0" * 64)
"""For learners that are given their teacher."""


def lively(config: ModelConfig, observation_size: int) -> Actor:
    """An actor whose actions are not all about 0, as they are before training."""
    actor = Actor(config, observation_size, ACTION)
    with torch.no_grad():
        for parameter in actor.network.parameters():
            parameter.normal_(std=0.7)
    actor.normalizer.mean.normal_()
    return actor.requires_grad_(False)


def learner_of(
    model: ModelConfig = GRU,
    teacher: ModelConfig = MLP,
    teacher_size: int = SEEN,
    average: Average = keep,
    **settings: Any,
) -> DistillLearner:
    torch.manual_seed(0)
    config = DistillConfig(teacher=NOBODY, **settings)
    student = Student(model, OBSERVATION, ACTION, teacher_share=config.share(0))
    return DistillLearner(student, lively(teacher, teacher_size), config, average, observation_size=SEEN, seed=0)


def random_rollout(learner: DistillLearner, steps: int = 6, envs: int = 4) -> Rollout:
    """What no two steps of look alike, with episodes that begin in it."""
    rollout = Rollout(steps, envs, OBSERVATION, SEEN, ACTION)
    rollout.critic_observations.normal_()
    rollout.episode_start = torch.rand(steps + 1, envs) < 0.3
    rollout.state = tuple(torch.randn_like(each) for each in learner.behaviour.initial_state(envs))
    return rollout


def step_by_step(
    actor: Actor, seen: torch.Tensor, state: tuple[torch.Tensor, ...], starts: torch.Tensor
) -> torch.Tensor:
    """The actions of one environment after the other, its memory set to zero by hand where an episode begins."""
    actions = torch.empty(*seen.shape[:2], ACTION)
    for env in range(seen.shape[1]):
        memory = [tensor[env : env + 1] for tensor in state]
        for step in range(len(seen)):
            if starts[step, env]:
                memory = [torch.zeros_like(tensor) for tensor in memory]
            action, *memory = actor(seen[step, env : env + 1, : actor.observation_size], *memory)
            actions[step, env] = action[0]
    return actions


@pytest.mark.parametrize("teacher_size", [OBSERVATION, SEEN])
@pytest.mark.parametrize("teacher", [MLP, GRU, LSTM], ids=lambda config: config.recurrent)
def test_labels_are_what_the_teacher_would_do_on_what_it_sees(teacher: ModelConfig, teacher_size: int) -> None:
    """Of every step of every rollout, with the teacher's own memory and normaliser, beside what the student sees."""
    learner = learner_of(LSTM, teacher, teacher_size)
    rollouts = [random_rollout(learner) for _ in range(3)]
    assert learner.score([Rollout.of(rollout.arrays()) for rollout in rollouts]).count == 0.0
    (lessons,) = learner.lessons
    for index, rollout in enumerate(rollouts):
        columns = slice(4 * index, 4 * index + 4)
        seen, starts = rollout.critic_observations[:-1], rollout.episode_start[:-1]
        expected = step_by_step(learner.teacher, seen, rollout.state[2:], starts)
        torch.testing.assert_close(lessons.labels[:, columns], expected)
        torch.testing.assert_close(lessons.observations[:, columns], seen[..., :OBSERVATION])
        assert torch.equal(lessons.episode_start[:, columns], starts)
        for of_lessons, of_rollout in zip(lessons.state, rollout.state[:2], strict=True):
            assert torch.equal(of_lessons[columns], of_rollout)


def test_lessons_do_not_change_with_the_rollout_that_they_came_from() -> None:
    learner = learner_of()
    rollout = random_rollout(learner)
    learner.score([rollout])
    before = {name: array.copy() for name, array in learner.lessons[0].arrays().items()}
    rollout.critic_observations.fill_(9.0)
    rollout.episode_start.fill_(True)
    for name, array in learner.lessons[0].arrays().items():
        assert (array == before[name]).all()


@pytest.mark.parametrize("model", [MLP, GRU, LSTM], ids=lambda config: config.recurrent)
def test_the_loss_is_the_mean_over_actions_taken_step_by_step(model: ModelConfig) -> None:
    """A memory that is not reset where an episode begins, or another environment's, shows here."""
    learner = learner_of(model)
    learner.score([random_rollout(learner) for _ in range(2)])
    (lessons,) = learner.lessons
    assert lessons.episode_start.any()
    assert not lessons.episode_start.all()
    with torch.no_grad():
        actions = step_by_step(learner.actor, lessons.observations, lessons.state, lessons.episode_start)
        off = (actions - lessons.labels).abs()
        losses = {"mse": off.square(), "huber": torch.where(off < 0.5, 0.5 * off.square(), 0.5 * (off - 0.25))}
        assert ((off < 0.5).any(), (off > 0.5).any()) == (True, True)
        for name, loss in losses.items():
            config = msgspec.structs.replace(learner.config, loss=name, huber_delta=0.5)
            parts = list(lessons.minibatches(4, torch.Generator().manual_seed(0)))
            mean = torch.stack([imitation_loss(learner.actor, part, config) for part in parts]).mean()
            torch.testing.assert_close(mean, loss.mean())


@pytest.mark.parametrize("loss", ["mse", "huber"])
@pytest.mark.parametrize("model", [MLP, GRU, LSTM], ids=lambda config: config.recurrent)
def test_gradients_are_those_of_finite_differences(model: ModelConfig, loss: str) -> None:
    learner = learner_of(model, loss=loss, huber_delta=0.3)
    learner.score([random_rollout(learner)])
    (lessons,) = learner.lessons
    actor = learner.actor.double()
    lessons = Lessons(
        episode_start=lessons.episode_start,
        state=tuple(tensor.double() for tensor in lessons.state),
        observations=lessons.observations.double(),
        labels=lessons.labels.double(),
    )
    parameters = list(actor.parameters())
    gradients = torch.autograd.grad(imitation_loss(actor, lessons, learner.config), parameters)
    step = 1e-6
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn_like(parameter)
        losses: list[float] = []
        for sign in (1.0, -1.0):
            parameter.data += sign * step * direction
            losses.append(imitation_loss(actor, lessons, learner.config).item())
            parameter.data -= sign * step * direction
        slope = (losses[0] - losses[1]) / (2.0 * step)
        assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_the_teacher_acts_in_its_share_of_the_environments_for_the_whole_rollout() -> None:
    envs, steps = 2000, 3
    learner = learner_of(teacher=LSTM, teacher_share=0.8, teacher_share_updates=4, noise_std=0.01)
    behaviour, generator = learner.behaviour, torch.Generator().manual_seed(0)
    shares: list[float] = []
    for _ in range(5):
        noise = behaviour.noise(torch.Size((steps, envs, ACTION)), generator)
        state = behaviour.initial_state(envs)
        taught: list[torch.Tensor] = []
        for step in range(steps):
            seen = torch.randn(envs, SEEN, generator=generator)
            of_student, *after_student = learner.actor(seen[:, :OBSERVATION], *state[:1])
            of_teacher, *after_teacher = learner.teacher(seen, *state[1:])
            acted = behaviour.act(seen, state, noise[step])
            taught.append((acted.means == of_teacher).all(dim=1))
            assert torch.equal(acted.means, torch.where(taught[-1][:, None], of_teacher, of_student))
            assert (acted.actions - acted.means).std().item() == pytest.approx(0.01, rel=0.1)
            # Either's memory goes along, whoever acts.
            for got, expected in zip(acted.state, [*after_student, *after_teacher], strict=True):
                torch.testing.assert_close(got, expected)
            state = acted.state
        assert torch.equal(taught[0], taught[1])
        assert torch.equal(taught[0], taught[2])
        shares.append(taught[0].float().mean().item())
        learner.score([random_rollout(learner)])
        figures = learner.learn(Moments.none(1))
        # Five standard deviations of a share of 2,000.
        assert figures["teacher_share"] == pytest.approx(shares[-1], abs=0.056)
        assert torch.equal(behaviour.weights()["teacher_share"], learner.student.teacher_share)
    assert shares == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0], abs=0.056)
    assert shares[-1] == 0.0


def test_the_last_rollouts_are_learned_from_together_in_minibatches_of_the_same_size() -> None:
    steps: list[int] = []
    learner = learner_of(average=lambda gradient: steps.append(len(gradient)), rollouts=4, epochs=2, minibatches=2)
    size = sum(parameter.numel() for parameter in learner.model.parameters())
    marks: list[list[float]] = []
    for number in range(6):
        rollout = random_rollout(learner)
        rollout.critic_observations[..., 0] = float(number)
        learner.score([rollout])
        marks.append([float(lessons.observations[0, 0, 0]) for lessons in learner.lessons])
        steps.clear()
        learner.learn(Moments.none(1))
        assert steps == [size] * (2 * 2 * min(number + 1, 4))
    assert marks == [[float(each) for each in range(max(0, last - 3), last + 1)] for last in range(6)]


def test_the_student_is_normalised_by_its_own_observations_and_the_teacher_by_those_it_was_trained_on() -> None:
    learner = learner_of()
    before = learner.teacher.normalizer.mean.clone()
    seen = torch.arange(SEEN) + 0.1 * torch.randn(100, SEEN)
    learner.publish(Moments.of(seen.numpy()))
    torch.testing.assert_close(learner.actor.normalizer.mean, seen.mean(dim=0)[:OBSERVATION])
    assert torch.equal(learner.teacher.normalizer.mean, before)


def recalled(model: ModelConfig) -> float:
    """Error of a student whose teacher sees all along what itself sees in an episode's first step alone."""
    generator = torch.Generator().manual_seed(0)
    learner = learner_of(model, teacher_share=0.0, learning_rate=5e-3, minibatches=2)
    cue, figures = torch.zeros(32), dict[str, float]()
    for _ in range(40):
        rollout = Rollout(12, 32, OBSERVATION, SEEN, ACTION)
        rollout.episode_start = torch.rand(13, 32, generator=generator) < 0.15
        rollout.state = learner.behaviour.initial_state(32)
        rollout.episode_start[0] = True
        for step in range(12):
            starts = rollout.episode_start[step]
            cue = torch.where(starts, torch.randn(32, generator=generator).sign(), cue)
            rollout.critic_observations[step, :, 0] = cue * starts
            rollout.critic_observations[step, :, OBSERVATION:] = cue[:, None]
        learner.score([rollout])
        figures = learner.learn(Moments.none(1))
    return figures["teacher_error"]


def test_a_student_with_memory_recalls_what_the_teacher_sees() -> None:
    """And one without cannot: it is not told otherwise, e.g. by an observation that is not its own."""
    assert recalled(ModelConfig(hidden=(16,), recurrent="gru", recurrent_size=16)) < 0.05
    assert recalled(ModelConfig(hidden=(16,))) > 0.15


class Regulator(Actor):
    """Swings the pendulum up by its energy, and holds it by proportional and derivative gains."""

    def __init__(self) -> None:
        super().__init__(ModelConfig(hidden=(1,)), 4, 1)

    def unroll_states(
        self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], episode_start: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        return self(observations)[0], ()

    def forward(self, observation: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sine, cosine, velocity = observation[..., 0], observation[..., 1], 10.0 * observation[..., 2]
        error = torch.atan2(-sine, -cosine)
        missing = 1.02 - (0.25 * velocity.square() / 19.62 + 0.5 - 0.5 * cosine)
        hold = -3.2 * error - 0.64 * velocity
        pump = 3.0 * missing * torch.tanh(velocity)
        near = torch.sigmoid((0.4 - error.abs()) / 0.05)
        return (torch.tanh(near * hold + (1.0 - near) * pump)[..., None],)


def test_a_student_learns_to_swing_up_from_a_regulator() -> None:
    """The bar: 90 % of 128 starts, where the teacher succeeds in 97 % or more."""
    algorithm = DistillConfig(
        teacher=NOBODY, num_steps=40, epochs=8, minibatches=8, teacher_share_updates=10, learning_rate=2e-3
    )
    worker = make_worker(small_config(num_envs=64, model=ModelConfig(hidden=(64, 64))))
    student = Student(ModelConfig(hidden=(64, 64)), 4, 1, teacher_share=1.0)
    learner = DistillLearner(student, Regulator(), algorithm, keep, observation_size=4, seed=0)
    worker.algorithm = learner
    run(worker, 30)
    for actor, bar in ((learner.teacher, 0.97), (learner.actor, 0.9)):
        assert evaluate(TorchPolicy(actor), get_task(TASK), starts=128).success_rate >= bar


def save(worker: Worker, folder: Path, iteration: int) -> Path:
    """Write the checkpoint of a worker."""
    state = worker.state()
    written = State(
        schema_version=2,
        toolkit_version="0",
        config=worker.config,
        iteration=iteration,
        wall_seconds=1.0,
        metrics=tuple(metrics(each + 1) for each in range(iteration)),
        generators=(state.generator,),
        members={},
    )
    write_checkpoint(folder, written, worker.learner_state() | {"worker-0": state.arrays})
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, bool], Path]:
    """Returns the checkpoint of a teacher of a task, by its memory and whether it is privileged; trained once."""

    @functools.cache
    def make(task: str, recurrent: Any, privileged: bool) -> Path:
        model = ModelConfig(hidden=(16,), recurrent=recurrent, recurrent_size=8, privileged=privileged)
        worker = make_worker(small_config(task=task, model=model))
        run(worker, 2)
        return save(worker, tmp_path_factory.mktemp("teacher"), 2)

    return make


def distill_config(teacher: Path, **changes: Any) -> TrainConfig:
    algorithm = DistillConfig(teacher=teacher_at(teacher), num_steps=16, epochs=1, minibatches=2, rollouts=3)
    return small_config(**({"task": ACROBOT, "model": GRU, "num_envs": 4, "algorithm": algorithm} | changes))


def test_a_privileged_actor_acts_on_what_the_critic_sees_and_is_judged_on_it() -> None:
    worker = make_worker(small_config(task=ACROBOT, model=msgspec.structs.replace(MLP, privileged=True)))
    iterate(worker)
    _, critic_size, _ = worker.collector.sizes
    assert worker.algorithm.actor.observation_size == critic_size
    worker.collect()
    rollout = worker.collector.rollout
    with torch.no_grad():
        means = worker.algorithm.actor(rollout.critic_observations[:-1])[0]
    torch.testing.assert_close(rollout.means, means)
    worker.score()
    assert len(worker.evaluate(2, seed=0).success) == 2


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_going_on_from_a_state_equals_never_having_stopped(
    teacher: Callable[[str, str, bool], Path], recurrent: str
) -> None:
    """With lessons that are kept, memories of both, and a share of the teacher that falls."""
    config = distill_config(teacher(ACROBOT, recurrent, True))
    whole, first, second = (make_worker(config) for _ in range(3))
    # Episodes of 100 steps end on both sides of the stop.
    run(whole, 14)
    run(first, 7)
    run(second, 2)  # whatever a worker did before must not show through
    second.load_state(first.learner_state(), first.state())
    run(second, 7)
    assert_same(whole, second)


def test_a_student_is_exported_and_its_teacher_is_not(
    teacher: Callable[[str, str, bool], Path], tmp_path: Path
) -> None:
    config = distill_config(teacher(ACROBOT, "none", True))
    worker = make_worker(config)
    run(worker, 2)
    folder = save(worker, tmp_path / "student", 2)
    assert export(folder, tmp_path / "policy.s2r").passed
    subject = load_subject(tmp_path / "policy.s2r")
    assert not subject.privileged
    assert evaluate(subject.policy, subject.task, starts=1).starts == 1
    message = "no robot can run it; it is a teacher: train a student of it"
    with pytest.raises(InputError, match=message):
        export(teacher(ACROBOT, "none", True), tmp_path / "teacher.s2r")
    assert not (tmp_path / "teacher.s2r").exists()


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_a_teacher_is_judged_by_what_the_critic_sees(teacher: Callable[[str, str, bool], Path], recurrent: str) -> None:
    """In the command as in training: the same episodes."""
    folder = teacher(ACROBOT, recurrent, True)
    outcome = run_evaluate(EvaluateArgs(policy=folder, starts=3, min_success=0.0, nominal=True))
    assert outcome.result["privileged"]
    assert "no robot measures" in outcome.summary
    actor = load_teacher(teacher_at(folder), distill_config(folder), (11, 13, 1))
    episodes = run_episodes(
        TorchPolicy(actor), get_task(ACROBOT), starts=3, seed=1, randomization=None, privileged=True
    )
    assert outcome.result["mean_return"] == sum(episodes.returns) / 3


def test_a_student_may_be_a_teacher(teacher: Callable[[str, str, bool], Path], tmp_path: Path) -> None:
    """And so may any policy of the task: it reads what the student does."""
    worker = make_worker(distill_config(teacher(ACROBOT, "none", False)))
    folder = save(worker, tmp_path / "student", 0)
    second = make_worker(distill_config(folder, model=MLP))
    run(second, 1)
    learner = second.algorithm
    assert isinstance(learner, DistillLearner)
    assert learner.teacher.observation_size == learner.actor.observation_size
    assert learner.lessons[0].labels.shape == (16, 4, 1)


def test_a_teacher_that_does_not_fit_is_refused(teacher: Callable[[str, str, bool], Path], tmp_path: Path) -> None:
    folder = teacher(ACROBOT, "none", True)
    config = distill_config(folder)
    reference = teacher_at(folder)
    load_teacher(reference, config, (11, 13, 1))
    with pytest.raises(InputError, match=r"trained with task acrobot-swingup, the student is to be with pendubot"):
        make_worker(distill_config(folder, task="pendubot-swingup"))
    with pytest.raises(InputError, match=r"reads 13 numbers, but acrobot-swingup gives it 15; the task has changed"):
        load_teacher(reference, config, (11, 15, 1))
    with pytest.raises(InputError, match=r"do not fit the network"):
        load_teacher(reference, config, (11, 13, 2))
    other = msgspec.structs.replace(reference, weights_sha256="ab" * 32)
    with pytest.raises(InputError, match=r"holds other weights \(SHA-256 .*teacher \(abababababab…\)"):
        load_teacher(other, config, (11, 13, 1))
    with pytest.raises(InputError, match="give the folder of a run, or one of its checkpoint folders"):
        teacher_at(tmp_path)
    with pytest.raises(InputError, match="a student acts on what a robot measures"):
        check_config(distill_config(folder, model=msgspec.structs.replace(MLP, privileged=True)))


def test_a_run_does_not_go_on_with_another_teacher(teacher: Callable[[str, str, bool], Path], tmp_path: Path) -> None:
    config = distill_config(teacher(ACROBOT, "none", True))
    worker = make_worker(config)
    run(worker, 1)
    save(worker, tmp_path / "checkpoint", 1)
    other = distill_config(teacher(ACROBOT, "none", False))
    with pytest.raises(InputError, match=r"algorithm\.teacher\.weights_sha256 was '.*', now '"):
        train(other, Schedule(iterations=2), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("name", "value"), [("rollouts", 0), ("noise_std", 0.0), ("teacher_share", 1.5), ("teacher_share_updates", 0)]
)
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    config = msgspec.structs.replace(DistillConfig(teacher=NOBODY), **{name: value})
    with pytest.raises(InputError, match=rf"algorithm\.{name}: expected an? (number|integer)"):
        check_config(small_config(algorithm=config))


@pytest.mark.parametrize("task", [TASK, "gym:Pendulum-v1"])
def test_where_a_critic_sees_no_more_there_is_no_privileged_policy(task: str) -> None:
    with pytest.raises(InputError, match="leave out --privileged"):
        check_task(small_config(task=task, model=ModelConfig(privileged=True)))
