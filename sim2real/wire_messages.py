"""The control messages of the wire: JSON objects that open and close a connection between plant and edge."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from sim2real import __version__
from sim2real.clock import clock_id
from sim2real.contract import PolicyContract, contract_hash
from sim2real.layout import COMMAND_ROWS, SignalLayout

__all__ = [
    "LATEST_NS",
    "WIRE_VERSION",
    "Bye",
    "Control",
    "Hello",
    "Mode",
    "Ping",
    "Pong",
    "Refuse",
    "Start",
    "make_hello",
    "mismatch",
]

WIRE_VERSION: Final = 1

LATEST_NS: Final = 2**61
"""Bound on both sides of every stamp from a peer [ns], 73 years: two clocks then differ by at most 2^62, and a stamp
shifted by that still fits into the 64 bits that a frame has for it."""

_Stamp = Annotated[int, msgspec.Meta(ge=-LATEST_NS, le=LATEST_NS)]
_Offset = Annotated[int, msgspec.Meta(ge=-2 * LATEST_NS, le=2 * LATEST_NS)]
_Uncertainty = Annotated[int, msgspec.Meta(ge=0, le=2 * LATEST_NS)]

Mode = Literal["lockstep", "realtime"]
"""lockstep: the plant waits for each command; realtime: it does not."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the JSON messages share."""


class Hello(_Message, frozen=True, kw_only=True):
    """Who speaks. Plant and edge exchange it first and go on only if they agree (see `mismatch`)."""

    wire_version: int
    toolkit_version: str
    contract_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    robot: str
    task: str
    joint_names: tuple[str, ...]
    state_size: Annotated[int, msgspec.Meta(ge=1)]
    """Values in a STATE: the size of the contract's `SignalLayout`."""
    control_period_ns: int
    mode: Mode
    clock_id: str
    """Name of the speaker's clock, see `sim2real.clock.clock_id`."""

    @property
    def contract_hash(self) -> bytes:
        """SHA-256 of the contract, 32 bytes, as it stands in every header."""
        return bytes.fromhex(self.contract_sha256)

    @property
    def state_shape(self) -> tuple[int]:
        """Shape of a STATE's array: (state_size,)."""
        return (self.state_size,)

    @property
    def command_shape(self) -> tuple[int, int]:
        """Shape of a COMMAND's array: (5, num_joints), rows as in `sim2real.layout`."""
        return (COMMAND_ROWS, len(self.joint_names))


class Refuse(_Message, frozen=True, kw_only=True):
    """The plant will not serve this edge."""

    reason: str


class Ping(_Message, frozen=True, kw_only=True):
    """One round of clock comparison begins, at `sent_ns` on the edge's clock."""

    sent_ns: _Stamp


class Pong(_Message, frozen=True, kw_only=True):
    """The answer to a ping: when it was received and answered on the plant's clock."""

    ping_sent_ns: _Stamp
    received_ns: _Stamp
    sent_ns: _Stamp


class Start(_Message, frozen=True, kw_only=True):
    """The edge is ready; from here on the plant sends states."""

    offset_ns: _Offset
    """Plant clock minus edge clock."""
    uncertainty_ns: _Uncertainty
    """Half the round trip in which the offset was measured; 0 when both read the same clock."""


class Bye(_Message, frozen=True, kw_only=True):
    """The last message of either side."""

    reason: str


Control = Hello | Refuse | Ping | Pong | Start | Bye


def make_hello(contract: PolicyContract, *, mode: Mode) -> Hello:
    """Return what this process says about itself and `contract`.

    Raises:
        ContractError: The contract does not hold together.
    """
    return Hello(
        wire_version=WIRE_VERSION,
        toolkit_version=__version__,
        contract_sha256=contract_hash(contract).hex(),
        robot=contract.identity.robot,
        task=contract.identity.task,
        joint_names=contract.joint_names,
        state_size=SignalLayout(contract).size,
        control_period_ns=contract.timing.control_period_ns,
        mode=mode,
        clock_id=clock_id(),
    )


def mismatch(plant: Hello, edge: Hello) -> str | None:
    """Return what the two disagree on, naming both values, or None. The toolkit's version and the clock may differ."""
    names = (
        "wire_version",
        "contract_sha256",
        "robot",
        "task",
        "joint_names",
        "state_size",
        "control_period_ns",
        "mode",
    )
    differences = [
        f"{name}: plant has {getattr(plant, name)!r}, edge has {getattr(edge, name)!r}"
        for name in names
        if getattr(plant, name) != getattr(edge, name)
    ]
    return "; ".join(differences) or None
