# make demo   install, then preview a policy on the embedded images
# make test   install, then run the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'deepaa needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@

demo: $(VENV)/installed
	mkdir -p out
	$(BIN)/deepaa show deepta --top 3
	$(BIN)/deepaa preview deepta --out out/preview.png
	@echo "Look at out/preview.png: originals on top, four draws below."

test: $(VENV)/installed
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) out dist
