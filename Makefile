# make demo: detects objects in a picture.   make test: runs the tests.
# Both set up .venv first, on any machine that has Python 3.10 or newer and a C++ compiler.
#
#   PYTHON=3.12             another Python for .venv
#   CUDA_ARCHITECTURES=90   instead of the local GPU's (or 75 to 120)
#   TENSORRT_ROOT=/opt/tensorrt   where TensorRT's include/ and lib/ are, for the plugin

VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null || echo $(VENV)/uv/bin/uv)
PYTHON ?= $(shell python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
CUDA_ARCHITECTURES ?=
IN_VENV := VIRTUAL_ENV=$(VENV) PATH="$(CURDIR)/$(BIN):$$PATH"
PYTEST_FLAGS ?= -n 2 --dist worksteal
CPP_FILES = $(shell git ls-files '*.h' '*.cuh' '*.cu' '*.cpp')

.PHONY: demo test build docs lint format clean
.DEFAULT_GOAL := demo

demo: $(VENV)/built
	$(BIN)/codetr detect assets/scene.jpg --out out

# Two workers on few cores: threads that wait must not spin where the other worker could run, and who has
# nothing left takes over what the other has not begun.
test: $(VENV)/built
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest $(PYTEST_FLAGS)

build: $(VENV)/built

# What the shared objects are made from; Python files need no rebuild.
SOURCES := CMakeLists.txt pyproject.toml $(wildcard cmake/* */CMakeLists.txt kernels/include/msda/* kernels/src/* */csrc/* */csrc/*/*)

$(VENV)/built: $(VENV)/packages $(SOURCES)
	@echo "building the operators and, where TensorRT is found, the plugin and the C++ program"
	@$(IN_VENV) $(UV) pip install --no-build-isolation --no-deps -v -e . \
	  $(if $(CUDA_ARCHITECTURES),-C cmake.define.MSDA_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)") \
	  >$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	@grep -ohE '(msda|TensorRT plugin|codetr_detect): .*' $(VENV)/build.log || true
	@touch $@

$(VENV)/packages: pyproject.toml constraints.txt | $(VENV)/uv-ready
	@echo "installing the packages of constraints.txt into $(VENV) (5 GB, most of it Torch with CUDA)"
	@$(UV) venv -q --allow-existing --python $(PYTHON) $(VENV)
	@$(IN_VENV) $(UV) pip install -q -c constraints.txt scikit-build-core cmake ninja \
	  -r pyproject.toml --extra nvcc --extra dev
	@touch $@

# uv where the machine has it; else its own copy, through pip.
$(VENV)/uv-ready:
	@mkdir -p $(VENV)
	@command -v uv >/dev/null || { echo "uv is missing: installing it into $(VENV)/uv"; \
	  python3 -m venv $(VENV)/uv && \
	  $(VENV)/uv/bin/python -m pip install -q --disable-pip-version-check uv; }
	@touch $@

# The site in build/docs; fails for a broken link, or a table that differs from benchmarks/results.
docs: $(VENV)/built
	@$(IN_VENV) $(UV) pip install -q -c constraints.txt -r pyproject.toml --extra docs
	$(BIN)/python tools/docs/tables.py --check
	$(BIN)/python tools/docs/commands.py --check
	$(BIN)/python tools/docs/links.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

lint: $(VENV)/packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)

format: $(VENV)/packages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

clean:
	rm -rf $(VENV) build out
