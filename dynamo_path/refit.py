"""`python -m dynamo_path.refit`: gives an engine the weights of another checkpoint, without a build.

The engine comes from `dynamo_path.export --refittable`, with its metadata <stem>.json beside it. The command
exports the model again with the new weights and converts it as for a build, but builds nothing. TensorRT's
names of the weights, and the changes on their way (16 bits, folded batch norms, looked-up position biases),
are then those of the engine. Every weight of the engine gets its new value, or nothing is written.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from codetr.cli.argument_types import InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from codetr.detector.sizes import InputSizes
from codetr.export.output_folder import check_output, stage
from codetr.export.refit_options import CheckpointOptions, refittable_metadata
from codetr.export.request import ExportRequest
from trt_plugin import ArtifactMetadata
from trt_plugin.atomic_files import atomic_write

_DEFAULTS = CheckpointOptions()


def refit(
    engine: Annotated[InputFile, Parameter(metavar="ENGINE")],
    weights: Annotated[str, Parameter(metavar="WEIGHTS")],
    /,
    *,
    out: OutputFile,
    checkpoint: CheckpointOptions = _DEFAULTS,
) -> int:
    """Put the weights of another checkpoint into an engine, and compare it with PyTorch. Needs a GPU.

    Args:
        engine: engine of `dynamo_path.export --refittable`.
        weights: checkpoint: a known name, a file or a URL.
        out: engine to write, with its metadata beside it.
    """
    check_output("out", out, [out.with_suffix(".json")])
    metadata = refittable_metadata(engine)
    request = request_of(metadata, weights, out, checkpoint)
    from codetr.export.engine_check import compare_engine
    from codetr.export.traced_model import (
        dynamic_shapes,
        example_inputs,
        export_program,
        pick_device,
        prepare,
    )
    from dynamo_path.export import import_requirements

    pick_device("cuda")
    import_requirements()
    from dynamo_path.engine import with_network

    subject = prepare(request)
    with stage("export the model"):
        module, inputs = subject.module().to("cuda"), example_inputs(request, "cuda")
        program = export_program(module, inputs, dynamic_shapes(request))
    with atomic_write(out) as temporary:
        with stage(f"refit {engine.name}"):
            plan = with_network(program, inputs, request, lambda network: refit_plan(engine, network))
            temporary.write_bytes(plan)
        with stage("compare with PyTorch"):
            compare_engine(subject.checks, request, temporary)
    names = list(request.config.label_names)
    metadata = dataclasses.replace(metadata, source_weights=subject.source_weights, class_names=names)
    metadata.save(out.with_suffix(".json"))
    print(f"wrote {out} and {out.with_suffix('.json').name}")
    return 0


def request_of(
    metadata: ArtifactMetadata, weights: str, out: Path, checkpoint: CheckpointOptions = _DEFAULTS
) -> ExportRequest:
    """Makes the export request that the engine was built for, with other weights."""
    sizes = InputSizes.of_artifact(metadata)
    nms = {"nms": [metadata.nms["method"]], "nms_iou": metadata.nms["iou_threshold"]}
    return ExportRequest(
        model=checkpoint.model or metadata.model,
        weights=weights,
        batch=sizes.batch,
        dynamic_size=(sizes.height, sizes.width),
        precision=metadata.precision,
        out=out,
        photo=checkpoint.photo,
        device="cuda",
        refittable=True,
        keep_unequal=checkpoint.keep_unequal,
        **(nms if metadata.nms_in_graph else {}),
    )


def refit_plan(engine_path: Path, network: Any) -> bytes:
    """Gives every weight of an engine that of a network, and returns the new engine, serialised.

    Args:
        engine_path: a refittable engine.
        network: tensorrt.INetworkDefinition, made as the engine's was. It may have more weights: TensorRT
            folds some away.

    Raises:
        RuntimeError: the engine has a weight that the network has not, or TensorRT refuses one.
        trt_plugin.EngineError: the file cannot be loaded.
    """
    from trt_plugin.engine_error import import_tensorrt
    from trt_plugin.engine_refit import refit_engine
    from trt_plugin.tensorrt_log import describe

    trt = import_tensorrt()

    def give(refitter: Any, messages: list[str]) -> object:
        wanted = [(name, role.name) for name, role in zip(*refitter.get_all(), strict=True)]
        given = match_weights(wanted, weights_of(network))
        for (name, role), values in given.items():
            if not isinstance(values, trt.Weights):  # which TensorRT gives where NumPy lacks the type
                values = given[name, role] = trt.Weights(np.ascontiguousarray(values))
            if not refitter.set_weights(name, getattr(trt.WeightsRole, role), values):
                raise RuntimeError(
                    f"{engine_path}: TensorRT does not take weight {name} {role}: {describe(messages)}"
                )
        missing = list(zip(*refitter.get_missing(), strict=True))
        if missing:
            raise RuntimeError(f"{engine_path}: {_some([name for name, _ in missing])} would stay as it is")
        return given

    return refit_engine(engine_path, give)


def weights_of(network: Any) -> dict[tuple[str, str], Any]:
    """Returns a network's weights by layer and role: ("/neck/convs.0/conv [CONVOLUTION]", "KERNEL")."""
    import tensorrt as trt

    kinds = {
        "CONSTANT": (trt.IConstantLayer, {"CONSTANT": "weights"}),
        "CONVOLUTION": (trt.IConvolutionLayer, {"KERNEL": "kernel", "BIAS": "bias"}),
        "SCALE": (trt.IScaleLayer, {"SHIFT": "shift", "SCALE": "scale"}),
    }
    weights = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type.name in kinds:
            layer.__class__, roles = kinds[layer.type.name]  # TensorRT gives out the base class
            weights |= {(layer.name, role): _dense(getattr(layer, field)) for role, field in roles.items()}
    return weights


def _dense(values: Any) -> Any:
    """Returns an array from TensorRT with its real stride.

    The bindings of TensorRT 10.6 tell NumPy 2.5 a stride of 0: every number looks like the first.
    """
    if not isinstance(values, np.ndarray):
        return values
    return np.lib.stride_tricks.as_strided(values, strides=(values.itemsize,))


def match_weights(
    wanted: Sequence[tuple[str, str]], weights: Mapping[tuple[str, str], Any]
) -> dict[tuple[str, str], Any]:
    """Returns the new values of an engine's weights, by layer and role.

    Raises:
        RuntimeError: the network lacks a weight.
    """
    missing = [" ".join(key) for key in wanted if key not in weights]
    if missing:
        raise RuntimeError(
            f"the engine has {_some(missing)} that the network of the model has not: it was built of another "
            "configuration, by another version, or not by dynamo_path.export"
        )
    return {key: weights[key] for key in wanted}


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:3])
    if len(names) == 1:
        return f"weight {listed}"
    return f"{len(names)} weights ({listed}{', …' * (len(names) > 3)})"


main = partial(run_program, refit, program="python -m dynamo_path.refit")

if __name__ == "__main__":
    sys.exit(main())
