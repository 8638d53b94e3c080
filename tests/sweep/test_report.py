"""The report of a sweep: CSV, Markdown, HTML and pictures of a results.json."""

from __future__ import annotations

import copy
import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codetr.errors import UsageError
from onnx_path.sweeping.report import write_report
from onnx_path.sweeping.report_pictures import colour
from tests.browser import open_page
from tests.sweep.sweep_samples import SPEED, empty_cell, sample_results

EVIL = "evil<script>alert(1)</script>, net"
TASKS = {"resnet18": "classify", EVIL: "classify", "co_dino_r50": "detect"}


def results() -> dict:
    """Results with cells that are measured, throttled, failed and missing."""
    content = sample_results(TASKS, [1, 32])
    cells = {cell["id"]: cell for cell in content["cells"]}
    empty_cell(cells["resnet18-tensorrt-fp8-b32-static"], "failed", "out of GPU memory, <b>32</b> images")
    for batch in (1, 32):
        empty_cell(cells[f"co_dino_r50-torch-tf32-b{batch}-any"], "missing", "no | tf32")
    empty_cell(cells["resnet18-onnxruntime-fp32-b1-any"], "missing", None)
    cells["resnet18-tensorrt-int8-b32-static"]["gpu"] |= {"throttled": True, "reasons": ["sw power cap"]}
    cells["resnet18-tensorrt-fp16-b32-static"]["agreement"]["by_rank"][0]["mean_abs_error"] = float("nan")
    return content


