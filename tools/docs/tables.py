"""Writes the tables of README and docs from benchmarks/results:

python tools/docs/tables.py            # updates every table
python tools/docs/tables.py --check    # exits with status 1 if a table differs from its result file

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is a function of this module or of
`sweep_tables`.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from benchmarks.output_agreement import describe
from benchmarks.report import digits, microseconds, release, table
from tools.docs import sweep_tables

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)

OPERATOR = "msda_h200.json"
COMPILED = "msda_compiled_h200.json"
ACCURACY = "accuracy_co_dino_demo_640x640_h100.json"
ACCURACY_IN_8_BITS = "accuracy_co_dino_demo_8_bits_640x640_h100.json"
ENGINES_IN_8_BITS = (
    "engines_co_dino_swin_l_8_bits_768x1152_h200.json",
    "engines_co_dino_swin_l_8_bits_batch_8_768x1152_h200.json",
    "engines_co_dino_swin_l_8_bits_768x1152_h100.json",
    "engines_co_dino_swin_l_8_bits_batch_8_768x1152_h100.json",
    "engines_co_dino_r50_8_bits_768x1152_h200.json",
    "engines_co_dino_r50_8_bits_768x1152_h100.json",
    "engines_co_dino_r50_8_bits_batch_8_768x1152_h100.json",
    "engines_co_dino_r50_8_bits_batch_8_768x1152_h200.json",
    "engines_co_dino_demo_8_bits_640x640_h100.json",
    "engines_co_dino_demo_8_bits_batch_8_640x640_h100.json",
)
IN_FP16 = {"int8nc": ", convolutions in fp16", "onnx_int8_neck_fp16": ", neck in fp16"}
"""What engines of these variants keep in fp16."""
TRAINING = "training_h200.json"
SURGERY = "surgery_fp16_h200.json"
SURGERY_BY_KINDS = "surgery_*_fp16_h100.json"
SURGERY_BEHIND_MSDA = "surgery_*_behind_msda_fp16_h200.json"
QUANTIZATION = "quantization*.json"
REPEATS = "repeats_h100.json"
BATCH, SERVING = "batch_*_h200.json", "serving_*_h200.json"
SIZES = "sizes_co_dino_swin_l_h200.json"
LINEAR_NORMS = "linear_norm_h100.json"
WINDOWS = "window_attention_h200.json"
FEED_FORWARDS = "feed_forward_h200.json"
LINEARS_OF_SUMS = "linear_of_sum_h200.json"
QUANTIZED_FEED_FORWARDS = "quantized_feed_forward_h200.json"
ENGINES_WITH_NORMS = (
    "engines_norms_co_dino_swin_l_768x1152_h100.json",
    "engines_norms_co_dino_r50_768x1152_h100.json",
)
DETECTORS = {"Swin-L": "co_dino_swin_l_768x1152_h100.json", "R50": "co_dino_r50_768x1152_h100.json"}

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
SWINS = {
    "swin_torchvision_b32": "Swin-T of torchvision, batch 32",
    "swin_timm_b8": "Swin-B of timm, batch 8",
    "nougat_encoder": "Encoder of Nougat",
}
"""Swin Transformers that detect nothing."""


@cache
def read(name: str) -> dict:
    """A result file of benchmarks/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def rows_table(name: str, columns: Mapping[str, Callable[[dict], str]], order: Callable | None = None) -> str:
    """A Markdown table of a result file: a line for each row, in `order` if it is given."""
    rows = sorted(read(name)["results"], key=order) if order else read(name)["results"]
    cells = [[column(row) for column in columns.values()] for row in rows]
    return table(list(columns), cells) + source(name)


def source(*names: str) -> str:
    """The line below a table: GPU, versions, and the result files with their commits."""
    contents = [read(name) for name in names]
    tensorrt = {release(content["tensorrt"]) for content in contents if content["tensorrt"]}
    versions = [f"PyTorch {release(contents[0]['torch'])}", *(f"TensorRT {x}" for x in sorted(tensorrt))]
    programs = {re.match(r"python -m ([\w.]+)", content["command"])[1]: None for content in contents}
    files = [f"`{name}` ({content['commit'][:7]})" for name, content in zip(names, contents)]
    gpus = dict.fromkeys(content["gpu"]["name"] for content in contents)
    return (
        f"\n\n{', '.join([*gpus, *versions])}. Made by "
        f"{', '.join(f'`{program}`' for program in programs)}; in `benchmarks/results`, with the commit: "
        f"{', '.join(files)}."
    )


