"""Writes the tables of README and docs from benchmarks/results:

python tools/docs/tables.py            # updates every table
python tools/docs/tables.py --check    # exits with status 1 if a table differs from its result file

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a function of TABLES.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)

OPERATOR = "msda_h200.json"
COMPILED = "msda_compiled_h200.json"
ACCURACY = "accuracy_co_dino_demo_640x640_h200.json"
TRAINING = "training_h200.json"
SURGERY = "surgery_fp16_h200.json"
REPEATS = "repeats_h200.json"
SIZES = "sizes_co_dino_swin_l_h200.json"
DETECTORS = {"Swin-L": "co_dino_swin_l_768x1152_h200.json", "R50": "co_dino_r50_768x1152_h200.json"}

ENCODER = "codino_encoder_768x1152"
DECODER = "codino_decoder_768x1152"

METHODS = {
    "attention": "`msda.attention`",
    "fused_attention": "`msda.fused_attention`, with softmax and locations",
    "plugin": "our plugin in an engine",
    "fused_plugin": "our fused plugin in an engine",
    "nvidia_plugin": "NVIDIA's `MultiscaleDeformableAttnPlugin_TRT` in an engine",
    "reference": "`grid_sample`, eager PyTorch",
    "reference_compiled": "`grid_sample`, `torch.compile`",
    "attention_backward": "`msda.attention`, backward",
    "deterministic_backward": "`msda.attention`, backward, deterministic",
    "reference_backward": "`grid_sample`, backward, eager PyTorch",
    "reference_compiled_backward": "`grid_sample`, backward, `torch.compile`",
}
ZOO = {
    "deformable_detr": "Deformable DETR R50",
    "deformable_detr_two_stage": "Deformable DETR R50, two-stage with box refinement",
    "co_dino_r50": "Co-DINO R50, the operator decomposed",
    "grounding_dino": "Grounding DINO Swin-T",
    "mask2former": "Mask2Former Swin-T",
    "omdet_turbo": "OmDet-Turbo Swin-T",
    "rt_detr": "RT-DETR R50",
    "rt_detr_v2": "RT-DETRv2 R50",
    "d_fine": "D-FINE L",
    "rf_detr": "RF-DETR medium",
}


def read(name: str) -> dict:
    """A result file of benchmarks/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def digits(number: float) -> str:
    """A number with three significant digits, larger ones whole."""
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    ruler = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def source(*names: str) -> str:
    """The line below a table: GPU, versions, and the result files with their commits."""
    contents = [read(name) for name in names]
    tensorrt = {content["tensorrt"].split(".post")[0] for content in contents if content["tensorrt"]}
    versions = [f"PyTorch {contents[0]['torch'].split('+')[0]}", *(f"TensorRT {x}" for x in sorted(tensorrt))]
    programs = {re.match(r"python -m ([\w.]+)", content["command"])[1]: None for content in contents}
    files = [f"`{name}` ({content['commit'][:7]})" for name, content in zip(names, contents)]
    return (
        f"\n\n{', '.join([contents[0]['gpu']['name'], *versions])}. Made by "
        f"{', '.join(f'`{program}`' for program in programs)}; in `benchmarks/results`, with the commit: "
        f"{', '.join(files)}."
    )


def operator_times(name: str) -> dict[tuple, dict]:
    """Results by (problem, method, type, distribution)."""
    return {
        (row["problem"]["name"], row["method"], row["dtype"], row["distribution"]): row
        for row in read(name)["results"]
        if "timing" in row
    }


def microseconds(row: dict | None) -> str:
    """The median; in parentheses the median with the inputs in L2, where both were timed."""
    if row is None:
        return ""
    warm = f" ({digits(row['warm_timing']['median_ms'] * 1e3)})" if "warm_timing" in row else ""
    return digits(row["timing"]["median_ms"] * 1e3) + warm


def milliseconds(row: dict) -> str:
    return digits(row["timing"]["median_ms"])


