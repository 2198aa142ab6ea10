# Two targets do everything on a fresh clone: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where the main job keeps its data and its checkpoints.
RUNS := runs
DATA := $(RUNS)/digits
TRAINED := $(RUNS)/resnet20

.PHONY: run test test-all lint clean

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@# setuptools warns of every editable installation.
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --editable '.[test]'
	touch $@

# Prepare the digits, train on two devices, evaluate on held-out images.
run: $(VENV)/installed
	rm -rf $(TRAINED)
	$(BIN)/python -m kbench prepare --data_name=digits --output_dir=$(DATA)
	$(BIN)/python -m kbench --model=resnet20 --data_dir=$(DATA) \
	    --variable_update=replicated --device=cpu --num_gpus=2 \
	    --batch_size=32 --num_epochs=12 --display_every=50 \
	    --optimizer=momentum --learning_rate=0.05 \
	    --learning_rate_schedule=cosine --weight_decay=0.0001 \
	    --train_dir=$(TRAINED)
	$(BIN)/python -m kbench --eval --train_dir=$(TRAINED) --device=cpu

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Two processes: most of the time goes into tracing, which is one thread.
test: lint
	$(BIN)/python -m pytest -n 2

# Every model where make test takes one of its kind.
test-all: lint
	$(BIN)/python -m pytest -n 2 -m ""

clean:
	rm -rf $(VENV) $(RUNS) build *.egg-info