def gpu_of(name: str) -> str:
    """The GPU of a result file, such as H200."""
    return read(name)["gpu"]["name"].split()[1]


def operator_times(name: str) -> dict[tuple, dict]:
    """Results by (problem, method, type, distribution)."""
    return {
        (row["problem"]["name"], row["method"], row["dtype"], row["distribution"]): row
        for row in read(name)["results"]
        if "timing" in row
    }


def milliseconds(row: dict) -> str:
    return digits(row["timing"]["median_ms"])


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f}"


def variants(name: str) -> dict[tuple[str, str], dict]:
    """Results by (backend, variant)."""
    return {(row["backend"], row["variant"]): row for row in read(name)["results"]}


def summary() -> str:
    operator = operator_times(OPERATOR)
    detectors = {name: variants(file) for name, file in DETECTORS.items()}
    zoo = {row["model"]: row for row in read(SURGERY)["results"]}
    step = {row["attention"]: row for row in read(TRAINING)["results"] if row["model"] == "co_dino_r50"}
    fused, nvidia, reference = (
        operator[ENCODER, method, "fp16", "near"]
        for method in ("fused_attention", "nvidia_plugin", "reference")
    )
    pairs = [
        (OPERATOR, "operator, encoder layer", fused, "NVIDIA's plugin", nvidia),
        (OPERATOR, "operator, encoder layer", fused, "`grid_sample`", reference),
    ]
    for name, found in detectors.items():
        engine, torch = found["TensorRT engine", "fp16"], found["torch CUDA graph", "fp16"]
        pairs.append((DETECTORS[name], f"Co-DINO {name} in TensorRT", engine, "PyTorch, CUDA graph", torch))
    for model in ("deformable_detr", "grounding_dino"):
        what, found = f"{ZOO[model]} after surgery", zoo[model]
        pairs.append((SURGERY, what, found["rewritten"], "as exported", found["original"]))
    what = "training step of Co-DINO R50"
    pairs.append((TRAINING, what, step["kernels"], "`grid_sample`", step["grid_sample"]))
    rows = []
    for file, what, ours, baseline, theirs in pairs:
        times = [part["timing"]["median_ms"] for part in (ours, theirs)]
        factor, unit = (1e3, "µs") if what.startswith("operator") else (1, "ms")
        own, other = (f"{digits(time * factor)} {unit}" for time in times)
        rows.append([what, gpu_of(file), own, f"{baseline}: {other}", f"{times[1] / times[0]:.1f} times"])
    what = "fp16 (training: bf16), 768x1152 or published size"
    return table([what, "GPU", "this project", "instead of", "faster"], rows) + source(
        OPERATOR, *DETECTORS.values(), SURGERY, TRAINING
    )


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


operator_compiled = partial(operator, COMPILED)


def operator_sizes() -> str:
    times = operator_times(OPERATOR)
    problems = [f"codino_encoder_{size}" for size in ("608x608", "768x1152", "768x1152_batch8", "1280x1920")]
    rows = []
    for problem in problems:
        near, uniform = (times[problem, "fused_attention", "fp16", spread] for spread in ("near", "uniform"))
        size = problem.removeprefix("codino_encoder_").removesuffix("_batch8")
        batch, queries = near["problem"]["batch"], f"{near['problem']['num_queries']:,}"
        rows.append([size, str(batch), queries, microseconds(near), microseconds(uniform)])
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
        "Swin-L, 608x608 to 1280x1920": "engines_co_dino_swin_l_fp16_dynamic_onnx_h200.json",
        "R50, 768x1152": "engines_co_dino_r50_fp16_768x1152_h200.json",
    }
    rows = []
    for label, name in names.items():
        for row in read(name)["results"]:
            path = "ONNX" if "onnx" in row["variant"] else "dynamo"
            size = "x".join(map(str, row["inputs"]["images"][2:]))
            build = "" if row["build_seconds"] is None else f"{row['build_seconds']:.0f}"
            what = [label, gpu_of(name), path, size]
            rows.append([*what, milliseconds(row), build, mebibytes(row["engine_bytes"])])
    head = ["fp16 engine", "GPU", "path", "timed at", "ms", "build, s", "MiB"]
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
    columns = {
        "engine": lambda row: f"{row['model']}, {row['precision']}, {row['height']}x{row['width']}",
        "runs": lambda row: str(row["runs"]),
        "runs with other bits": lambda row: str(row["different"]),
        "detections that match in the worst run": lambda row: f"{row['matches']} of {row['detections']}",
    }
    return rows_table(REPEATS, columns)


