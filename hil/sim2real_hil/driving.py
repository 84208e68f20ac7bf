"""Who drives the robots of an environment: nobody, or a policy through the edge's own controller, as on a robot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.bundle import Bundle
from sim2real.contract import PolicyContract
from sim2real.errors import ContractError
from sim2real.robots import same_robot
from sim2real.tasks import TaskEnv
from sim2real.wire import Status
from sim2real_edge.controller import Controller
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import require_golden

__all__ = ["Driver", "EdgeDriver", "ZeroDriver", "check_fits"]

_POLICY_IO: Final = ("timing", "joints", "observation", "action", "commands", "model")
"""Parts of a contract that a policy and a task must share. Identity, safety and budgets may differ."""


class Driver(Protocol):
    """Acts in all environments."""

    @property
    def policy(self) -> str | None:
        """SHA-256 of the checkpoint that acts; None: nobody does."""
        ...

    def act(self) -> npt.NDArray[np.float32]:
        """Return the actions for the present observations, shape (N, A)."""
        ...

    def begin(self, env_ids: npt.NDArray[np.intp]) -> None:
        """Take note that new episodes have begun in `env_ids`."""
        ...

    def findings(self) -> dict[str, int]:
        """Return in how many control steps a supervisor stepped in, by cause."""
        ...


class ZeroDriver:
    """Zero actions: in most tasks, the default pose."""

    policy = None

    def __init__(self, env: TaskEnv) -> None:
        self._action = np.zeros((env.num_envs, env.contract.model.action_size), np.float32)

    def act(self) -> npt.NDArray[np.float32]:
        """Return zeros, shape (N, A)."""
        return self._action

    def begin(self, env_ids: npt.NDArray[np.intp]) -> None:
        """There is nothing to forget."""

    def findings(self) -> dict[str, int]:
        """Nobody supervises."""
        return {}


class EdgeDriver:
    """A policy bundle: one controller of the edge for each environment, its supervisor included.

    Args:
        bundle: The policy.
        env: Where it acts; begins new episodes.
        engine: Inference engine of the edge.

    Raises:
        ContractError: The policy was made for other inputs or outputs than the task's.
        EngineError: The engine is not available here, or does not reproduce the golden vectors.
    """

    def __init__(self, bundle: Bundle, env: TaskEnv, engine: str) -> None:
        check_fits(bundle.contract, env.contract)
        self.policy: str | None = bundle.contract.identity.checkpoint_sha256
        self._bundle = bundle
        self._env = env
        self._engines = [load_engine(engine, bundle) for _ in range(env.num_envs)]
        require_golden(self._engines[0], bundle)
        self._controllers = [Controller(bundle, loaded) for loaded in self._engines]
        self._action = np.zeros((env.num_envs, env.contract.model.action_size), np.float32)
        self._mapper = _Supervised(env.contract, env.num_envs)
        self._findings = Counter[str]()
        env.mapper = self._mapper
        env.reset(env.seed)

    def act(self) -> npt.NDArray[np.float32]:
        """Let every controller see the measurement of its environment; return what their networks gave, (N, A)."""
        observer = self._env.observer
        for index, controller in enumerate(self._controllers):
            controller.measurement[:] = observer.signals[index]
            controller.operator[:] = observer.commands[index]
            self._mapper.supervised[index] = controller.tick(0, 0)
            self._action[index] = controller.action
            if controller.level is not Status.RUN:
                self._findings[controller.cause] += 1
        return self._action

    def begin(self, env_ids: npt.NDArray[np.intp]) -> None:
        """Begin episodes of the policies, with supervisors that know of nothing wrong."""
        for index in map(int, env_ids):
            self._controllers[index] = Controller(self._bundle, self._engines[index])

    def findings(self) -> dict[str, int]:
        """Return in how many control steps the supervisors did not let the policy drive, by cause."""
        return dict(self._findings)


class _Supervised(ActionMapper):
    """Gives the plant what the supervisors hand out.

    Attributes:
        supervised: Their command blocks, shape (N, 5, J).
    """

    def __init__(self, contract: PolicyContract, num_envs: int) -> None:
        super().__init__(contract, num_envs)
        self.supervised = self.command.copy()

    def apply(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the supervised command blocks, shape (N, 5, J), for the actions that led to them."""
        self.command[:] = self.supervised
        return self.command


def check_fits(policy: PolicyContract, task: PolicyContract) -> None:
    """Check that a policy has the inputs and outputs of a task.

    Raises:
        ContractError: It has not; the message names the first place that differs.
    """
    if not same_robot(policy.identity.robot, task.identity.robot):
        raise ContractError(
            f"contract.identity.robot: the policy drives {policy.identity.robot!r}, task {task.identity.task} is for "
            f"{task.identity.robot!r}; choose a task, or --robot, of the policy's"
        )
    # A memory is the network's own matter.
    contracts = [
        msgspec.structs.replace(contract, model=msgspec.structs.replace(contract.model, recurrent=()))
        for contract in (policy, task)
    ]
    for part in _POLICY_IO:
        found, wanted = (dict(_leaves(f"contract.{part}", getattr(contract, part))) for contract in contracts)
        if difference := _first_difference(found, wanted):
            raise ContractError(
                f"{difference}; the policy was made for task {policy.identity.task}: play that one, or train it anew"
            )


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every field below `value`; items of a list go by their names."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _leaves(f"{path}.{field}", getattr(value, field))
    elif isinstance(value, tuple) and any(isinstance(item, msgspec.Struct) for item in cast("tuple[Any, ...]", value)):
        for item in cast("tuple[msgspec.Struct, ...]", value):
            yield from _leaves(f"{path}[{getattr(item, 'name', '')}]", item)
    else:
        yield path, value


def _first_difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return in words where a policy's fields first differ from the task's; empty if they do not."""
    for path, value in wanted.items():
        if path not in found:
            return f"{path}: the policy has none, the task has {value!r}"
        if found[path] != value:
            return f"{path}: the policy has {found[path]!r}, the task {value!r}"
    for path, value in found.items():
        if path not in wanted:
            return f"{path}: the policy has {value!r}, the task has none"
    for path, instead in zip(found, wanted, strict=True):
        if path != instead:
            return f"{path}: the policy has it where the task has {instead}"
    return ""
