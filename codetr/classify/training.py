"""Trains a classifier of torchvision on class folders, `codetr train --task classify`."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from codetr.classify.class_folders import ClassFolders, find_bad_pictures, load_class_folders
from codetr.classify.classifier_file import (
    WEIGHTS_FILE,
    load_initial_weights,
    make_classifier,
    save_classifier,
)
from codetr.classify.pictures import ClassifierPreprocessing, read_batches
from codetr.classify.top_k import TopK
from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import DatasetError
from codetr.errors import ArgumentError
from codetr.training.run_state import load_state, newest_state, save_state
from codetr.training.train_options import DEFAULT_EPOCHS, TrainOptions, usual_warmup
from codetr.usable_cores import usable_cores
from trt_plugin.atomic_files import new_folder, write_json

_RESULT_OPTIONS = (
    *("network", "weights", "epochs", "batch", "lr", "final_lr_factor", "warmup", "weight_decay"),
    *("label_smoothing", "precision", "image_size", "crop_least", "flip", "colour", "seed"),
)


@dataclass(frozen=True)
class _Plan:
    options: TrainOptions  # every default is filled in
    device: torch.device
    preprocessing: ClassifierPreprocessing
    data: BadPictures[ClassFolders]
    validation_data: BadPictures[ClassFolders]
    fingerprint: dict[str, Any]  # everything that the result depends on, by name


def train_classifier(options: TrainOptions) -> int:
    """Trains a classifier and returns 0.

    The folder of the run gets a state after each epoch, training.json with the top-1 by epoch, and at the end
    model.safetensors for `codetr.classify.classifier_file.load_classifier`.

    Raises:
        UsageError, ArgumentError: the options, the dataset, the weights or the state cannot be used.
        RuntimeError: the loss became non-finite.
    """
    if options.network is None:
        raise ArgumentError("network", "expected a classifier of torchvision such as resnet18, got none")
    state_file = newest_state(options.out, options.resume)
    plan = _make_plan(options)
    options, data = plan.options, plan.data.usable()
    torch.manual_seed(options.seed)
    model = make_classifier(options.network, len(data.class_names))
    if state_file is None:
        origin = load_initial_weights(model, options.network, options.weights)
    else:
        origin = f"continuing after {state_file.name}"
    with new_folder(options.out):
        words = f"{len(data)} pictures, {len(data.class_names)} classes; {origin}"
        print(f"training {options.network}: {words}", file=sys.stderr, flush=True)
        run = _Run(plan, model)
        if state_file is not None:
            run.load(load_state(state_file, plan.fingerprint))
        run.to_the_end()
    print(f"wrote {options.out / WEIGHTS_FILE}{run.left_out()}")
    return 0


def _make_plan(options: TrainOptions) -> _Plan:
    """Checks the options and the dataset. It writes no file."""
    gpu = torch.cuda.is_available() and options.device != "cpu"
    if options.device == "cuda" and not gpu:
        raise ArgumentError("device", "expected cpu, PyTorch can use no NVIDIA GPU here, got cuda")
    options = options.with_defaults(epochs=DEFAULT_EPOCHS, batch=64)
    epochs, batch, scratch = int(options.epochs), options.batch, options.weights == "none"
    if options.epochs != epochs:
        raise ArgumentError("epochs", f"expected a whole number with --task classify, got {options.epochs:g}")
    data = load_class_folders(options.data / options.train_split, argument="data")
    folder = options.data / (options.val_split or "val")
    validation_data = load_class_folders(folder, data.class_names, argument="data")
    options = options.with_defaults(
        lr=batch / 256 * (0.1 if scratch else 0.02),
        warmup=usual_warmup(scratch, epochs * max(1, len(data) // batch)),
        precision="bf16" if gpu else "fp32",
        workers=min(16, usable_cores()) if gpu else 0,
    )
    options = dataclasses.replace(options, epochs=epochs)
    digest = hashlib.sha256()
    for picture in data.pictures:
        digest.update(f"{picture.path.relative_to(data.source)}\n".encode("utf-8", "surrogateescape"))
    return _Plan(
        options=options,
        device=torch.device("cuda" if gpu else "cpu"),
        preprocessing=ClassifierPreprocessing(round(options.image_size * 256 / 224), options.image_size),
        data=find_bad_pictures(data, strict=options.strict),
        validation_data=find_bad_pictures(validation_data, strict=options.strict),
        fingerprint={
            "--data": f"{len(data)} pictures ({digest.hexdigest()[:12]})",
            **{f"--{name.replace('_', '-')}": getattr(options, name) for name in _RESULT_OPTIONS},
        },
    )


class _Run:
    """The network, its optimiser, and the rows of the finished epochs."""

    def __init__(self, plan: _Plan, model: nn.Module) -> None:
        from codetr.classify.training_pictures import training_batches

        options, gpu = plan.options, plan.device.type == "cuda"
        self.plan, self.rows = plan, []
        layout = torch.channels_last if gpu else torch.contiguous_format
        self.model = model.to(plan.device, memory_format=layout)
        self.data = plan.data.usable()
        self.batches, self.order = training_batches(
            self.data,
            plan.preprocessing,
            batch=options.batch,
            seed=options.seed,
            crop_least=options.crop_least,
            flip=options.flip,
            colour=options.colour,
            workers=options.workers,
            pinned=gpu,
        )
        self.optimiser = SGD(
            model.parameters(), options.lr, momentum=0.9, nesterov=True, weight_decay=options.weight_decay
        )
        steps = options.epochs * len(self.order)
        warmup = min(options.warmup, steps - 1)
        falling = CosineAnnealingLR(self.optimiser, steps - warmup, options.lr * options.final_lr_factor)
        rising = LinearLR(self.optimiser, 1 / (warmup + 1), total_iters=warmup) if warmup else None
        self.schedule = SequentialLR(self.optimiser, [rising, falling], [warmup]) if rising else falling

    def load(self, state: dict[str, Any]) -> None:
        """Continues from a state."""
        self.rows = state["rows"]
        for part in ("model", "optimiser", "schedule"):
            getattr(self, part).load_state_dict(state[part])

    def to_the_end(self) -> None:
        """Trains the epochs that are left, and writes the files."""
        options = self.plan.options
        for epoch in range(len(self.rows) + 1, options.epochs + 1):
            row = {"epoch": epoch, **self._train(epoch), **self._validate()}
            self.rows.append(row)
            print(
                f"epoch {epoch}/{options.epochs}: loss {row['loss']:.4f}, top-1 {row['top1']:.2%}, "
                f"top-5 {row['top5']:.2%}, {row['images_per_s']:.0f} images/s, {row['seconds']:.1f} s",
                flush=True,
            )
            parts = {part: getattr(self, part).state_dict() for part in ("model", "optimiser", "schedule")}
            save_state(options.out, epoch, self.plan.fingerprint, {"rows": self.rows, **parts})
            self._write_log()
        save_classifier(
            options.out / WEIGHTS_FILE,
            self.model,
            options.network,
            self.data.class_names,
            self.plan.preprocessing,
        )

    def _train(self, epoch: int) -> dict[str, float]:
        options, device = self.plan.options, self.plan.device
        torch.manual_seed(options.seed + epoch)  # of dropout, the same after --resume
        self.model.train()
        self.order.epoch = epoch
        started, images = time.perf_counter(), 0
        total = torch.zeros((), device=device)
        cast = torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16")
        for batch in self.batches:
            for index, error in batch.unreadable:
                self.plan.data.add(self.data.pictures[index], DatasetError(error))
            if not len(batch.labels):
                continue
            pixels, labels = (tensor.to(device, non_blocking=True) for tensor in batch[:2])
            with cast:
                outputs = self.model(pixels)
                outputs = getattr(outputs, "logits", outputs)  # Inception has auxiliary outputs too
                loss = nn.functional.cross_entropy(outputs, labels, label_smoothing=options.label_smoothing)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.schedule.step()
            total += loss.detach() * len(labels)
            images += len(labels)
        mean = float(total) / max(images, 1)
        if not mean < float("inf"):
            words = "try a lower --lr, a longer --warmup, or --precision fp32"
            raise RuntimeError(f"epoch {epoch}: the loss is non-finite; {words}")
        seconds = time.perf_counter() - started
        return {"loss": mean, "seconds": seconds, "images_per_s": images / seconds}

    @torch.inference_mode()
    def _validate(self) -> dict[str, float]:
        bad, counts = self.plan.validation_data, TopK()
        self.model.eval()
        pictures, batch = bad.usable().pictures, self.plan.options.batch
        for images, labels in read_batches(pictures, self.plan.preprocessing, batch, bad):
            logits = self.model(torch.from_numpy(images).to(self.plan.device))
            counts.update(logits.cpu().numpy(), labels)
        return {"top1": counts.top1, "top5": counts.top5}

    def _write_log(self) -> None:
        write_json(
            self.plan.options.out / "training.json",
            {
                "task": "classify",
                "options": self.plan.fingerprint,
                "class_names": self.data.class_names,
                "pictures": len(self.data),
                "validation_pictures": len(self.plan.validation_data.usable()),
                "pictures_left_out": len(self.plan.data.errors) + len(self.plan.validation_data.errors),
                "epochs": self.rows,
            },
        )

    def left_out(self) -> str:
        """Returns the number of bad pictures in words, nothing if there are none."""
        bad = [str(part) for part in (self.plan.data, self.plan.validation_data) if part.errors]
        return f"; {' and '.join(bad)} left out" if bad else ""
