"""The command `codetr train`."""

from __future__ import annotations

import os
import sys
import traceback

from codetr.cli.program import complain
from codetr.errors import ArgumentError, UsageError, one_line
from codetr.training.train_options import TrainOptions


def train(*, options: TrainOptions) -> int:
    """Train a detector on a dataset in COCO format, or a classifier on class folders.

    The run starts from published weights, from yours or from scratch. It takes one GPU, or several with
    torchrun.

    ```
    codetr train --data fruit/ --model co_dino_r50 --epochs 12 --out runs/fruit
    torchrun --nproc-per-node 4 -m codetr train --data fruit/ --model my.json --init none --minutes 60 \\
        --batch 16 --out runs/scratch
    codetr detect apple.jpg --model runs/fruit
    codetr train --task classify --data crops --network resnet18 --epochs 30 --out runs/crops
    ```

    The folder --data has one of these layouts, here for the split train:

    ```
    COCO       annotations/instances_train.json and train/ or images/train/
               A year may follow the split (train2017).
    Roboflow   train/_annotations.coco.json with the pictures beside it
               The split val is its folder valid/.
    one file   annotations.json or _annotations.coco.json and images/
    ```

    With --task classify, DIR/train and DIR/val have a folder of pictures for each class. RUN gets
    model.safetensors, training.json with the top-1 by epoch, and a state after each epoch.

    A category without annotations that is only the supercategory of others, such as category 0 of Roboflow,
    is no class. Pictures that are missing, damaged, or of another size than the annotation file states are
    named and left out. Other pictures replace them in training.

    RUN gets model.safetensors and model.json (for codetr detect), training.json, log.csv, validation.csv,
    curves.png, and state-*.pt, from which --resume continues.

    Exit status: 0, done, or stopped by --time-limit; 1, a failure; 2, wrong options or dataset; 130 and 143,
    stopped by Ctrl-C or SIGTERM. The run saves its state in each case, from the first step on.
    """
    # OpenMP threads that spin while they wait would take the cores from the processes that read pictures.
    # OpenMP reads the variable when Torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if options.task == "classify":
        from codetr.classify.training import train_classifier

        return train_classifier(options)
    from codetr.training.training_run import run_training

    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    try:
        status = run_training(options)
    except Exception as error:
        if not several:
            raise
        if os.environ.get("CODETR_TRACEBACK"):
            traceback.print_exception(error)
        complain("error", f"process {os.environ['RANK']}: {one_line(error)}", "codetr")
        status = 2 if isinstance(error, (ArgumentError, UsageError)) else 1
    if several:
        # After an error, Python's exit would wait for collectives. After success, threads of Gloo outlive the
        # process group, and the exit sometimes ends with SIGABRT.
        sys.stdout.flush()
        os._exit(status)
    return status