def accuracy(file: str = ACCURACY) -> str:
    paths = {"fp32": "dynamo path", "fp16": "dynamo path", "onnx_fp16": "ONNX path", "bf16": "ONNX path"}
    paths |= {f"{precision}_dynamo": "dynamo path" for precision in ("int8", "fp8")}
    paths |= {f"{precision}_onnx": "ONNX path" for precision in ("int8", "fp8")}
    reference = read(file)["results"][0]

    def name(row: dict) -> str:
        if row["backend"] == "PyTorch":
            return f"PyTorch {row['precision']}"
        return f"TensorRT {row['precision']}, {paths[row['variant']]}"

    def compared(text: Callable[[dict], str]) -> Callable[[dict], str]:
        return lambda row: "" if row is reference else text(row)

    columns = {
        "co_dino_demo, 640x640": name,
        "AP": lambda row: f"{row['metrics']['ap']:.4f}",
        "AP50": lambda row: f"{row['metrics']['ap50']:.4f}",
        "AP75": lambda row: f"{row['metrics']['ap75']:.4f}",
        "AP difference": compared(lambda row: f"{row['ap_difference']:+.4f}"),
        "detections that agree": compared(lambda row: f"{row['agreement']['share']:.2%}"),
        "ms": milliseconds,
    }
    return rows_table(file, columns)


accuracy_in_8_bits = partial(accuracy, ACCURACY_IN_8_BITS)


def engines_in_8_bits() -> str:
    rows = []
    for file in ENGINES_IN_8_BITS:
        base: dict[str, float] = {}  # milliseconds of fp16 by path
        for row in read(file)["results"]:
            path = "dynamo" if row["variant"].startswith("dyn") else "ONNX"
            if row["precision"] == "fp16":
                base[path] = row["timing"]["median_ms"]
            precision = row["precision"] + IN_FP16.get(row["variant"], "")
            fp16_ms = base.get(path) or next(iter(base.values()))
            faster = f"{fp16_ms / row['timing']['median_ms']:.2f}"
            sizes = [mebibytes(row[key]) for key in ("engine_bytes", "device_memory_bytes")]
            batch, _, height, width = row["inputs"]["images"]
            what = [row["model"], f"{height}x{width}", gpu_of(file), str(batch), path, precision]
            rows.append([*what, milliseconds(row), faster, *sizes])
    head = ["model", "size", "GPU", "batch", "path", "precision", "ms", "times fp16's speed", "engine, MiB"]
    return table([*head, "memory, MiB"], rows) + source(*ENGINES_IN_8_BITS)


def training() -> str:
    columns = {
        "training step, bf16 autocast": lambda row: (
            f"{row['model']}, {row['batch']} images of {row['height']}x{row['width']}"
        ),
        "attention": lambda row: "MSDA kernels" if row["attention"] == "kernels" else "`grid_sample`",
        "ms": milliseconds,
        "images/s": lambda row: digits(row["images_per_second"]),
        "GiB": lambda row: digits(row["peak_memory_bytes"] / 2**30),
    }
    return rows_table(TRAINING, columns)


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
    columns = {
        "fp16, batch 1": lambda row: f"{ZOO[row['model']]}, {row['configuration'].split(', ')[-1]}",
        "nodes replaced": lambda row: str(row["replaced"]),
        "as exported, ms": lambda row: milliseconds(row["original"]),
        "after, ms": lambda row: milliseconds(row["rewritten"]),
        "times faster": lambda row: f"{speedup(row):.{2 if speedup(row) < 2 else 1}f}",
    }
    return rows_table(SURGERY, columns, lambda row: -speedup(row))


def surgery_by_kinds() -> str:
    """Engines with other replacements than MSDA alone; DETRs beside MSDA alone on the same GPU."""
    return table_of_kinds(SURGERY_BY_KINDS)


def surgery_behind_msda() -> str:
    """Engines with one more kind replaced, beside those of the same files with MSDA alone."""
    return table_of_kinds(SURGERY_BEHIND_MSDA)


