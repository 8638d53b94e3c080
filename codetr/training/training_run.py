"""A run of `codetr train`, from its options to its files."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import codetr
from codetr.errors import UsageError, one_line
from codetr.training.run_state import load_state
from codetr.training.run_weights import make_network
from codetr.training.torchrun_processes import Processes, join_processes
from codetr.training.train_options import TrainOptions
from codetr.training.trainer import Trainer
from codetr.training.training_network import TrainingNetwork, use_channels_last
from codetr.training.training_plan import TrainingPlan, make_plan
from trt_plugin.atomic_files import new_folder, write_json


def run_training(options: TrainOptions) -> int:
    """Trains a model in this process, one of those that `torchrun` started.

    Returns:
        0 at the end of the run or at its time limit; 128 plus the number of the signal that stopped it.

    Raises:
        UsageError, ArgumentError: the options, the dataset, the weights or the state cannot be used.
        RuntimeError: the run failed. The message tells whether --resume can continue it.
    """
    with join_processes(options.device) as processes:
        plan = processes.first_then_others(lambda: make_plan(options, processes))
        with new_folder(options.out) as folder:
            if processes.first:
                tempfile.TemporaryFile(dir=folder).close()  # raises OSError if the run cannot write there
            return _train(plan, processes, folder)


def _train(plan: TrainingPlan, processes: Processes, folder: Path) -> int:
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    state = load_state(plan.state, plan.fingerprint) if plan.state else None
    network, origin = _make_network(plan, processes)
    session = _describe_session(processes.world)
    trainer = Trainer(network, plan, processes, folder, state)
    session["first_step"] = trainer.step
    if trainer.progress >= 1.0:
        if processes.first:
            trainer.write_results()  # the run may have failed after its last state, such as on a full disk
        _print(processes, f"the run in {folder} is at its end, after {trainer.step} steps")
        return 0
    _announce(plan, processes, f"continuing after step {trainer.step}" if state else origin)
    try:
        finished = trainer.run()
    except Exception as error:
        if processes.first and trainer.saved_step:
            kind = UsageError if isinstance(error, UsageError) else RuntimeError
            saved = f"the state after {trainer.saved_step} steps is saved, --resume continues from there"
            raise kind(f"{one_line(error, 200)}; {saved}") from error
        raise
    if processes.first:
        session |= {"last_step": trainer.step, "stopped_by": trainer.stop_reason or "the end"}
        session["ended_utc"] = _now()
        file, earlier = folder / "training.json", []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            earlier = json.loads(file.read_text(encoding="utf-8"))["sessions"]
        write_json(file, {**_describe_run(plan, trainer, origin), "sessions": [*earlier, session]})
    processes.agree(0.0)  # wait for the report
    left_out = f"; {plan.data} left out" if plan.data.errors else ""
    if finished:
        files = f"{folder / 'model.safetensors'} and model.json"
        _print(processes, f"wrote {files}, after {trainer.step} steps{left_out}")
        return 0
    stopped = f"stopped by {trainer.stop_reason} after {trainer.step} steps"
    _print(processes, f"{stopped}; --resume continues from there{left_out}")
    return 128 + trainer.signal if trainer.signal else 0


def _make_network(plan: TrainingPlan, processes: Processes) -> tuple[TrainingNetwork, str]:
    options = plan.options
    if options.device == "cuda":
        # Its trials pay only for few shapes that recur.
        torch.backends.cudnn.benchmark = len(plan.order.scales) == 1 and options.batch >= 8
    network, origin = processes.first_then_others(  # the first process downloads the weights
        lambda: make_network(
            plan.config,
            options.init,
            plan.known_names,
            pairs=options.denoising,
            thawed=options.batch_norm == "train",
            seed=options.seed,
        )
    )
    network.to(processes.device)
    use_channels_last(network.model)
    return network, origin


def _announce(plan: TrainingPlan, processes: Processes, beginning: str) -> None:
    options, device = plan.options, processes.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    parts = (
        f"{len(plan.data.dataset)} pictures, {plan.config.num_classes} classes",
        f"{options.steps} steps" if options.steps else f"{options.minutes:g} minutes",
        f"{processes.world} x {options.batch} pictures a step on {name}",
        beginning,
    )
    _print(processes, f"training {plan.config.name}: {'; '.join(parts)}", sys.stderr)


def _print(processes: Processes, text: str, file: Any = None) -> None:
    if processes.first:
        print(text, file=file, flush=True)


def _describe_run(plan: TrainingPlan, trainer: Trainer, origin: str) -> dict[str, Any]:
    options = {
        name: value if isinstance(value, (int, float, type(None))) else str(value)
        for name, value in dataclasses.asdict(plan.options).items()
    }
    options["save_every"] = str(plan.options.save_every)
    rows, seconds = trainer.validation_log.rows, trainer.elapsed()
    validation = plan.validation_data
    return {
        "model": plan.config.name,
        "classes": list(plan.config.class_names),
        "pictures": len(plan.data.dataset),
        "pictures_left_out": len(plan.data.errors),
        "validation_pictures": len(validation.dataset) if validation else 0,
        "initial_weights": origin,
        "steps": trainer.step,
        "epochs": round(trainer.step / trainer.order.batches_per_epoch, 3),
        "images": trainer.images,
        "seconds": round(seconds, 1),
        "images_per_second": round(trainer.images / max(1e-9, seconds), 2),
        "validation": {name: float(cell) for name, cell in rows[-1].items() if cell} if rows else None,
        "options": options,
        "fingerprint": plan.fingerprint,
    }


def _describe_session(processes: int) -> dict[str, Any]:
    """Describes the start of a run: its time, command, machine and versions."""
    return {
        "started_utc": _now(),
        "command": shlex.join(["codetr", *sys.argv[1:]]),
        "processes": processes,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu_threads": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "codetr": codetr.__version__,
        "commit": _commit(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _commit() -> str | None:
    """Returns the commit of the checkout that holds this package, if there is one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return os.environ.get("CODETR_COMMIT")
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError):  # no git
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
