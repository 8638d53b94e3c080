# Serves detections over HTTP. The first start builds the engine for the GPU of the machine, into a volume.
#
#   make wheel CUDA_ARCHITECTURES=90 && docker build -t codetr .
FROM nvcr.io/nvidia/tensorrt:24.11-py3

# The image has TensorRT with its Python package, so the extra `tensorrt` would install a second one.
RUN --mount=type=bind,source=dist,target=/dist --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    python3 -m pip install --no-cache-dir --break-system-packages --constraint /constraints.txt \
    "$(echo /dist/*.whl)[onnx,serve]" cuda-python polygraphy

COPY --chmod=755 <<'EOF' /usr/local/bin/serve-engine
#!/bin/sh
set -eu
engine=/var/lib/codetr/$CODETR_EXPORT_MODEL/model.engine
[ -e "$engine" ] || codetr export --out "${engine%/*}"
exec codetr serve --engine "$engine" --host 0.0.0.0
EOF

RUN useradd --create-home --uid 10001 codetr && install -d -o codetr /var/lib/codetr
USER 10001
WORKDIR /home/codetr
VOLUME /var/lib/codetr
# Options of `codetr export`. CODETR_CACHE is the folder of downloaded weights.
ENV CODETR_EXPORT_MODEL=co_dino_demo CODETR_EXPORT_PRECISION=fp16 CODETR_EXPORT_BATCH=1-8 \
    CODETR_CACHE=/var/lib/codetr/weights
EXPOSE 8000
HEALTHCHECK --start-period=30m --interval=10s --timeout=6s \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://localhost:8000/readyz', timeout=5)"]
CMD ["serve-engine"]
