"""Types of the part of ONNX Runtime that sim2real uses; its bindings are compiled and ship none.

Names that are not listed are `Any`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

__version__: str

class ExecutionMode(Enum):
    ORT_SEQUENTIAL = ...
    ORT_PARALLEL = ...

class GraphOptimizationLevel(Enum):
    ORT_DISABLE_ALL = ...
    ORT_ENABLE_BASIC = ...
    ORT_ENABLE_EXTENDED = ...
    ORT_ENABLE_ALL = ...

class SessionOptions:
    intra_op_num_threads: int
    inter_op_num_threads: int
    execution_mode: ExecutionMode
    graph_optimization_level: GraphOptimizationLevel
    log_severity_level: int
    def add_session_config_entry(self, config_key: str, config_value: str) -> None: ...

class NodeArg:
    name: str
    type: str
    shape: list[int | str | None]

class ModelMetadata:
    custom_metadata_map: dict[str, str]

class OrtValue:
    @staticmethod
    def ortvalue_from_numpy(numpy_obj: npt.NDArray[Any], device_type: str = ..., device_id: int = ...) -> OrtValue: ...
    def update_inplace(self, np_arr: npt.NDArray[Any]) -> None: ...
    def numpy(self) -> npt.NDArray[Any]: ...

class IOBinding:
    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None: ...
    def bind_output(
        self,
        name: str,
        device_type: str = ...,
        device_id: int = ...,
        element_type: Any = ...,
        shape: Sequence[int] | None = ...,
        buffer_ptr: int | None = ...,
    ) -> None: ...
    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None: ...
    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None: ...

class InferenceSession:
    def __init__(
        self,
        path_or_bytes: str | bytes,
        sess_options: SessionOptions | None = ...,
        providers: Sequence[str | tuple[str, Mapping[str, str]]] | None = ...,
        *,
        disabled_optimizers: Sequence[str] | None = ...,
        enable_fallback: int = ...,
    ) -> None: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def get_outputs(self) -> list[NodeArg]: ...
    def get_modelmeta(self) -> ModelMetadata: ...
    def get_providers(self) -> list[str]: ...
    def io_binding(self) -> IOBinding: ...
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]: ...
    def run_with_iobinding(self, iobinding: IOBinding) -> None: ...

def get_available_providers() -> list[str]: ...
def __getattr__(name: str) -> Any: ...
