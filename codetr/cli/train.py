"""`codetr train`: makes the network, runs the trainer, and tells what came of it."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

from codetr.cli.command import UsageError, complain, one_line
from codetr.dataset.coco_files import DatasetError
from codetr.training.network import TrainingNetwork, use_channels_last
from codetr.training.plan import Plan, make_plan
from codetr.training.processes import Processes, join_processes, launched
from codetr.training.report import session, write_report
from codetr.training.start import make_network, save_config, save_weights
from codetr.training.state import StateError, load_state
from codetr.training.trainer import Trainer
from trt_plugin.atomic_files import new_folder

PROGRAM = "codetr"
SECONDS_TO_SPEAK = 15.0
"""How long the other processes leave it to the first one to say what is wrong with the arguments."""


def run_train(options: argparse.Namespace) -> int:
    """Runs `codetr train`; returns the exit status, see the command's help."""
    rank, _, world = launched()
    try:
        plan = make_plan(options)
    except (UsageError, DatasetError) as error:
        if rank:
            # All processes find the same, and one says it. torchrun ends it before it has, if another
            # leaves first; so the others wait for their end, and speak where they alone have found something.
            time.sleep(SECONDS_TO_SPEAK)
        raise UsageError(one_line(error)) from error
    try:
        status = _train(plan, options)
    except (DatasetError, StateError) as error:
        if world > 1:
            _leave(2, rank, error)
        raise UsageError(one_line(error)) from error
    except Exception as error:
        if world > 1:
            _leave(2 if isinstance(error, UsageError) else 1, rank, error)
        raise
    if world > 1:
        _leave(status, rank)
    return status


def _leave(status: int, rank: int, error: Exception | None = None) -> NoReturn:
    """Ends this process, one of several, without Python's own end.

    After an error the others wait for this process in some exchange, and leaving in order would wait for
    them. After a run all is written, and torchrun would wait for whatever threads and destructors of
    libraries the slowest process has left.
    """
    if error is not None:
        if os.environ.get("CODETR_TRACEBACK"):
            traceback.print_exception(error)
        complain("error", f"process {rank}: {one_line(error)}", PROGRAM)
    sys.stdout.flush()
    os._exit(status)


def _train(plan: Plan, options: argparse.Namespace) -> int:
    """Runs the trainer in this process; returns the exit status."""
    with new_folder(options.out) as folder, join_processes(plan.device) as processes:
        if plan.threads is not None:
            torch.set_num_threads(plan.threads)
        state = load_state(plan.state, plan.fingerprint) if plan.state else None
        network, words = _make_network(plan, options, processes)

        def save(averaged: TrainingNetwork) -> None:
            save_weights(folder / "model.safetensors", averaged, options.save_precision)
            save_config(folder / "model.json", plan.config)

        this_session = session(processes.world)
        trainer = Trainer(
            network,
            plan.data,
            plan.validation_data,
            plan.settings,
            processes,
            folder,
            plan.fingerprint,
            save,
            state,
            plan.left_out,
            plan.validation_left_out,
        )
        first_step = trainer.step
        if trainer.progress >= 1.0:
            _tell(processes, f"the run in {options.out} is at its end, after {first_step} steps")
            return 0
        _announce(plan, processes, f"going on from step {first_step}" if state else words)
        try:
            finished = trainer.run()
        except Exception as error:
            if processes.first and trainer.saved_step:
                kind = UsageError if isinstance(error, DatasetError) else RuntimeError
                saved = f"the state after {trainer.saved_step} steps is saved, --resume goes on from there"
                raise kind(f"{one_line(error, 200)}; {saved}") from error
            raise
        if processes.first:
            _report(plan, options, trainer, folder, this_session, first_step, words)
        processes.barrier()
    left_out = f"; {plan.left_out.words} left out" if plan.left_out.errors else ""
    if finished:
        files = f"{options.out / 'model.safetensors'} and model.json"
        _tell(processes, f"wrote {files}, after {trainer.step} steps{left_out}")
        return 0
    stopped = f"stopped by {trainer.stop_reason} after {trainer.step} steps"
    _tell(processes, f"{stopped}; --resume goes on from there{left_out}")
    return 128 + trainer.signal if trainer.signal else 0


def _make_network(
    plan: Plan, options: argparse.Namespace, processes: Processes
) -> tuple[TrainingNetwork, str]:
    settings = plan.settings
    if plan.device == "cuda":
        # Worth its trials only where few shapes come again and again.
        torch.backends.cudnn.benchmark = len(settings.scales) == 1 and settings.batch >= 8
    if not processes.first:
        processes.barrier()  # the first process downloads weights for all
    network, words = make_network(
        plan.config,
        plan.source,
        plan.known_names,
        pairs=options.denoising,
        thawed=plan.thawed,
        seed=settings.seed,
    )
    if processes.first:
        processes.barrier()
    network.to(processes.device)
    use_channels_last(network.model)
    return network, words


def _announce(plan: Plan, processes: Processes, beginning: str) -> None:
    schedule, batch = plan.settings.schedule, plan.settings.batch
    parts = (
        f"{len(plan.data)} pictures, {plan.config.num_classes} classes",
        f"{schedule.steps} steps" if schedule.steps else f"{schedule.minutes:g} minutes",
        f"{processes.world} x {batch} pictures a step on {_device_name(processes.device)}",
        beginning,
    )
    if processes.first:
        print(f"training {plan.config.name}: {'; '.join(parts)}", file=sys.stderr, flush=True)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


def _tell(processes: Processes, text: str) -> None:
    if processes.first:
        print(text, flush=True)


def _report(
    plan: Plan,
    options: argparse.Namespace,
    trainer: Trainer,
    folder: Path,
    this_session: dict[str, Any],
    first_step: int,
    words: str,
) -> None:
    given = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name not in ("run", "resume")
    }
    rows = trainer.validation_log.rows
    content = {
        "model": plan.config.name,
        "classes": list(plan.config.class_names),
        "pictures": len(plan.data),
        "pictures_left_out": len(plan.left_out.errors),
        "validation_pictures": len(plan.validation_data) if plan.validation_data else 0,
        "initial_weights": words,
        "steps": trainer.step,
        "epochs": round(trainer.step / trainer.order.batches_per_epoch, 3),
        "images": trainer.images,
        "seconds": round(trainer.elapsed(), 1),
        "images_per_second": round(trainer.images / max(1e-9, trainer.elapsed()), 2),
        "validation": {name: float(cell) for name, cell in rows[-1].items() if cell} if rows else None,
        "options": given,
        "resolved_options": plan.fingerprint,
    }
    what = {
        "first_step": first_step,
        "last_step": trainer.step,
        "stopped_by": trainer.stop_reason or "the end",
    }
    write_report(folder / "training.json", content, {**this_session, **what})