def write(folder: Path, content: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = write(tmp_path_factory.mktemp("sweep"), results())
    written = write_report(folder)
    assert {path.name for path in written} >= {"results.csv", "report.md", "report.html", "throughput.png"}
    assert sorted(path for path in folder.rglob("*.*") if path.name != "results.json") == sorted(written)
    return folder


class TagsAndText(HTMLParser):
    """Collects a page's elements and the text of table rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self._inside = tag in ("td", "th")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.rows[-1][-1] += data


def test_csv_has_a_row_for_each_cell(report):
    with (report / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(results()["cells"])
    row = rows["resnet18-tensorrt-fp16-b1-static"]
    # PyTorch fp32 takes 2.5 ms at batch 1; the engine a share of it, and 0.9 of that with a CUDA graph
    assert float(row["model_ms_median"]) == pytest.approx(2.5 / SPEED["tensorrt", "fp16"])
    assert float(row["speed"]) == pytest.approx(SPEED["tensorrt", "fp16"] / 0.9)
    assert float(row["total_ms_ci95_high"]) == pytest.approx(1.03 * float(row["total_ms_median"]))
    reference = float(rows["resnet18-torch-fp32-b1-any"]["top1"])
    assert float(row["accuracy_change"]) == pytest.approx(float(row["top1"]) - reference)
    assert float(row["rank10_disagreement"]) > 0
    assert float(rows["co_dino_r50-tensorrt-fp16-b1-static"]["rank1_box_px"]) > 0
    assert rows[f"{EVIL}-torch-fp32-b1-any"]["network"] == EVIL
    throttled = rows["resnet18-tensorrt-int8-b32-static"]
    assert (throttled["throttled"], throttled["clocks"]) == ("True", "throttled: sw power cap")
    failed = rows["resnet18-tensorrt-fp8-b32-static"]
    assert (failed["status"], failed["reason"]) == ("failed", "out of GPU memory, <b>32</b> images")
    assert failed["model_ms_median"] == failed["speed"] == ""


def test_markdown_has_tables_by_network(report):
    text = (report / "report.md").read_text(encoding="utf-8")
    tables = text.split("\n## ")
    resnet, evil, detector, problems = tables[1:5]
    text_without_command, _, command = text.partition("## Command")
    assert resnet.startswith("resnet18\n") and "<script>" not in text_without_command
    assert command.startswith("\n\n    codetr sweep resnet18")  # a block of code, which shows text as it is
    assert evil.startswith("evil&lt;script&gt;alert(1)&lt;/script&gt;, net\n")
    rows = [[value.strip() for value in line.split("|")[1:-1]] for line in resnet.splitlines() if "|" in line]
    found = {tuple(row[:4]): dict(zip(rows[0], row)) for row in rows[2:]}
    assert len(found) == 26 - 2
    assert found["TensorRT", "fp16", "static", "1"]["speedup"] == "4.33"
    assert found["TensorRT", "fp16", "static", "1"]["model ms"] == "0.641"
    assert found["TensorRT", "int8", "static", "32"]["clocks"] == "⚠ throttled: sw power cap"
    assert found["PyTorch", "fp32", "any", "1"]["top-1 %"] == "81.00"
    assert "AP %" in detector and "top-1" not in detector and "AP" not in resnet
    reason = "out of GPU memory, &lt;b&gt;32&lt;/b&gt; images"
    assert f"| TensorRT | fp8 | static | 32 | failed | {reason} |" in problems
    assert "| PyTorch | tf32 | any | 1, 32 | missing | no \\| tf32 |" in problems
    assert "| ONNX Runtime | fp32 | any | 1 | missing | not run yet |" in problems
    differences = next(table for table in tables if table.startswith("How the outputs of resnet18"))
    assert "not finite" in differences and "| 32 ⚠ |" in differences
    example = next(table for table in tables if table.startswith("An answer of resnet18"))
    assert "| 1 | tabby 0.600 |" in example
    assert "- gpu: NVIDIA H200" in text and "- torch: 2.11.0" in text
    pictures = re.findall(r"\(pictures/(.+?)\)", text)
    assert pictures and all((report / "pictures" / name).is_file() for name in pictures)


def test_html_is_one_file_with_escaped_text(report):
    text = (report / "report.html").read_text(encoding="utf-8")
    page = TagsAndText(text)
    assert "<script>alert" not in text and "http:" not in text and "https:" not in text
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object")
        for key in ("src", "href"):
            assert attributes.get(key, "#").startswith(("#", "data:")), (tag, attributes)
    assert any(row[:2] == [EVIL, "PyTorch"] for row in page.rows)
    assert any("4.33" in row for row in page.rows)
    doubtful = [attributes for _, attributes in page.elements if attributes.get("class") == "doubtful"]
    assert len(doubtful) == 2  # among the cells and among the differences
    pictures = len(list((report / "pictures").glob("*.svg")))
    assert pictures == sum(tag == "img" for tag, _ in page.elements) == 4 + len(TASKS)


def test_pictures_are_not_blank(report):
    for path in (report / "pictures").glob("*.png"):
        pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 50 and 0.01 < (pixels.min(axis=1) < 200).mean() < 0.7, path
    text = (report / "pictures/throughput.svg").read_text(encoding="utf-8")
    assert "TensorRT int8" in text and "throttled" in text and "<script" not in text
    assert len({colour(series) for series in SPEED}) == len(SPEED)


def test_pictures_without_data_are_not_drawn(tmp_path):
    content = sample_results({"resnet18": "outputs"}, [1], [("torch", "fp32"), ("onnxruntime", "fp32")])
    content["machine"]["gpu"] = None
    for cell in content["cells"]:
        cell |= {"accuracy": None, "agreement": None, "gpu": None, "peak_gpu_bytes": None}
    write_report(write(tmp_path, content))
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == {"inference_time"}
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "top-1" not in text and "GPU memory" not in text and "⚠" not in text


def test_sweep_without_a_measured_cell_has_a_report(tmp_path):
    content = sample_results({"resnet18": "classify"}, [1], [("torch", "fp32")])
    empty_cell(content["cells"][0], "failed", "killed")
    assert len(write_report(write(tmp_path, content))) == 3
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "No cell was measured." in text and "| killed |" in text


def _without_version(content):
    del content["version"]


def _other_network(content):
    content["cells"][0]["network"] = "vgg"


def _word_for_a_time(content):
    content["cells"][0]["model_ms"]["eager"]["median"] = "fast"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (None, r"results.json: No such file"),
        (lambda content: "{", r"results.json: .*Expecting"),
        (_without_version, r"version: Field required"),
        (_other_network, r"'vgg', which is not listed"),
        (_word_for_a_time, r"cells.0.model_ms.eager.median: expected a valid number.*'fast'"),
    ],
)
def test_damaged_results_are_one_line(tmp_path, damage, problem):
    if damage is not None:
        content = copy.deepcopy(sample_results({"resnet18": "classify"}, [1]))
        text = damage(content) or json.dumps(content)
        (tmp_path / "results.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=problem) as caught:
        write_report(tmp_path)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"results.json"}


def test_report_loads_neither_torch_nor_onnx():
    code = "import onnx_path.sweeping.report, sys; sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_browser_sorts_and_filters(report, tmp_path):
    with open_page(viewport={"width": 1600, "height": 1000}) as page:
        problems, requests = [], []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((report / "report.html").as_uri())
        page.wait_for_selector("body[data-ready]")

        def column(title: str) -> list[str]:
            titles = page.locator("#cell-table thead th").evaluate_all("all => all.map(x => x.title)")
            return page.locator(
                f"#cell-table tbody td:nth-child({titles.index(title) + 1})"
            ).all_inner_texts()

        measured = sum(cell["status"] == "ok" for cell in results()["cells"])
        assert len(column("network")) == measured

        def wait_until(holds: Callable[[], bool]) -> None:
            """DataTables sorts and filters after the event."""
            for _ in range(100):
                if holds():
                    return
                page.wait_for_timeout(50)
            raise AssertionError(f"the table has {column('images/s')}")

        def rates() -> list[float]:
            return [float(text.replace(",", "")) for text in column("images/s")]

        head = page.locator("#cell-table th[title='images/s'] .dt-column-title")
        assert rates() != sorted(rates()) and len(set(rates())) > 10
        head.click()
        wait_until(lambda: rates() == sorted(rates()))
        head.click()
        wait_until(lambda: rates() == sorted(rates(), reverse=True))

        page.locator("#cell-table_wrapper input[type=search]").fill("int8")
        wait_until(lambda: column("precision") == ["int8"] * 12)
        page.locator("#cell-table th[title='batch'] .dtcc-button_dropdown").click()
        page.locator(".dtcc-dropdown .dtcc-button", has_text=re.compile("^32$")).click()
        wait_until(lambda: column("batch") == ["32"] * 6)
        assert set(column("precision")) == {"int8"}
        assert page.locator("#cell-table tr.doubtful td", has_text="throttled").count() == 1
        page.keyboard.press("Escape")
        page.screenshot(path=tmp_path / "report.png")
        assert not problems and all(url.startswith(("file:", "blob:", "data:")) for url in requests)
    assert len(np.unique(np.asarray(Image.open(tmp_path / "report.png").convert("L")))) > 50
