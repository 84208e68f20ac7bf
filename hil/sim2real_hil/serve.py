"""A plant for an edge that somebody else starts, here or on another machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from sim2real.bundle import Bundle
from sim2real.clock import NS_PER_S
from sim2real.command import Outcome
from sim2real.curve import CurveKeys
from sim2real.sim.plant import Plant
from sim2real.wire_messages import make_hello
from sim2real.wire_plant import PlantSocket
from sim2real_hil.connection import farewell
from sim2real_hil.plant_server import RealtimePlant, make_plant, serve_lockstep
from sim2real_hil.progress import bar, watched
from sim2real_hil.units import nanoseconds

if TYPE_CHECKING:
    from sim2real_hil.commands import PlantArgs

__all__ = ["serve"]


def serve(bundle: Bundle, args: PlantArgs) -> Outcome:
    """Serve one edge until it leaves or the time is over."""
    contract = bundle.contract
    keys = None if args.keys is None else CurveKeys.load(args.keys, "plant")
    plant = make_plant(contract, start=args.start, seed=args.seed, robot=args.robot)
    run = _in_lockstep if args.mode == "lockstep" else _in_realtime
    with PlantSocket(args.bind, hello=make_hello(contract, mode=args.mode), keys=keys) as socket:
        # The one line that a person, or a script, needs to start the edge.
        tqdm.write(f"plant: {contract.identity.robot}, {args.mode}, at {socket.endpoint}", file=sys.stderr)
        session = socket.accept(round(args.wait * NS_PER_S))
        with farewell(socket):
            counted = run(plant, socket, bundle, args)
        socket.bye("done: the plant's time is over")
        endpoint = socket.endpoint
    uncertainty = session.clock.uncertainty_ns
    result = {
        "mode": args.mode,
        "endpoint": endpoint,
        "clock_offset_ns": session.clock.offset_ns,
        "clock_uncertainty_ns": uncertainty,
        **counted,
    }
    return Outcome(passed=True, result=result, summary=_summary(endpoint, counted, uncertainty))


def _summary(endpoint: str, counted: dict[str, Any], uncertainty_ns: int) -> str:
    told = f"served {counted['ticks']} ticks at {endpoint}"
    if lost := counted.get("lost_ticks"):
        told += f"; {lost} more were lost to this machine's load, their physics made up for"
    if damped := counted.get("damped_ticks"):
        told += f"; damped at {damped}, where no command was new enough"
    # On one machine both read the same clock.
    return told + (f"; the edge's clock is known to ± {nanoseconds(uncertainty_ns)}" if uncertainty_ns else "")


def _in_lockstep(plant: Plant, socket: PlantSocket, bundle: Bundle, args: PlantArgs) -> dict[str, Any]:
    period_ns = bundle.contract.timing.control_period_ns
    ticks = None if args.seconds is None else max(1, round(args.seconds * NS_PER_S / period_ns))
    with bar(ticks, "lockstep", "tick") as progress:
        serve_lockstep(
            plant,
            socket,
            bundle.contract,
            ticks=ticks,
            timeout_ns=round(args.timeout * NS_PER_S),
            check=_nothing,
            progress=progress.update,
        )
        return {"ticks": progress.n}


def _in_realtime(plant: Plant, socket: PlantSocket, bundle: Bundle, args: PlantArgs) -> dict[str, Any]:
    period_ns = bundle.contract.timing.physics_step_ns
    ticks = None if args.seconds is None else max(1, round(args.seconds * NS_PER_S / period_ns))
    timeout_ns = round(args.timeout * NS_PER_S)
    server = RealtimePlant(plant, socket, bundle.contract, ticks=ticks, timeout_ns=timeout_ns, check=_nothing)
    with watched(lambda: server.ticker.index + 1, ticks, "real time", "tick"):
        run = server.run()
    return {
        "ticks": run.ticks,
        "lost_ticks": run.lost_ticks,
        "waiting_ticks": run.waiting_ticks,
        "damped_ticks": run.damped_ticks,
        "supervised_ticks": run.supervised_ticks,
        "superseded": run.superseded,
        "dropped": run.drops,
        "max_action_age_ns": run.max_action_age_ns,
    }


def _nothing() -> None:
    """There is no process of ours to look after."""
