"""The command `codetr triton-repository`. It needs neither Triton nor a GPU."""

from __future__ import annotations

from typing import Annotated

from codetr.cli.argument_types import Folder, InputFile, Parameter
from codetr.errors import ArgumentError, UsageError


def triton_repository(
    out: Annotated[Folder, Parameter(metavar="OUT")],
    /,
    *,
    engine: Annotated[InputFile, Parameter(metavar="FILE")],
    name: str = "codetr",
    instances: Annotated[int, Parameter(metavar="N")] = 2,
    workers: Annotated[int, Parameter(metavar="N")] = 4,
) -> int:
    """Write a model repository for Triton: image files in, boxes in pixels of the photo out.

    OUT gets the models NAME (the ensemble that clients call), NAME_preprocess, NAME_engine and
    NAME_postprocess, and the plugin library. Prints the command that starts the server.

    ```
    codetr triton-repository triton --engine model.engine
    ```

    Args:
        out: New or empty folder.
        engine: TensorRT engine with its metadata (.json) beside it. Triton needs the version of TensorRT that
            built it.
        name: Name of the model.
        instances: Instances of the engine on each GPU.
        workers: Processes that decode, and as many that post-process.
    """
    from codetr.triton.repository import Repository

    repository = Repository(engine, name, instances=instances, workers=workers)
    try:
        repository.write(out)
    except ArgumentError as error:  # which names options
        raise UsageError(f"OUT: {error.problem}") from error
    print(f"wrote {out}, for a Triton with TensorRT {repository.metadata.tensorrt_version}; start it with:")
    print(repository.command(out))
    return 0
