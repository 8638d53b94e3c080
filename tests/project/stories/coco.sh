#!/usr/bin/env bash
# The story of a user who has pictures with annotations: bash tests/project/stories/coco.sh FOLDER
# FOLDER takes the files. A machine without a GPU builds no engine; onnxruntime then runs the ONNX file.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../../.." && pwd)
export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$1"
cd "$1"

# The user's own data, in COCO's layout. A fixed input size is landscape, so portrait pictures stay out.
python - "$repository/tests/scenes" <<'PYTHON'
import json, shutil, sys
from pathlib import Path

scenes, data = Path(sys.argv[1]), Path("data")
content = json.loads((scenes / "annotations/instances_val.json").read_text())
images = [image for image in content["images"] if image["width"] >= image["height"]]
(data / "annotations").mkdir(parents=True)
for split, part in (("train", images[4:]), ("val", images)):
    ids = {image["id"] for image in part}
    objects = [entry for entry in content["annotations"] if entry["image_id"] in ids]
    document = {**content, "images": part, "annotations": objects}
    (data / f"annotations/instances_{split}.json").write_text(json.dumps(document))
    (data / split).mkdir()
    for image in part:
        shutil.copy(scenes / "val" / image["file_name"], data / split)
PYTHON

train=(codetr train --data data --model co_dino_demo --size 320x240 --steps 4 --lr 1e-5 --denoising 10
    --flip 0 --evaluate-every 0 --save-every 1 --out runs/a)
"${train[@]}" &
until compgen -G 'runs/a/state-*.pt' >/dev/null; do
    kill -0 $!
    sleep 0.2
done
kill -KILL $!
wait $! || echo "training was killed"
"${train[@]}" --resume

codetr evaluate --data data --model runs/a --out evaluated/torch
codetr detect data/val/000003.jpg --model runs/a --device cpu
codetr export --model runs/a --out exported
codetr detect data/val/000003.jpg --onnx exported/model.onnx --device cpu --out out/onnx
codetr evaluate --data data --onnx exported/model.onnx --device cpu --out evaluated/onnx
if [[ -f exported/model.engine ]]; then
    codetr evaluate --data data --engine exported/model.engine --out evaluated/engine
fi

python - <<'PYTHON'
import json
from pathlib import Path

precisions = {
    path.parent.name: json.loads(path.read_text())["metrics"]["ap"]
    for path in sorted(Path("evaluated").glob("*/metrics.json"))
}
print("AP", precisions)
expected = precisions["torch"]
assert expected > 0.3
assert all(abs(precision - expected) <= 0.01 for precision in precisions.values())
print("every file is within 0.01 AP of PyTorch")
PYTHON