def table_of_kinds(pattern: str) -> str:
    """A row for each model and each result file of a pattern, by what was replaced."""
    files = sorted(file.name for file in RESULTS.glob(pattern))
    found = [(read(name)["only"], row) for name in files for row in read(name)["results"]]
    alone = {row["model"]: row["rewritten"]["timing"]["median_ms"] for only, row in found if only == ["msda"]}
    rows = []
    for only, row in sorted(
        found, key=lambda pair: (pair[1]["model"] in SWINS, pair[1]["model"], len(pair[0]))
    ):
        if only == ["msda"] or not all(row["kinds"][kind] for kind in only):
            continue
        model, after = row["model"], row["rewritten"]["timing"]["median_ms"]
        before = alone.get(model, row["original"]["timing"]["median_ms"])
        name = f"{(ZOO | SWINS)[model]}, {row['configuration'].split(', ')[-1]}"
        counts = ", ".join(str(row["kinds"][kind]) for kind in only)
        cells = [digits(before), digits(after), f"{before / after:.2f}"]
        rows.append([name, f"`{' '.join(only)}`", counts, *cells])
    head = ["fp16", "`--only`", "replaced", "before, ms", "after, ms", "times faster"]
    return table(head, rows) + source(*files)


def by_problem(name: str) -> dict[str, dict[str, dict]]:
    """The rows of a result file by the problem's name and the method."""
    results: dict[str, dict[str, dict]] = {}
    for row in read(name)["results"]:
        results.setdefault(row["problem"]["name"], {})[row["method"]] = row
    return results


def linear_norms() -> str:
    """Microseconds of layers with LayerNorm, by one kernel and by two."""
    rows = []
    for methods in by_problem(LINEAR_NORMS).values():
        problem = methods["linear"]["problem"]
        sizes = [f"{problem[name]:,}" for name in ("rows", "inputs_of_row", "outputs_of_row")]
        times = [microseconds(methods[name]) for name in ("linear", "separate", "eager")]
        rows.append([*sizes, "yes" if problem["residual"] else "", *times])
    head = ["M", "K", "N", "residual", "one kernel, µs", "layer and norm, µs", "eager PyTorch, µs"]
    return table(head, rows) + source(LINEAR_NORMS)


def windows() -> str:
    """Microseconds of window attention, by the operator and by PyTorch's attention."""
    results = by_problem(WINDOWS)
    rows = []
    for name, methods in results.items():
        if not name.startswith("swin_l_768x1152") or name.endswith("shifted"):
            continue
        problem, shifted = methods["window_attention"]["problem"], results[f"{name}_shifted"]
        size = f"{problem['height']}x{problem['width']}, {problem['num_heads']}"
        timed = (shifted[method] for method in ("window_attention", "sdpa", "sdpa_no_bias"))
        rows.append([size, *map(microseconds, (methods["window_attention"], *timed))])
    head = ["operator", "operator, shifted", "PyTorch, shifted", "PyTorch, shifted, no bias"]
    return table(["map, heads", *(f"{name}, µs" for name in head)], rows) + source(WINDOWS)


def feed_forwards() -> str:
    """Microseconds of feed-forward blocks in 16 bits, in one kernel and in two."""
    return table_of_blocks(FEED_FORWARDS, {"two_layers": "two layers", "eager": "eager PyTorch"})


def quantized_feed_forwards() -> str:
    """Microseconds of feed-forward blocks in int8, in one kernel and in several."""
    others = {"two_layers": "two layers, and PyTorch's quantisation and norm"}
    return table_of_blocks(QUANTIZED_FEED_FORWARDS, others)


def linears_of_sums() -> str:
    """Microseconds of linear layers of a sum, in one kernel and in two."""
    return table_of_blocks(
        LINEARS_OF_SUMS, {"linear": "a sum, and `msda.linear`", "eager": "eager PyTorch"}, "linear_of_sum"
    )


def table_of_blocks(name: str, others: dict[str, str], method: str = "feed_forward") -> str:
    """The times of a method of a result file, by rows, beside other methods with their titles."""
    rows_of = {found[method]["problem"]["rows"]: found for found in by_problem(name).values()}
    rows = [
        [f"{count:,}", *(microseconds(found[one]) for one in (method, *others))]
        for count, found in sorted(rows_of.items(), reverse=True)
    ]
    head = ["rows", *(f"{title}, µs" for title in ("one kernel", *others.values()))]
    return table(head, rows) + source(name)


def engines_with_norms() -> str:
    rows = []
    for name in ENGINES_WITH_NORMS:
        times = {row["variant"]: row for row in read(name)["results"]}
        with_norms, without = times["norm"], times["plain"]
        cells = [milliseconds(without), milliseconds(with_norms)]
        rows.append([f"{with_norms['model']}, 768x1152, batch 1", *cells])
    return table(["fp16", "norms by TensorRT, ms", "norms in our layers, ms"], rows) + source(
        *ENGINES_WITH_NORMS
    )


