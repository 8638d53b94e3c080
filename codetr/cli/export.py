"""The command `codetr export`: exports a detector by one of the two paths."""

from __future__ import annotations

from typing import Literal

from codetr.errors import ArgumentError
from codetr.export.request import ExportRequest


def export(
    request: ExportRequest,
    *,
    path: Literal["onnx", "dynamo"] = "onnx",
    onnx_only: bool = False,
    no_function_body: bool = False,
    allow_fallback: bool = False,
) -> int:
    """Export a detector, build its TensorRT engine, and compare the engine with PyTorch.

    The ONNX path writes model.onnx, model.engine and model.json. The dynamo path goes through torch.export
    and Torch-TensorRT, and writes model.pt2, model.engine, model.ep, model.ts and model.json. Without a GPU
    there is no engine.

    ```
    codetr export --model co_dino_swin_l --precision fp16 --height 768 --width 1152 --out engines/swin_l
    ```

    Args:
        path: torch.onnx, or torch.export with Torch-TensorRT.
        onnx_only: onnx path: build no engine.
        no_function_body: onnx path: leave out the standard operators that let any runtime run the file.
        allow_fallback: dynamo path: leave operators that TensorRT lacks to PyTorch, in model.ep and model.ts
            only.
    """
    others = {"onnx": {"allow_fallback": allow_fallback}}
    others["dynamo"] = {"onnx_only": onnx_only, "no_function_body": no_function_body}
    for name, given in others[path].items():
        if given:
            raise ArgumentError(
                name, f"expected --path {'dynamo' if path == 'onnx' else 'onnx'} with it, got {path}"
            )
    if path == "dynamo":
        from dynamo_path import export as dynamo_export

        return dynamo_export.export(request, allow_fallback=allow_fallback)
    from onnx_path import export as onnx_export

    return onnx_export.export(request, onnx_only=onnx_only, no_function_body=no_function_body)
