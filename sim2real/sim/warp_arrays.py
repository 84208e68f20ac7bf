"""What the engines on Warp share: devices, arrays that live on one, and their NumPy twins on the host.

Warp compiles its kernels at their first use, which takes tens of seconds, and keeps them in WARP_CACHE_PATH, or else in
the user's cache folder (~/.cache/warp on Linux).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import warp as wp

from sim2real.errors import InputError

__all__ = ["Array", "Graphs", "Mirror", "device_of", "flat", "host_copy", "keep", "put", "write"]

Array = npt.NDArray[np.float64]
DeviceArray = Any
"""A `warp.array`; its element type and shape are known only when it runs."""

_QUIET: Final = wp.LOG_ERROR


def device_of(name: str | None) -> Any:
    """Return the Warp device called `name`; None: the first GPU where there is one, else the CPU.

    Raises:
        InputError: There is no such device.
    """
    wp.config.log_level = max(wp.config.log_level, _QUIET)  # no banner, and no line for each module that is loaded
    wp.init()
    if name is None:
        return wp.get_device("cuda:0" if wp.is_cuda_available() else "cpu")
    known = [str(device) for device in wp.get_devices()]
    if name not in known:
        without = "" if wp.is_cuda_available() else "; Warp finds no NVIDIA GPU or no driver for it"
        raise InputError(f"device {name!r}: unknown; allowed here: {', '.join(known)}{without}")
    return wp.get_device(name)


def flat(array: DeviceArray) -> DeviceArray:
    """Return a view of a float array, of any element type, as shape (rows, floats in a row); keep the array alive."""
    rows = array.shape[0]
    width = array.size * int(wp.types.type_size(array.dtype)) // max(rows, 1)
    return wp.array(ptr=array.ptr, dtype=wp.float32, shape=(rows, width), device=array.device)


def host_copy(array: DeviceArray) -> Array:
    """Return a copy as float64, shape (rows, numbers in a row)."""
    values: Array = array.numpy().astype(np.float64).reshape(array.shape[0], -1)
    return values


def put(
    target: DeviceArray,
    values: npt.NDArray[Any],
    rows: npt.NDArray[np.intp] | None,
    columns: npt.NDArray[np.intp] | None = None,
) -> None:
    """Write values, shape (n, c) or (1, c) for all rows alike, to rows and columns (None: all) of a flat array."""
    count = target.shape[0] if rows is None else len(rows)
    width = target.shape[1] if columns is None else len(columns)
    if count == 0 or width == 0:
        return
    device = target.device
    where = np.arange(count) if rows is None else rows
    which = np.arange(width) if columns is None else columns
    wp.launch(
        _put,
        dim=(count, width),
        inputs=[
            wp.array(where.astype(np.int32), dtype=wp.int32, device=device),
            wp.array(which.astype(np.int32), dtype=wp.int32, device=device),
            wp.array(np.broadcast_to(values, (count, width)).astype(np.float32), dtype=wp.float32, device=device),
        ],
        outputs=[target],
        device=device,
    )


def write(array: DeviceArray, values: npt.NDArray[Any], rows: npt.NDArray[np.intp] | None) -> None:
    """Write values, shape (n, numbers in a row) or (1, ...) for all alike, to rows (None: all) of any element type."""
    if array.dtype is wp.bool:
        whole = array.numpy().copy()
        whole[slice(None) if rows is None else rows] = values
        array.assign(whole)
    else:
        put(flat(array), values, rows)


def keep(target: DeviceArray, old: DeviceArray, rows: npt.NDArray[np.intp]) -> None:
    """Put what an array of floats held back into all but the given rows."""
    chosen = np.zeros(target.shape[0], np.int32)
    chosen[rows] = 1
    into = flat(target)
    inputs = [wp.array(chosen, dtype=wp.int32, device=target.device), flat(old)]
    wp.launch(_keep, dim=into.shape, inputs=inputs, outputs=[into], device=target.device)


class Graphs:
    """Work on a device, recorded when it is first done and replayed after: on a CPU as well, at a tenth of the cost.

    Whatever the work reads must stay where it is in memory, or `clear` must follow.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._graphs: dict[str, Any] = {}

    def run(self, work: Callable[[], None], times: int = 1) -> None:
        """Do what a function or method of a unique name launches."""
        with wp.ScopedDevice(self._device):
            if work.__name__ not in self._graphs:
                with wp.ScopedCapture() as capture:
                    work()
                self._graphs[work.__name__] = capture.graph
            for _ in range(times):
                wp.capture_launch(self._graphs[work.__name__])

    def clear(self) -> None:
        """Forget what was recorded."""
        self._graphs.clear()


class Mirror:
    """A float64 array on the host beside the float32 array of a device that it shows. Either may be written.

    `upload` carries over what was written on the host since the last `upload` or `download`, number by number, so that
    what others wrote on the device (a trainer, through a torch view) stays.

    Attributes:
        host: The array on the host; always the same object.
    """

    def __init__(self, array: DeviceArray, shape: tuple[int, ...]) -> None:
        self._owner = array  # of the memory that `flat` views
        self._array = flat(array)
        self.host: Array = np.empty(shape)
        self._seen: Array = np.empty(shape)
        self.download()

    def upload(self) -> None:
        """Write what changed on the host to the device, rounded to float32 on both."""
        changed = self.host != self._seen
        if not changed.any():
            return
        self.host[changed] = self.host[changed].astype(np.float32)
        merged = np.where(changed, self.host, self._array.numpy().reshape(self.host.shape))
        put(self._array, merged.reshape(len(merged), -1), None)
        self._seen[changed] = self.host[changed]

    def download(self) -> None:
        """Show what the device holds."""
        self.host[...] = self._array.numpy().reshape(self.host.shape)
        self._seen[...] = self.host


@wp.kernel(enable_backward=False)
def _put(
    rows: wp.array[int],
    columns: wp.array[int],
    values: wp.array2d[float],
    target: wp.array2d[float],
) -> None:
    i, j = wp.tid()
    target[rows[i], columns[j]] = values[i, j]


@wp.kernel(enable_backward=False)
def _keep(chosen: wp.array[int], old: wp.array2d[float], target: wp.array2d[float]) -> None:
    i, j = wp.tid()
    if chosen[i] == 0:
        target[i, j] = old[i, j]
