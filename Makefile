# make demo   install, then find a policy for the embedded images: under 3 minutes on two cores
# make test   install, then run the tests
# make docs   install, then build the documentation: out/site/index.html

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test docs clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'deepaa needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	$(BIN)/python -m compileall -q src # the tests start many processes
	touch $@

demo: $(VENV)/installed
	$(BIN)/deepaa search --preset demo --device cpu --out out/demo
	@echo "Look at out/demo/preview.png: originals on top, four draws below."

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) out dist
