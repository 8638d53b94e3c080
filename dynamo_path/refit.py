"""`python -m dynamo_path.refit ENGINE WEIGHTS --out NEW`: other weights in an engine, without a build.

The engine is one of `dynamo_path.export --refittable`, its metadata <stem>.json beside it. The model is
exported again with the new weights and converted as for a build, but not built: what TensorRT calls each
weight, and what becomes of it on the way (16 bits, frozen batch norms folded to two vectors, position biases
looked up), is then as it was for the engine. Every weight of the engine gets its new value, or nothing is
written. The new engine's detections are compared with PyTorch's. Needs a GPU.

Exit status: 0 done, 1 failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    one_line,
    run_command,
    to_path,
)
from codetr.detector.sizes import InputSizes
from codetr.export.engine_check import compare_engine
from codetr.export.refit_options import check_new_engine, require_refittable
from codetr.export.request import (
    Request,
    dynamic_shapes,
    example_inputs,
    exported_module,
    pick_device,
    prepare,
    stage,
)
from trt_plugin.atomic_files import atomic_write

if TYPE_CHECKING:
    from trt_plugin import ArtifactMetadata


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    engine, out = arguments.engine, arguments.out
    metadata = _check(arguments)
    request = request_of(metadata, arguments)
    if pick_device("auto").type != "cuda":
        raise UsageError("a refit needs an NVIDIA GPU, and PyTorch finds none here (see nvidia-smi)")
    from dynamo_path.engine import with_network
    from dynamo_path.export import export_program, import_requirements

    import_requirements()
    subject = prepare(request)
    with stage("export the model"):
        model, inputs = exported_module(subject).to("cuda"), example_inputs(request, "cuda")
        program = export_program(model, inputs, dynamic_shapes(request))
    with atomic_write(out) as temporary:
        with stage(f"refit {engine.name}"):
            temporary.write_bytes(with_network(program, inputs, request, lambda net: refit(engine, net)))
        with stage("compare with PyTorch"):
            compare_engine(subject.checks, request, temporary)
    dataclasses.replace(metadata, source_weights=subject.source_weights).save(out.with_suffix(".json"))
    print(f"wrote {out} and {out.with_suffix('.json').name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m dynamo_path.refit", description="Put other weights into an engine, without a build."
    )
    add = parser.add_argument
    add("engine", metavar="ENGINE", type=to_path, help="of dynamo_path.export --refittable")
    add("weights", metavar="WEIGHTS", help="checkpoint: known name, file or URL")
    add("--out", metavar="NEW", type=to_path, required=True, help="engine to write; metadata beside it")
    add("--model", metavar="NAME|JSON", help="configuration (default: the one that the metadata names)")
    add("--photo", metavar="FILE", type=to_path, help="compare on this picture (default: one we ship)")
    add("--keep-unequal", action="store_true", help="keep an engine whose detections differ from PyTorch's")
    return parser


def _check(arguments: argparse.Namespace) -> ArtifactMetadata:
    """Checks the options and reads the engine's metadata.

    Raises:
        UsageError: a file is not there, cannot be written, or the engine cannot be refitted.
    """
    from trt_plugin import ArtifactMetadata, EngineError

    check_file("ENGINE", arguments.engine)
    check_new_engine(arguments.out)
    if arguments.photo is not None:
        check_file("--photo", arguments.photo)
    path = arguments.engine.with_suffix(".json")
    try:
        metadata = ArtifactMetadata.load(path)
    except EngineError as error:
        raise UsageError(f"ENGINE {arguments.engine}: {one_line(error)}") from error
    require_refittable(arguments.engine, metadata)
    return metadata


def request_of(metadata: ArtifactMetadata, arguments: argparse.Namespace) -> Request:
    """What the export was asked for whose engine this is, with the new weights."""
    return Request(
        model=arguments.model or metadata.model,
        weights=arguments.weights,
        sizes=InputSizes.of_artifact(metadata),
        precision=metadata.precision,
        out=arguments.out,
        photo=arguments.photo,
        device="cuda",
        timing_cache=None,
        optimization_level=None,
        refittable=True,
        keep_unequal=arguments.keep_unequal,
        nms=metadata.nms["method"] if metadata.nms_in_graph else "none",
        nms_iou=metadata.nms["iou_threshold"] if metadata.nms_in_graph else None,
    )


def refit(engine_path: Path, network: Any) -> bytes:
    """Gives every weight of an engine that of a network.

    Args:
        engine_path: a refittable engine.
        network: tensorrt.INetworkDefinition, made as the engine's was. That it has more weights does not
            matter: TensorRT folds some away.

    Returns:
        The new engine, serialised.

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
        matched = match_weights(wanted, weights_of(network))
        given = {key: _as_weights(trt, key, values) for key, values in matched.items()}
        for (name, role), weights in given.items():
            if not refitter.set_weights(name, getattr(trt.WeightsRole, role), weights):
                raise RuntimeError(
                    f"{engine_path}: TensorRT does not take weight {name} {role}: {describe(messages)}"
                )
        missing = list(zip(*refitter.get_missing(), strict=True))
        if missing:
            raise RuntimeError(f"{engine_path}: {_some([name for name, _ in missing])} would stay as it is")
        return given

    return refit_engine(engine_path, give)


def _as_weights(trt: Any, key: tuple[str, str], values: Any) -> Any:
    """tensorrt.Weights of what a network's layer gives out: those, or an array, which need not be one that
    TensorRT takes back by itself."""
    if isinstance(values, trt.Weights):
        return values
    try:
        return trt.Weights(np.ascontiguousarray(values))
    except (TypeError, ValueError) as error:
        kind = f"{type(values).__name__} of {getattr(values, 'dtype', 'no type')}"
        raise RuntimeError(f"weight {' '.join(key)}: TensorRT takes no {kind} for weights") from error


def weights_of(network: Any) -> dict[tuple[str, str], Any]:
    """A network's weights by layer and role, such as ("/neck/convs.0/conv [CONVOLUTION]", "KERNEL")."""
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
    """What TensorRT gives out as an array, with the stride that it has.

    The bindings of TensorRT 10.6 tell NumPy 2.5 a stride of 0: every number looks like the first.
    """
    if not isinstance(values, np.ndarray):
        return values
    return np.lib.stride_tricks.as_strided(values, strides=(values.itemsize,))


def match_weights(
    wanted: Sequence[tuple[str, str]], weights: Mapping[tuple[str, str], Any]
) -> dict[tuple[str, str], Any]:
    """The new values of an engine's weights.

    Args:
        wanted: layer and role of each.
        weights: those of a network, in the same way.

    Raises:
        RuntimeError: one is not among them, or two of the engine have one name.
    """
    missing = [" ".join(key) for key in wanted if key not in weights]
    if missing:
        raise RuntimeError(
            f"the engine has {_some(missing)} that the network of the model has not: it was built of another "
            "configuration, by another version, or not by dynamo_path.export"
        )
    twice = [" ".join(key) for key, count in Counter(wanted).items() if count > 1]
    if twice:
        raise RuntimeError(f"the engine has {_some(twice)} more than once")
    return {key: weights[key] for key in wanted}


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:3])
    if len(names) == 1:
        return f"weight {listed}"
    return f"{len(names)} weights ({listed}{', …' * (len(names) > 3)})"


if __name__ == "__main__":
    sys.exit(main())
