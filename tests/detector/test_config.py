"""Configurations: names, defaults and wrong files."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

import codetr
from tests.golden_models import GOLDEN


def test_names():
    swin, resnet = codetr.load_config("co_dino_swin_l"), codetr.load_config("co_dino_r50")
    assert (swin.name, resnet.name) == ("co_dino_swin_l", "co_dino_r50")
    assert swin.backbone.window_size == 12 and swin.backbone.out_channels == (192, 384, 768, 1536)
    assert resnet.backbone.out_channels == (256, 512, 1024, 2048)
    assert (swin.resize_scale, resnet.resize_scale) == ((2048, 1280), (1333, 800))
    for config in (swin, resnet):
        assert (config.num_queries, config.num_classes, config.max_per_img) == (900, 80, 300)
        assert (config.nms.method, config.nms.iou_threshold, config.nms.min_score) == ("soft", 0.8, 1e-3)


def test_omitted_fields_have_upstreams_defaults(tmp_path):
    path = tmp_path / "short.json"
    path.write_text('{"backbone": {"type": "ResNet"}, "neck": {"in_channels": [256, 512, 1024, 2048]}}')
    short = dataclasses.replace(codetr.load_config(path), name="co_dino_r50")
    assert short == codetr.load_config("co_dino_r50")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": 3}, r"queries: "),
        ({"neck": ...}, r"neck: Field required"),
        ({"backbone": {"embed_dims": 24}}, r"backbone: .* 'type'"),
        ({"backbone": {"type": "ViT"}}, r"backbone: .*'ViT'.*'SwinTransformer', 'ResNet'"),
        ({"backbone": {"type": "ResNet", "width": 2}}, r"backbone\.width: "),
        ({"backbone": {"type": "ResNet", "depth": 20}}, r"backbone\.depth: expected 18, .* or 152, got 20"),
        (
            {"backbone": {"type": "SwinTransformer", "drop_path_rate": 1.0}},
            r"backbone\.drop_path_rate: expected at least 0 and less than 1, got 1\.0",
        ),
        ({"num_queries": "900"}, r"num_queries: expected a valid integer, got '900'"),
        ({"num_queries": 0}, r"num_queries: expected greater than 0, got 0"),
        ({"mean": [1, 2]}, r"mean\.2: Field required"),
        ({"mean": [0, 0, math.nan]}, r"mean\.2: expected a finite number, got nan"),
        ({"std": [0, 1, 1]}, r"std\.0: expected greater than 0, got 0"),
        ({"positional_encoding": {"temperature": 0}}, r"g\.temperature: expected greater than 0, got 0"),
        ({"nms": {"iou_threshold": 80}}, r"nms\.iou_threshold: expected less than or equal to 1, got 80"),
        ({"nms": {"sigma": 0}}, r"nms\.sigma: expected greater than 0, got 0"),
        ({"num_heads": 7}, r"num_heads: expected a divisor of embed_dims 64, got 7"),
        (
            {"neck": {"in_channels": [24, 48, 96, 192], "out_channels": 64, "gn_groups": 7}},
            r"neck\.gn_groups: expected a divisor of embed_dims 64, got 7",
        ),
        ({"nms": {"method": "fast"}}, r"nms\.method: expected 'soft', 'hard' or 'none', got 'fast'"),
        ({"num_levels": 4}, r"neck\.num_outs: expected 4, got 5"),
        ({"embed_dims": 32}, r"neck\.out_channels: expected 32, got 64"),
        (
            {"num_classes": 1, "max_per_img": 200, "num_queries": 100},
            r"max_per_img: expected at most 100",
        ),
    ],
)
def test_wrong_files(tmp_path, changes, message):
    fields = json.loads((GOLDEN / "codino_swin_tiny.json").read_text()) | changes
    path = tmp_path / "model.json"
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not ...}))
    with pytest.raises(ValueError, match=message) as error:
        codetr.load_config(path)
    assert "model.json" in str(error.value) and "\n" not in str(error.value)


def test_no_such_model(tmp_path):
    expected = "model 'co_dino_vit': expected one of co_dino_demo, co_dino_r50, co_dino_swin_l, "
    with pytest.raises(ValueError, match=expected):
        codetr.load_config("co_dino_vit")
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json: not a JSON file"):
        codetr.load_config(path)
