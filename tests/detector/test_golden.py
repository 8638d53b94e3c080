"""The detector against upstream's stored outputs, and what its engines rely on: export, precision, closed
forms.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import codetr
from codetr.model.backbones.windows import GatheredWindows, SlicedWindows
from codetr.model.geometry import encoder_positions, make_pyramid, proposal_boxes
from codetr.model.layers import FrozenBatchNorm2d, GroupNorm

GOLDEN = Path(__file__).parent / "golden"
MODELS = ("codino_swin_tiny", "codino_resnet_tiny")


def load_golden(name: str) -> tuple[codetr.CoDino, dict[str, torch.Tensor]]:
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    model = codetr.CoDino(codetr.load_config(GOLDEN / f"{name}.json"))
    parameters = {
        key.removeprefix("param/"): value for key, value in tensors.items() if key.startswith("param/")
    }
    codetr.load_checkpoint(model, parameters)
    return model, tensors


@pytest.fixture(scope="module", params=MODELS)
def golden(request) -> tuple[codetr.CoDino, dict[str, torch.Tensor]]:
    return load_golden(request.param)


def inputs(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return tensors["in/images"], tensors["in/image_shapes_hw"]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@torch.inference_mode()
def test_batch_norms_fold_into_convolutions():
    """No norm and no value of one is left, and the convolutions find what both found."""
    model, tensors = load_golden("codino_resnet_tiny")
    maps = model.backbone(tensors["in/images"])
    assert model.fold_batch_norms() is model
    assert not any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())
    assert not any("running" in name for name in model.state_dict())
    for got, expected in zip(model.backbone(tensors["in/images"]), maps, strict=True):
        assert relative_error(got, expected) < 1e-6


class TestGolden:
    @torch.inference_mode()
    def test_every_stage(self, golden):
        model, tensors = golden
        stages = model.stages(*inputs(tensors))
        assert {f"out/{name}" for name in stages} == {name for name in tensors if name.startswith("out/")}
        errors = {name: relative_error(stage, tensors[f"out/{name}"]) for name, stage in stages.items()}
        for name, error in errors.items():
            assert stages[name].shape == tensors[f"out/{name}"].shape, name
            assert error < 1e-5, f"{name}: {error:.1e}"
        for name in ("topk_scores", "class_logits"):
            assert (stages[name] - tensors[f"out/{name}"]).abs().max() < 1e-4
        assert (stages["det_boxes"] - tensors["out/det_boxes"]).abs().max() < 0.01
        assert (stages["det_scores"] - tensors["out/det_scores"]).abs().max() < 1e-4
        assert torch.equal(stages["det_labels"], tensors["out/det_labels"])

    @torch.inference_mode()
    def test_forward_gives_the_last_stage(self, golden):
        model, tensors = golden
        stages = model.stages(*inputs(tensors))
        for got, name in zip(model(*inputs(tensors)), ("det_boxes", "det_scores", "det_labels"), strict=True):
            assert torch.equal(got, stages[name])

    @torch.inference_mode()
    @pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
    def test_image_shapes_of_any_number_type(self, golden, dtype):
        model, tensors = golden
        images, image_shapes = inputs(tensors)
        for got, expected in zip(
            model(images, image_shapes.to(dtype)), model(images, image_shapes), strict=True
        ):
            assert torch.equal(got, expected)

    @torch.inference_mode()
    def test_an_image_alone_gives_what_it_gives_in_a_batch(self, golden):
        model, tensors = golden
        images, image_shapes = inputs(tensors)
        batch = model(images, image_shapes)
        alone = model(images[:1], image_shapes[:1])
        assert (alone[0][0] - batch[0][0]).abs().max() < 0.01
        assert torch.equal(alone[2][0], batch[2][0])

    def test_too_few_cells(self, golden):
        model, _ = golden
        with pytest.raises(
            ValueError, match=r"images: 16 x 16 pixels give 2[0-9] cells, fewer than the model's"
        ):
            model(torch.zeros(1, 3, 16, 16), torch.tensor([[16, 16]]))

    @pytest.mark.parametrize(
        ("images", "image_shapes", "message"),
        [
            ((3, 64, 64), (1, 2), r"images: expected \[N, 3, H, W\], got \[3, 64, 64\]"),
            ((1, 1, 64, 64), (1, 2), r"images: expected \[N, 3, H, W\], got \[1, 1, 64, 64\]"),
            ((2, 3, 64, 64), (1, 2), r"image_shapes: expected \[N, 2\] with N = 2 .*, got \[1, 2\]"),
            ((1, 3, 64, 64), (2,), r"image_shapes: expected \[N, 2\] with N = 1 .*, got \[2\]"),
            ((1, 3, 64, 64), (1, 3), r"image_shapes: expected \[N, 2\] with N = 1 .*, got \[1, 3\]"),
        ],
    )
    def test_wrong_shapes(self, golden, images, image_shapes, message):
        model, _ = golden
        with pytest.raises(ValueError, match=message):
            model(torch.zeros(images), torch.full(image_shapes, 64))

    def test_gradients_reach_every_parameter(self, golden):
        """Training comes later; nothing on the way may cut it off."""
        model, tensors = golden
        stages = model.stages(*inputs(tensors))
        names = ("topk_scores", "topk_boxes", "class_logits", "boxes_cxcywh")
        model.zero_grad()
        sum(stages[name].square().mean() for name in names).backward()
        without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        model.zero_grad()
        assert not without


class TestExport:
    @torch.inference_mode(False)
    @torch.no_grad()
    def test_strict_export_gives_the_same(self, golden):
        model, tensors = golden
        program = torch.export.export(model, inputs(tensors), strict=True)
        for got, expected in zip(program.module()(*inputs(tensors)), model(*inputs(tensors)), strict=True):
            assert torch.equal(got, expected)
        targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        assert "msda.fused_attention.default" in targets
        slow = ("cumsum", "nonzero", "index_put", "interpolate", "upsample", "copy_", "lift_fresh")
        assert not [target for target in targets if any(word in target for word in slow)]

    @torch.no_grad()
    def test_batch_size_may_stay_open(self):
        model, tensors = load_golden("codino_swin_tiny")
        batch = torch.export.Dim("batch", min=1, max=8)
        program = torch.export.export(
            model, inputs(tensors), dynamic_shapes=({0: batch}, {0: batch}), strict=False
        )
        alone = [value[:1] for value in inputs(tensors)]
        for got, expected in zip(program.module()(*alone), model(*alone), strict=True):
            assert torch.equal(got, expected)


class TestPrecision:
    @pytest.fixture(autouse=True)
    def no_onednn(self):
        # Some virtual machines announce AMX and then stop the process that uses it.
        with torch.backends.mkldnn.flags(enabled=False):
            yield

    @torch.inference_mode()
    @pytest.mark.parametrize("precision, tolerance", [("fp16", 5e-3), ("bf16", 4e-2)])
    @pytest.mark.parametrize("name", MODELS)
    def test_sixteen_bits_are_close(self, name, precision, tolerance):
        model, tensors = load_golden(name)
        exact = model.stages(*inputs(tensors))
        assert model.set_precision(precision) is model
        rounded = model.stages(*inputs(tensors))
        for stage in ("backbone.3", "neck.4", "memory"):
            assert rounded[stage].dtype == model.dtype != torch.float32
            assert relative_error(rounded[stage], exact[stage]) < tolerance, stage
        for stage in ("topk_scores", "topk_boxes", "class_logits", "boxes_cxcywh", "det_boxes", "det_scores"):
            assert rounded[stage].dtype == torch.float32
        # Rounding swaps neighbours in the selection, and queries with them: compare from one selection on.
        images, image_shapes = inputs(tensors)
        level_hw = [tuple(exact[f"neck.{i}"].shape[2:]) for i in range(5)]
        pyramid = pyramid_of(image_shapes, tuple(images.shape[2:]), level_hw)
        memory = exact["memory"].to(model.dtype)
        logits, boxes = model.decoder(memory, exact["topk_boxes"], pyramid, every_layer=False)
        assert relative_error(logits[-1], exact["class_logits"][-1]) < tolerance
        assert relative_error(boxes[-1], exact["boxes_cxcywh"][-1]) < tolerance

    @torch.inference_mode()
    def test_fp32_again_and_fp32_parts(self):
        model, tensors = load_golden("codino_resnet_tiny")
        before = model.stages(*inputs(tensors))["memory"]
        model.set_precision("bf16")
        kept = {name for name, tensor in model.state_dict().items() if tensor.dtype == torch.float32}
        assert {"decoder.class_branches.0.weight", "decoder.box_branches.0.fc3.weight"} <= kept
        assert {"query_selection.class_branch.weight", "backbone.bn1.running_var"} <= kept
        assert not [name for name in kept if "conv" in name or "attn" in name or "norm" in name]
        model.set_precision("fp32")
        assert relative_error(model.stages(*inputs(tensors))["memory"], before) < 4e-2

    def test_unknown(self):
        model, _ = load_golden("codino_resnet_tiny")
        with pytest.raises(ValueError, match="precision: expected one of fp32, fp16, bf16, got 'int8'"):
            model.set_precision("int8")


@pytest.mark.gpu
class TestGpu:
    @torch.inference_mode()
    @pytest.mark.parametrize("name", MODELS)
    def test_golden_in_a_cuda_graph(self, name):
        """A graph can be captured only where nothing waits for the host or copies from it."""
        model, tensors = load_golden(name)
        model.cuda()
        images, image_shapes = (value.cuda() for value in inputs(tensors))
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                model.stages(images, image_shapes)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                stages = model.stages(images, image_shapes)
            graph.replay()
        for stage in ("backbone.3", "neck.4", "memory", "class_logits", "boxes_cxcywh"):
            assert relative_error(stages[stage].cpu(), tensors[f"out/{stage}"]) < 1e-5, stage
        assert (stages["det_boxes"].cpu() - tensors["out/det_boxes"]).abs().max() < 0.01
        assert torch.equal(stages["det_labels"].cpu(), tensors["out/det_labels"])

    @torch.inference_mode()
    @pytest.mark.parametrize("precision, tolerance", [("fp16", 5e-3), ("bf16", 4e-2)])
    @pytest.mark.parametrize("name", MODELS)
    def test_sixteen_bits(self, name, precision, tolerance):
        model, tensors = load_golden(name)
        model.cuda().set_precision(precision)
        stages = model.stages(*(value.cuda() for value in inputs(tensors)))
        for stage in ("backbone.3", "neck.4", "memory"):
            assert relative_error(stages[stage].float().cpu(), tensors[f"out/{stage}"]) < tolerance, stage
        assert stages["det_boxes"].isfinite().all() and stages["det_boxes"].dtype == torch.float32


def pyramid_of(image_shapes, input_hw, level_hw):
    cells = sum(h * w for h, w in level_hw)
    return make_pyramid(image_shapes, torch.tensor(input_hw).float(), torch.tensor(level_hw).float(), cells)


def slow_geometry(image_shapes, input_hw, level_hw, num_feats, temperature):
    """Masks drawn in pixels, shrunk by nearest interpolation, summed up: the definition, in fp32."""
    mask = torch.ones(len(image_shapes), *input_hw)
    for row, (h, w) in enumerate(image_shapes.tolist()):
        mask[row, :h, :w] = 0
    masks = [F.interpolate(mask[None], size=hw)[0].bool() for hw in level_hw]
    ratios, points, positions, boxes = [], [], [], []
    for level, (level_mask, (h, w)) in enumerate(zip(masks, level_hw)):
        inside = ~level_mask
        valid_h, valid_w = inside[:, :, 0].sum(1), inside[:, 0, :].sum(1)
        ratios.append(torch.stack((valid_w / w, valid_h / h), -1))
        y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
        center = torch.stack((x / valid_w[:, None, None], y / valid_h[:, None, None]), -1).flatten(1, 2)
        points.append(center)
        boxes.append(torch.cat((center, torch.full_like(center, 0.05 * 2**level)), -1))
        embeddings = []
        for axis in (1, 2):
            count = inside.float().cumsum(axis)
            count = count / (count.select(axis, -1).unsqueeze(axis) + 1e-6) * 2 * math.pi
            frequency = temperature ** (2 * (torch.arange(num_feats) // 2) / num_feats)
            angle = count[..., None] / frequency
            embeddings.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), -1).flatten(-2))
        positions.append(torch.cat(embeddings, -1).flatten(1, 2))
    padding = torch.cat([level_mask.flatten(1) for level_mask in masks], 1)
    ratios = torch.stack(ratios, 1)
    boxes = torch.cat(boxes, 1)
    usable = ((boxes > 0.01) & (boxes < 0.99)).all(-1) & ~padding
    return padding, ratios, torch.cat(points, 1)[:, :, None] * ratios[:, None], positions, boxes, usable


@st.composite
def layouts(draw):
    """Padded sizes, levels of strides 4..64 (rounded up, as the backbones do) and images inside."""
    height, width = draw(st.integers(5, 700)), draw(st.integers(5, 700))
    level_hw = [(math.ceil(height / s), math.ceil(width / s)) for s in (4, 8, 16, 32, 64)]
    image = st.tuples(st.integers(1, height), st.integers(1, width))
    images = draw(st.lists(image, min_size=1, max_size=3))
    return (height, width), level_hw[draw(st.integers(0, 3)) :], torch.tensor(images)


class TestGeometry:
    @settings(max_examples=150, deadline=None)
    @given(layouts())
    def test_closed_forms_are_those_of_the_mask(self, layout):
        input_hw, level_hw, image_shapes = layout
        pyramid = pyramid_of(image_shapes, input_hw, level_hw)
        padding, ratios, points, positions, boxes, usable = slow_geometry(
            image_shapes, input_hw, level_hw, 8, 20.0
        )
        assert torch.equal(pyramid.padding_mask, padding)
        assert torch.equal(pyramid.valid_ratios, ratios)
        torch.testing.assert_close(pyramid.reference_points, points, rtol=1e-6, atol=1e-6)
        embeds = torch.arange(len(level_hw) * 16.0).reshape(-1, 16) / 8.0
        longest = max(max(hw) for hw in level_hw)
        got = encoder_positions(pyramid, embeds, longest, 20.0, torch.float32)
        expected = [position + embed for position, embed in zip(positions, embeds, strict=True)]
        torch.testing.assert_close(got, torch.cat(expected, 1), rtol=0, atol=2e-5)
        got_boxes, got_usable = proposal_boxes(pyramid)
        torch.testing.assert_close(got_boxes, boxes, rtol=1e-6, atol=1e-6)
        assert torch.equal(got_usable, usable)

    @pytest.mark.parametrize("stride", [4, 7, 8, 32, 64])
    def test_counts_of_every_size(self, stride):
        """All image heights in tensors of many heights: rounding of the step and of the product included."""
        for height in [*range(1, 200), 608, 768, 800, 1152, 1279, 1280, 1333, 1535, 1920, 2047, 2048]:
            cells = math.ceil(height / stride)
            sizes = torch.arange(1, height + 1)
            mask = (torch.arange(height)[None] >= sizes[:, None]).float()  # [sizes, height]
            expected = (F.interpolate(mask[None, :, :, None], size=(cells, 1))[0, :, :, 0] == 0).sum(1)
            shapes = torch.stack((sizes, torch.ones_like(sizes)), 1)
            pyramid = pyramid_of(shapes, (height, 1), [(cells, 1)])
            assert torch.equal(pyramid.valid_sizes[:, 0, 0].long(), expected), height

    def test_shapes_and_starts(self):
        pyramid = pyramid_of(torch.tensor([[30, 20]]), (32, 24), [(8, 6), (4, 3), (2, 2)])
        assert pyramid.spatial_shapes.tolist() == [[8, 6], [4, 3], [2, 2]]
        assert pyramid.level_start_index.tolist() == [0, 48, 60]
        assert pyramid.padding_mask.shape == (1, 64)


class TestSwin:
    @pytest.mark.parametrize("hw", [(4, 4), (8, 12), (9, 7), (3, 5)])
    @pytest.mark.parametrize("windows", [SlicedWindows, GatheredWindows])
    def test_shifted_window_mask(self, windows, hw):
        """Two cells of a window see each other exactly when the cyclic shift kept their distance."""
        size, shift = 4, 2
        mask = windows(torch.zeros(2, *hw, 1), size).mask
        padded = [length + -length % size for length in hw]
        rows, columns = torch.meshgrid(torch.arange(padded[0]), torch.arange(padded[1]), indexing="ij")
        cells = torch.stack((rows, columns), -1)[None]
        sliced = SlicedWindows(cells, size)
        before = sliced.cut(cells, shifted=False)  # position in the rolled map
        after = sliced.cut(cells.roll((-shift, -shift), (1, 2)), shifted=False)  # position in the image
        same = (before[:, :, None] - before[:, None] == after[:, :, None] - after[:, None]).all(-1)
        assert mask.shape == (2 * len(same), 1, size * size, size * size)
        assert torch.equal(mask[:, 0] == 0, same.repeat(2, 1, 1))
        assert set(mask.unique().tolist()) <= {0.0, -100.0}

    @pytest.mark.parametrize("hw", [(4, 4), (8, 12), (9, 7), (3, 5), (1, 30)])
    @pytest.mark.parametrize("size", [4, 5])
    def test_gathered_windows_are_the_sliced_ones(self, size, hw):
        x = torch.randn(3, *hw, 2)
        sliced, gathered = SlicedWindows(x, size), GatheredWindows(x, size)
        assert torch.equal(gathered.mask, sliced.mask)
        for shifted in (False, True):
            windows = sliced.cut(x, shifted)
            assert torch.equal(gathered.cut(x.flatten(0, 2), shifted), windows)
            changed = windows * torch.arange(1.0, 1.0 + len(windows))[:, None, None]
            assert torch.equal(gathered.join(changed, shifted), sliced.join(changed, shifted).flatten(0, 2))

    def test_relative_position_index_is_upstreams(self):
        from codetr.model.backbones.swin import relative_position_index

        _, tensors = load_golden("codino_swin_tiny")
        stored = tensors["param/backbone.stages.0.blocks.0.attn.w_msa.relative_position_index"]
        assert torch.equal(relative_position_index(4), stored)


class TestConfig:
    def write(self, tmp_path: Path, **changes) -> Path:
        data = json.loads((GOLDEN / "codino_swin_tiny.json").read_text())
        data.update(changes)
        path = tmp_path / "model.json"
        path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
        return path

    def test_names(self):
        swin, resnet = codetr.load_config("co_dino_swin_l"), codetr.load_config("co_dino_r50")
        assert (swin.name, resnet.name) == ("co_dino_swin_l", "co_dino_r50")
        assert swin.backbone.window_size == 12 and swin.backbone.out_channels == (192, 384, 768, 1536)
        assert resnet.backbone.out_channels == (256, 512, 1024, 2048)
        assert (swin.resize_scale, resnet.resize_scale) == ((2048, 1280), (1333, 800))
        for config in (swin, resnet):
            assert (config.num_queries, config.num_classes, config.max_per_img) == (900, 80, 300)
            assert (config.nms.method, config.nms.iou_threshold, config.nms.min_score) == ("soft", 0.8, 1e-3)

    def test_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            codetr.load_config("co_dino_r50").num_queries = 1

    def test_omitted_fields_have_upstreams_defaults(self, tmp_path):
        path = tmp_path / "short.json"
        path.write_text('{"backbone": {"type": "ResNet"}, "neck": {"in_channels": [256, 512, 1024, 2048]}}')
        assert dataclasses.replace(codetr.load_config(path), name="co_dino_r50") == codetr.load_config(
            "co_dino_r50"
        )

    @pytest.mark.parametrize(
        "changes, message",
        [
            ({"queries": 3}, r"queries: unknown field"),
            ({"neck": ...}, r"neck: missing"),
            ({"backbone": {"embed_dims": 24}}, r"backbone\.type: missing"),
            (
                {"backbone": {"type": "ViT"}},
                r"backbone\.type: expected one of SwinTransformer, ResNet, got 'ViT'",
            ),
            ({"backbone": {"type": "ResNet", "width": 2}}, r"backbone\.width: unknown field"),
            (
                {"backbone": {"type": "ResNet", "depth": 20}},
                r"backbone\.depth: expected one of \[18, 34, 50, 101, 152\]",
            ),
            ({"num_queries": "900"}, r"num_queries: expected int, got '900'"),
            ({"num_queries": True}, r"num_queries: expected int, got True"),
            ({"num_queries": 0}, r"num_queries: expected a positive integer, got 0"),
            ({"mean": [1, 2]}, r"mean: expected a list of 3 items"),
            ({"mean": [1, 2, "x"]}, r"mean\[2\]: expected float, got 'x'"),
            ({"nms": {"method": "fast"}}, r"nms\.method: expected one of 'soft', 'hard', 'none', got 'fast'"),
            ({"num_levels": 4}, r"neck\.num_outs: expected 4, got 5"),
            ({"num_heads": 7}, r"num_heads: 7 heads do not divide embed_dims 64"),
            ({"embed_dims": 32}, r"neck\.out_channels: expected 32, got 64"),
            (
                {"neck": {"in_channels": [24, 48, 96, 192], "out_channels": 64, "gn_groups": 48}},
                r"neck\.gn_groups: 48 groups do not divide out_channels 64",
            ),
            (
                {
                    "embed_dims": 66,
                    "num_heads": 6,
                    "neck": {"in_channels": [24, 48, 96, 192], "out_channels": 66, "gn_groups": 6},
                    "positional_encoding": {"num_feats": 33},
                },
                r"embed_dims: expected a multiple of 4, got 66",
            ),
        ],
    )
    def test_wrong_files(self, tmp_path, changes, message):
        with pytest.raises(ValueError, match=message) as error:
            codetr.load_config(self.write(tmp_path, **changes))
        assert "model.json" in str(error.value) and "\n" not in str(error.value)

    def test_no_such_model(self, tmp_path):
        with pytest.raises(
            ValueError,
            match="model 'co_dino_vit': expected one of co_dino_demo, co_dino_r50, co_dino_swin_l, ",
        ):
            codetr.load_config("co_dino_vit")
        path = tmp_path / "broken.json"
        path.write_text("{")
        with pytest.raises(ValueError, match=r"broken\.json: not a JSON file"):
            codetr.load_config(path)


def test_importing_the_package_imports_no_torch():
    code = (
        "import sys, codetr, codetr.config, codetr.detector.postprocess, codetr.weights, codetr.files\n"
        "codetr.load_config('co_dino_r50'); codetr.apply_nms\n"
        "assert 'torch' not in sys.modules\n"
        "assert set(codetr.__all__) <= set(dir(codetr))\n"
        "try:\n    codetr.nothing\nexcept AttributeError as error:\n    assert 'nothing' in str(error)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_public_exists():
    for name in codetr.__all__:
        assert getattr(codetr, name) is not None


@pytest.mark.parametrize("shape", [(1, 8, 5, 7), (3, 8, 2, 2), (2, 8, 1, 1)], ids=str)
def test_group_norm_written_out_is_torchs(shape):
    generator = torch.Generator().manual_seed(0)
    norm = GroupNorm(4, shape[1])
    norm.written_out = True
    with torch.no_grad():
        norm.weight.normal_(generator=generator)
        norm.bias.normal_(generator=generator)
    x = torch.randn(shape, generator=generator) * 3 + 1
    expected = F.group_norm(x, 4, norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(norm(x), expected)
    half = norm(x.half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), expected, rtol=4e-3, atol=4e-3)