def variants(name: str) -> dict[tuple[str, str], dict]:
    """Results by (backend, variant)."""
    return {(row["backend"], row["variant"]): row for row in read(name)["results"]}


def summary() -> str:
    operator = operator_times(OPERATOR)
    forward = {
        method: operator[ENCODER, method, "fp16", "near"] for method in METHODS if "compile" not in method
    }
    detectors = {name: variants(file) for name, file in DETECTORS.items()}
    zoo = {row["model"]: row for row in read(SURGERY)["results"]}
    step = {row["attention"]: row for row in read(TRAINING)["results"] if row["model"] == "co_dino_r50"}

    def row(what: str, ours: dict, baseline: str, theirs: dict, unit: str = "ms") -> list[str]:
        times = [part["timing"]["median_ms"] for part in (ours, theirs)]
        shown = [digits(time * 1e3 if unit == "µs" else time) for time in times]
        return [
            what,
            f"{shown[0]} {unit}",
            f"{baseline}: {shown[1]} {unit}",
            f"{times[1] / times[0]:.1f} times",
        ]

    fused = forward["fused_attention"]
    rows = [
        row("operator, encoder layer", fused, "NVIDIA's plugin", forward["nvidia_plugin"], "µs"),
        row("operator, encoder layer", fused, "`grid_sample`", forward["reference"], "µs"),
    ]
    for name, found in detectors.items():
        engine, torch = found["TensorRT engine", "fp16"], found["torch CUDA graph", "fp16"]
        rows.append(row(f"Co-DINO {name} in TensorRT", engine, "PyTorch, CUDA graph", torch))
    for model in ("deformable_detr", "grounding_dino"):
        found = zoo[model]
        rows.append(row(f"{ZOO[model]} after surgery", found["rewritten"], "as exported", found["original"]))
    rows.append(row("training step of Co-DINO R50", step["kernels"], "`grid_sample`", step["grid_sample"]))
    head = ["fp16 (training: bf16), 768x1152 or published size", "this project", "instead of", "faster"]
    return table(head, rows) + source(OPERATOR, *DETECTORS.values(), SURGERY, TRAINING)


def operator(name: str = OPERATOR) -> str:
    times = operator_times(name)
    columns = [(problem, dtype) for problem in (ENCODER, DECODER) for dtype in ("fp32", "fp16")]
    rows = [
        [label, *(microseconds(times.get((problem, method, dtype, "near"))) for problem, dtype in columns)]
        for method, label in METHODS.items()
        if any(key[1] == method for key in times)
    ]
    head = ["microseconds", "encoder fp32", "encoder fp16", "decoder fp32", "decoder fp16"]
    encoder, decoder = (
        times[problem, "attention", "fp16", "near"]["problem"] for problem in (ENCODER, DECODER)
    )
    sizes = (
        f"One layer of Co-DINO at 768x1152: {encoder['num_heads']} heads of {encoder['head_dim']} channels, "
        f"{len(encoder['spatial_shapes'])} levels of {encoder['num_points']} points, "
        f"{encoder['num_queries']:,} queries in the encoder and {decoder['num_queries']} in the decoder. "
        "Locations lie near the reference points. "
        "The L2 cache is cold; in parentheses it holds the inputs.\n\n"
    )
    return sizes + table(head, rows) + source(name)


def operator_compiled() -> str:
    return operator(COMPILED)


def operator_sizes() -> str:
    times = operator_times(OPERATOR)
    problems = [f"codino_encoder_{size}" for size in ("608x608", "768x1152", "768x1152_batch8", "1280x1920")]
    rows = []
    for problem in problems:
        near, uniform = (times[problem, "fused_attention", "fp16", spread] for spread in ("near", "uniform"))
        sizes = near["problem"]
        size = problem.removeprefix("codino_encoder_").removesuffix("_batch8")
        cells = f"{sizes['num_queries']:,}"
        rows.append([size, str(sizes["batch"]), cells, microseconds(near), microseconds(uniform)])
    head = ["image", "batch", "queries", "near the reference points, µs", "anywhere, µs"]
    return table(head, rows) + source(OPERATOR)


