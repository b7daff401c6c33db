# Targets: demo, test, test-all, test-frameworks, kernels, lint, fix, docs, clean. `make` alone says what each of them does.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: help demo test test-all test-frameworks kernels lint fix docs clean

help:
	@echo "make demo      find a policy for the embedded images: under 3 minutes on two cores"
	@echo "make test      run the quick tests: under 5 minutes on two cores"
	@echo "make test-all  run all tests: also kills, exports, browsers, documentation"
	@echo "make test-frameworks  install other libraries, gigabytes of them, and run what needs them: a missing one fails"
	@echo "make kernels   compile the C kernels again, in place: after a change of kernels.c"
	@echo "make lint      check style, types and duplicated code; change nothing"
	@echo "make fix       correct what ruff can correct, and format"
	@echo "make docs      build the documentation: out/site/index.html"
	@echo "make clean     remove the environment and what was built"
	@echo "Each installs what it needs into $(VENV) first."

# installing compiles the C kernels where there is a compiler, and goes on without
$(VENV)/installed: pyproject.toml hatch_build.py build_kernels.py src/deepaa/ops/kernels.c
	@echo "Installing deepaa into $(VENV): a few minutes and several gigabytes, nearly all of it PyTorch"
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'deepaa needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m compileall -q src # the tests start many processes
	touch $@

# installed-test, installed-dev, installed-docs: the extras of pyproject.toml
$(VENV)/installed-%: pyproject.toml | $(VENV)/installed
	@echo "Installing the extra '$*' into $(VENV)"
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

demo: $(VENV)/installed
	$(BIN)/deepaa search --preset demo --device cpu --out out/demo
	@echo "Look at out/demo/preview.png: originals on top, four draws below."

test: $(VENV)/installed-test
	$(PYTEST) -m "not slow"

test-all: $(VENV)/installed-test
	$(PYTEST)

# of the other libraries there is one list, which .ci/run uses too
$(VENV)/frameworks: tests/frameworks/install.sh | $(VENV)/installed
	@echo "Installing other libraries into $(VENV)"
	sh tests/frameworks/install.sh $(BIN)/python
	touch $@

test-frameworks: $(VENV)/frameworks
	DEEPAA_ALL_LIBRARIES=1 $(PYTEST) tests/frameworks tests/export tests/data tests/repo/test_notebooks.py tests/repo/test_docs.py::test_python_runs

kernels:
	$(PYTHON) build_kernels.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pylint src # duplicated code alone: no ten equal lines

fix: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open out/site/index.html"

clean:
	rm -rf $(VENV) out dist src/deepaa/ops/libdeepaa.so*
