"""The reference: a model's outputs, and tensors between its nodes, by onnxruntime on the CPU.

16-bit models run in float32: then what an engine's 16 bits cost is measured too, and onnxruntime's CPU
provider does not have every operator in 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from onnx_path.operator import DOMAIN, NVIDIA_DOMAIN, OPERATORS, remove_function_bodies
from onnx_path.packed_projections import unpack_projections
from onnx_path.surgery import bodies, runtime
from onnx_path.surgery.graph import STANDARD_DOMAINS

Arrays = dict[str, np.ndarray]


def add_bodies(model: onnx.ModelProto) -> None:
    """Gives MSDA nodes, ours and NVIDIA's, the bodies of standard operators that onnxruntime needs, in place.

    What only TensorRT knows, packed nodes, becomes what the bodies are for.

    Raises:
        runtime.CannotRun: the model's opset is too old for them.
    """
    unpack_projections(model)
    operators = {
        *((DOMAIN, operator) for operator in OPERATORS),
        (NVIDIA_DOMAIN, bodies.NVIDIA),
    }
    used = {(node.domain, node.op_type) for node in model.graph.node} & operators
    missing = used - {(function.domain, function.name) for function in model.functions}
    if not missing:
        return
    opset = next((x.version for x in model.opset_import if x.domain in STANDARD_DOMAINS), 1)
    if opset < bodies.LOWEST_OPSET:
        raise runtime.CannotRun(
            f"its {min(missing)[1]} nodes have no function bodies, and with its opset {opset} they can have "
            f"none (needed: {bodies.LOWEST_OPSET} or later)"
        )
    targets = [
        target for target, domain in (("msda", DOMAIN), ("nvidia", NVIDIA_DOMAIN)) if domain in dict(used)
    ]
    added = {(x.domain, x.name): x for target in targets for x in bodies.functions(opset, target)}
    remove_function_bodies(model)
    model.functions.extend(added.values())
    imported = {x.domain for x in model.opset_import}
    needed = {x.domain for x in added.values()} - imported
    model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(needed))
    model.ir_version = max(model.ir_version, 8)  # functions exist since then


class Reference:
    """A model in onnxruntime, on inputs that stay the same.

    Args:
        model: gets bodies where MSDA nodes have none; its weights may lie in `folder`.
        folder: of weights outside of the model.
        inputs: by name.

    Raises:
        runtime.CannotRun: see `add_bodies`.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path, inputs: Mapping[str, np.ndarray]) -> None:
        add_bodies(model)
        self._model, self._folder, self._inputs = model, folder, inputs

    def __call__(self, marks: Sequence[str] = ()) -> Arrays:
        """Runs the model.

        Args:
            marks: tensors of the main graph that are wanted beside the outputs.

        Returns:
            The outputs and marks by name, 16-bit ones as float32.

        Raises:
            runtime.CannotRun: onnxruntime does not load or run the model; with its reason.
        """
        outputs = self._model.graph.output
        own = len(outputs)
        names = [x.name for x in outputs]
        names += [name for name in dict.fromkeys(marks) if name not in names]
        outputs.extend(onnx.ValueInfoProto(name=name) for name in names[own:])  # onnxruntime infers types
        try:
            session = runtime.Session(self._model, self._folder)
        finally:
            del outputs[own:]
        return dict(zip(names, session.run(self._inputs), strict=True))