def quantization() -> str:
    ours = {"co_dino_r50": "Co-DINO R50", "co_dino_swin": "Co-DINO Swin-L", "co_dino_demo": "Co-DINO demo"}
    names = {**ZOO, **ours}
    files = sorted(file.name for file in RESULTS.glob(QUANTIZATION))
    rows = []
    for file, row in [(name, row) for name in files for row in read(name)["results"]]:
        base = row.get("fp16", {}).get("timing")
        for precision in ("fp16", "int8", "fp8"):
            part = row.get(precision, {})
            model = names.get(row["model"], row["model"])
            cells = [model, gpu_of(file), str(row.get("batch", "")), precision]
            if "timing" not in part:
                cells += ["failed" if "failure" in {**row, **part} else "", *[""] * 4]
            else:
                faster = base["median_ms"] / part["timing"]["median_ms"] if base else None
                sizes = [mebibytes(part[key]) for key in ("engine_bytes", "device_memory_bytes")]
                agrees = describe(part["agreement"]) if "agreement" in part else ""
                cells += [milliseconds(part), f"{faster:.2f}" if faster else "", *sizes, agrees]
            rows.append(cells)
    head = ["model", "GPU", "batch", "precision", "ms", "times fp16's speed", "engine, MiB", "memory, MiB"]
    return table([*head, "agreement with fp32"], rows) + source(*files)


def batch() -> str:
    """`codetr batch` beside the network alone, by model and number of GPUs."""
    files = sorted(file.name for file in RESULTS.glob(BATCH))
    runs = [(read(name), row) for name in files for row in read(name)["results"] if row["stage"] == "batch"]
    one = {
        (run["network"], run["pictures"], row["batch"]): row["images_per_second"]
        for run, row in runs
        if row["gpus"] == 1
    }
    rows = []
    for run, row in sorted(runs, key=lambda pair: (pair[0]["network"], pair[1]["batch"], pair[1]["gpus"])):
        single = one.get((run["network"], run["pictures"], row["batch"]))
        times = f"{row['images_per_second'] / single:.2f}" if single and row["gpus"] > 1 else ""
        shares = [f"{row[name]:.0%}" for name in ("of_network", "idle")]
        cells = [run["network"].split(",")[0], str(row["batch"]), f"{run['pictures']:,}", str(row["gpus"])]
        rows.append([*cells, digits(row["images_per_second"]), *shares, times])
    head = [
        "fp16 engine",
        "batch",
        "pictures of 1080x1920",
        "GPUs",
        "images/s",
        "of the engine's",
        "GPU waits",
    ]
    return table([*head, "times one GPU"], rows) + source(*files)


def serving() -> str:
    """`codetr serve` under load: the latest run of each kind."""
    files = sorted(file.name for file in RESULTS.glob(SERVING))
    rows = {}
    for content in sorted(map(read, files), key=lambda content: content["date_utc"]):
        for row in content["results"]:
            if row["measured"] == "pipeline":
                continue
            answers = ", ".join(f"{count:,} of {status}" for status, count in row["statuses"].items())
            share = f"{row['of_pipeline']:.0%}" if "of_pipeline" in row else ""
            times = [digits(row[name]) for name in ("images_per_second", "p50_ms", "p99_ms")]
            growth = "" if row["growth_mib"] is None else f"{row['growth_mib']:+.0f}"
            what = f"{content['network'].split(',')[0]}, {row['measured']}", str(content.get("gateways", 1))
            rows[what] = [*what, *times, share, answers, growth]
    head = ["fp16 engine, 32 clients", "gateways", "images/s", "p50, ms", "p99, ms", "of the pipeline's"]
    return table([*head, "answers", "memory grows by, MiB"], sorted(rows.values())) + source(*files)


def speedup(row: dict) -> float:
    return row["original"]["timing"]["median_ms"] / row["rewritten"]["timing"]["median_ms"]


def updated(text: str) -> str:
    """A page's text with every table as the result files have it."""
    functions = {**vars(sweep_tables), **globals()}
    return MARKED.sub(lambda mark: f"<!-- table: {mark[1]} -->\n{functions[mark[1]]()}\n<!-- end -->", text)


def main(arguments: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    stale = []
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("kernels/**/*.md"))):
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