def operator_error() -> str:
    worst: dict[tuple[str, str], float] = {}
    for (_, method, dtype, _), row in operator_times(OPERATOR).items():
        if row.get("relative_error") is not None:
            worst[method, dtype] = max(worst.get((method, dtype), 0), row["relative_error"])
    dtypes = ("fp32", "fp16", "bf16")
    rows = [
        [METHODS[method], *(f"{worst[method, t]:.1e}" if (method, t) in worst else "" for t in dtypes)]
        for method in ("attention", "fused_attention", "nvidia_plugin", "attention_backward")
    ]
    return table(["largest relative error (L2)", *dtypes], rows) + source(OPERATOR)


def detector() -> str:
    found = {name: variants(file) for name, file in DETECTORS.items()}
    rows = []
    for backend, label in (("torch CUDA graph", "PyTorch"), ("TensorRT engine", "TensorRT engine")):
        for precision in ("fp32", "tf32", "fp16"):
            if (backend, precision) not in found["R50"]:
                continue
            row = [f"{label} {precision}"]
            for name in DETECTORS:
                part = found[name][backend, precision]
                same = part["detections"]
                row += [
                    milliseconds(part),
                    f"{same['matched']} of {same['expected']}",
                    f"{same['median_box_difference_px']:.2g}",
                ]
            rows.append(row)
    head = [
        "768x1152, batch 1",
        *(f"{name}{what}" for name in DETECTORS for what in (", ms", ", matched", ", px")),
    ]
    return table(head, rows) + source(*DETECTORS.values())


def engines() -> str:
    names = {
        "Swin-L, 608x608": "engines_co_dino_swin_l_fp16_608x608_h200.json",
        "Swin-L, 768x1152": "engines_co_dino_swin_l_fp16_768x1152_h200.json",
        "Swin-L, 1280x1920": "engines_co_dino_swin_l_fp16_1280x1920_h200.json",
        "Swin-L, 512 to 1344, batch 1 to 8": "engines_co_dino_swin_l_fp16_dynamic_h200.json",
        "Swin-L, 512 to 1344, batch 1 to 8 ": "engines_co_dino_swin_l_fp16_dynamic_onnx_h200.json",
        "R50, 768x1152": "engines_co_dino_r50_fp16_768x1152_h200.json",
    }
    rows = []
    for label, name in names.items():
        for row in read(name)["results"]:
            size = "x".join(map(str, row["inputs"]["images"][2:]))
            build = "" if row["build_seconds"] is None else f"{row['build_seconds']:.0f}"
            path = "ONNX" if "onnx" in row["variant"] else "dynamo"
            rows.append(
                [label.strip(), path, size, milliseconds(row), build, f"{row['engine_bytes'] / 2**20:.0f}"]
            )
    head = ["fp16 engine", "path", "timed at", "ms", "build, s", "MiB"]
    return table(head, rows) + source(*names.values())


def sizes() -> str:
    batches = sorted({row["batch"] for row in read(SIZES)["results"]})
    rows: dict[str, list[str]] = {}
    for row in read(SIZES)["results"]:
        same = row["detections_in_its_precision"]
        share = f"{same['matched'] / same['expected']:.0%}"
        rows.setdefault(f"{row['height']}x{row['width']}", []).append(f"{milliseconds(row)} ({share})")
    head = ["ms (detections that match PyTorch fp16)", *(f"batch {batch}" for batch in batches)]
    return table(head, [[size, *cells] for size, cells in rows.items()]) + source(SIZES)


def repeats() -> str:
    rows = [
        [
            f"{row['model']}, {row['precision']}, {row['height']}x{row['width']}",
            str(row["runs"]),
            str(row["different"]),
            f"{row['matches']} of {row['detections']}",
        ]
        for row in read(REPEATS)["results"]
    ]
    head = ["engine", "runs", "runs with other bits", "detections that match in the worst run"]
    return table(head, rows) + source(REPEATS)


