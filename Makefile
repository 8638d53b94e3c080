# make demo: detects objects in a picture.   make test: runs the tests.   make docs: builds the documentation.
# make wheel: builds a wheel for other machines.
# Each sets up .venv first, on any machine that has Python 3.10 or newer and a C++ compiler. A machine without a GPU
# builds for the CPU, unless CUDA_ARCHITECTURES is given.
#
#   PYTHON=3.12             another Python for .venv
#   CUDA_ARCHITECTURES=90   compile CUDA kernels for these, such as "80;90" or all; default: those of the local GPUs,
#                           and all for a wheel
#   TENSORRT_ROOT=/opt/tensorrt   folder of TensorRT's include/ and lib/, for the plugin

VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null || echo $(VENV)/uv/bin/uv)
PYTHON ?= $(shell python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
CUDA_ARCHITECTURES ?=
WITH_CUDA := $(or $(CUDA_ARCHITECTURES),$(shell nvidia-smi -L 2>/dev/null))
IN_VENV := VIRTUAL_ENV=$(VENV) PATH="$(CURDIR)/$(BIN):$$PATH"
INSTALL := $(IN_VENV) $(UV) pip install -q -c constraints.txt
PYTEST_FLAGS ?= -n 2 --dist worksteal
# Workers on few cores: a thread of one must not wait, or spin, where another worker could run.
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest $(PYTEST_FLAGS)
CPP_FILES = $(shell git ls-files '*.h' '*.cuh' '*.cu' '*.cpp')
WHEEL_ARCHITECTURES := $(or $(CUDA_ARCHITECTURES),all)
BUILT := $(VENV)/built-$(if $(WITH_CUDA),cuda-$(subst ;,-,$(CUDA_ARCHITECTURES)),cpu)

.PHONY: demo test test-all build wheel docs lint format clean
.DEFAULT_GOAL := demo

demo: $(BUILT)
	$(BIN)/codetr detect assets/scene.jpg --out out

test: $(BUILT) $(VENV)/dev-packages
	$(PYTEST) -m "not slow"

test-all: $(BUILT) $(VENV)/dev-packages
	$(PYTEST)

build: $(BUILT)

# The shared objects depend on these. Python files need no rebuild.
SOURCES := CMakeLists.txt pyproject.toml $(wildcard cmake/* */CMakeLists.txt examples/cpp/* kernels/include/msda/* kernels/src/* kernels/src/sm90/* */csrc/*)

$(BUILT): $(VENV)/packages $(if $(WITH_CUDA),$(VENV)/nvcc) $(SOURCES)
	@echo "building the operators$(if $(WITH_CUDA), with CUDA; and the plugin and the C++ program if TensorRT is found,, for the CPU)"
	@$(IN_VENV) $(UV) pip install --no-build-isolation --no-deps -v -e . \
	  $(if $(CUDA_ARCHITECTURES),-C cmake.define.MSDA_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)") \
	  >$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	@grep -ohE '(msda|TensorRT plugin|codetr_detect): .*' $(VENV)/build.log || true
	@rm -f $(VENV)/built-*
	@touch $@

$(VENV)/packages: pyproject.toml constraints.txt | $(VENV)/uv-ready
	@echo "installing the packages of constraints.txt into $(VENV) (5 GB, most of it Torch with CUDA)"
	@$(UV) venv -q --seed --allow-existing --python $(PYTHON) $(VENV)
	@$(INSTALL) scikit-build-core cmake ninja -r pyproject.toml
	@touch $@

$(VENV)/nvcc: $(VENV)/packages
	@$(INSTALL) -r pyproject.toml --extra nvcc
	@touch $@

$(VENV)/dev-packages: $(VENV)/packages
	@$(INSTALL) -r pyproject.toml --extra dev
	@touch $@

# The machine's uv, else a copy in .venv.
$(VENV)/uv-ready:
	@mkdir -p $(VENV)
	@command -v uv >/dev/null || { echo "uv is missing: installing it into $(VENV)/uv"; \
	  python3 -m venv $(VENV)/uv && \
	  $(VENV)/uv/bin/python -m pip install -q --disable-pip-version-check uv; }
	@touch $@

# dist/*.whl has both libraries and serves every Python. Its tag names the oldest glibc that it runs with, which is
# the builder's. Torch's libraries come from the user's Torch. The kernels of all architectures have a build folder of
# their own.
wheel: $(VENV)/packages $(VENV)/nvcc $(VENV)/dev-packages
	@echo "building a wheel for CUDA architectures $(WHEEL_ARCHITECTURES)"
	@rm -rf build/wheel dist/codetr_tensorrt-*.whl
	@($(IN_VENV) $(UV) build --wheel --no-build-isolation --python $(BIN)/python --out-dir build/wheel \
	  -C cmake.define.MSDA_CUDA_ARCHITECTURES="$(WHEEL_ARCHITECTURES)" \
	  -C build.targets="msda_torch;msda_trt_plugin" -C install.components=packages \
	  $(if $(CUDA_ARCHITECTURES),,-C build-dir=build/all) && \
	  $(IN_VENV) $(BIN)/auditwheel repair --exclude 'libtorch*.so' --wheel-dir dist build/wheel/*.whl) \
	  >$(VENV)/wheel.log 2>&1 || { cat $(VENV)/wheel.log; exit 1; }
	@$(BIN)/python tools/wheel_contents.py dist/*.whl

# The site in build/docs. A broken link, or a table that differs from benchmarks/results, fails.
docs: $(BUILT) $(VENV)/dev-packages
	@$(INSTALL) -r pyproject.toml --extra docs
	$(BIN)/python tools/docs/tables.py --check
	$(BIN)/python tools/docs/commands.py --check
	$(BIN)/python tools/docs/links.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

lint: $(VENV)/dev-packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema -q --builtin-schema vendor.compose-spec compose.yaml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/release.yml

format: $(VENV)/dev-packages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

clean:
	rm -rf $(VENV) build out
