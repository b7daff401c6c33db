#!/bin/sh
# Installs what the tests of other libraries, the notebooks and the pages use: install.sh .venv/bin/python
set -eu
python=$1
install() { "$python" -m pip install --quiet --no-compile "$@"; }

install --editable ".[test,report,bench,tensorboard,parquet,hf]" \
    lightning transformers accelerate keras webdataset nbformat nbclient ipykernel
# Ultralytics and DALI without what they do not need here: an OpenCV for desktops, decoders on GPUs
install polars psutil requests astunparse gast libcst makefun nvtx six
install --no-deps ultralytics ultralytics-thop
install --no-deps nvidia-dali-cuda130 "nvidia-nvimgcodec-cu13<0.10" || echo "no DALI for this machine"