def accuracy() -> str:
    paths = {"fp32": "dynamo path", "fp16": "dynamo path", "onnx_fp16": "ONNX path", "bf16": "ONNX path"}
    rows = []
    for row in read(ACCURACY)["results"]:
        torch = row["backend"] == "PyTorch"
        name = (
            f"PyTorch {row['precision']}"
            if torch
            else f"TensorRT {row['precision']}, {paths[row['variant']]}"
        )
        metrics, first = row["metrics"], not rows
        rows.append(
            [
                name,
                *(f"{metrics[key]:.4f}" for key in ("ap", "ap50", "ap75")),
                "" if first else f"{row['ap_difference']:+.4f}",
                "" if first else f"{row['agreement']['share']:.2%}",
                milliseconds(row),
            ]
        )
    head = ["co_dino_demo, 640x640", "AP", "AP50", "AP75", "AP difference", "detections that agree", "ms"]
    return table(head, rows) + source(ACCURACY)


def training() -> str:
    rows = [
        [
            f"{row['model']}, {row['batch']} images of {row['height']}x{row['width']}",
            "MSDA kernels" if row["attention"] == "kernels" else "`grid_sample`",
            milliseconds(row),
            digits(row["images_per_second"]),
            digits(row["peak_memory_bytes"] / 2**30),
        ]
        for row in read(TRAINING)["results"]
    ]
    head = ["training step, bf16 autocast", "attention", "ms", "images/s", "GiB"]
    return table(head, rows) + source(TRAINING)


def demo_training() -> str:
    folder = RESULTS / "demo_training"
    run = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    with (folder / "validation.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    session = run["sessions"][0]
    scores = [f"{float(last[name]):.3f}" for name in ("AP", "AP50", "AP75", "APs", "APm", "APl")]
    head = ["pictures", "minutes", "AP", "AP50", "AP75", "small", "medium", "large"]
    row = [f"{run['pictures']:,}", f"{run['seconds'] / 60:.0f}", *scores]
    machine = f"{session['processes']} {session['gpu']} GPUs, {run['images_per_second']:.0f} images/s"
    return table(head, [row]) + f"\n\n{machine}, validation included; `benchmarks/results/demo_training`."


def surgery() -> str:
    rows = []
    for row in sorted(read(SURGERY)["results"], key=speedup, reverse=True):
        before, after = row["original"], row["rewritten"]
        rows.append(
            [
                f"{ZOO[row['model']]}, {row['configuration'].split(', ')[-1]}",
                str(row["replaced"]),
                milliseconds(before),
                milliseconds(after),
                f"{speedup(row):.{2 if speedup(row) < 2 else 1}f}",
                f"{before['build_seconds']:.0f}",
                f"{after['build_seconds']:.0f}",
            ]
        )
    head = ["fp16, batch 1", "nodes replaced", "as exported, ms", "after, ms", "times faster"]
    return table([*head, "build as exported, s", "build after, s"], rows) + source(SURGERY)


def speedup(row: dict) -> float:
    return row["original"]["timing"]["median_ms"] / row["rewritten"]["timing"]["median_ms"]


TABLES: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (
        *(summary, operator, operator_sizes, operator_error, operator_compiled),
        *(detector, engines, sizes, repeats, accuracy, training, demo_training, surgery),
    )
}


def pages() -> list[Path]:
    """The files whose tables this script writes."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("kernels/**/*.md"))]


def updated(text: str) -> str:
    """A page's text with every table as the result files have it."""
    return MARKED.sub(lambda mark: f"<!-- table: {mark[1]} -->\n{TABLES[mark[1]]()}\n<!-- end -->", text)


def main(arguments: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = updated(text)
        if new != text:
            stale.append(page)
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"{page.relative_to(ROOT)}: tables {'differ' if '--check' in arguments else 'updated'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
