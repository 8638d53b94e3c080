"""The golden models against upstream's stored outputs, in every stage, export, precision and a CUDA graph."""

from __future__ import annotations

import pytest
import torch

import codetr
from codetr.model.geometry import make_pyramid
from tests.golden_models import MODELS, load_golden


@pytest.fixture(scope="module", params=MODELS)
def golden(request) -> tuple[codetr.CoDino, dict[str, torch.Tensor]]:
    return load_golden(request.param)


def inputs(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return tensors["in/images"], tensors["in/image_shapes_hw"]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


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
        """Image shapes may have any number type."""
        model, tensors = golden
        images, image_shapes = inputs(tensors)
        stages = model.stages(images, image_shapes)
        for dtype in (image_shapes.dtype, torch.int32, torch.float32):
            found = model(images, image_shapes.to(dtype))
            for got, name in zip(found, ("det_boxes", "det_scores", "det_labels"), strict=True):
                assert torch.equal(got, stages[name])

    @torch.inference_mode()
    def test_an_image_alone_gives_what_it_gives_in_a_batch(self, golden):
        model, tensors = golden
        images, image_shapes = inputs(tensors)
        batch = model(images, image_shapes)
        alone = model(images[:1], image_shapes[:1])
        assert (alone[0][0] - batch[0][0]).abs().max() < 0.01
        assert torch.equal(alone[2][0], batch[2][0])

    @pytest.mark.parametrize(
        ("images", "image_shapes", "message"),
        [
            ((3, 64, 64), (1, 2), r"images: expected \[N, 3, H, W\], got \[3, 64, 64\]"),
            ((1, 1, 64, 64), (1, 2), r"images: expected \[N, 3, H, W\], got \[1, 1, 64, 64\]"),
            ((2, 3, 64, 64), (1, 2), r"image_shapes: expected \[N, 2\] with N = 2 .*, got \[1, 2\]"),
            ((1, 3, 64, 64), (2,), r"image_shapes: expected \[N, 2\] with N = 1 .*, got \[2\]"),
            ((1, 3, 64, 64), (1, 3), r"image_shapes: expected \[N, 2\] with N = 1 .*, got \[1, 3\]"),
            ((1, 3, 16, 16), (1, 2), r"images: 16 x 16 pixels give 2[0-9] cells, fewer than the model's"),
        ],
    )
    def test_wrong_shapes(self, golden, images, image_shapes, message):
        model, _ = golden
        with pytest.raises(ValueError, match=message):
            model(torch.zeros(images), torch.full(image_shapes, images[-1]))

    def test_gradients_reach_every_parameter(self, golden):
        model, tensors = golden
        stages = model.stages(*inputs(tensors))
        names = ("topk_scores", "topk_boxes", "class_logits", "boxes_cxcywh")
        model.zero_grad()
        sum(stages[name].square().mean() for name in names).backward()
        without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        model.zero_grad()
        assert not without


@pytest.mark.slow
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
        level_hw = torch.tensor([exact[f"neck.{i}"].shape[2:] for i in range(5)]).float()
        input_hw = torch.tensor(images.shape[2:]).float()
        pyramid = make_pyramid(image_shapes, input_hw, level_hw, exact["memory"].shape[1])
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
