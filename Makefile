# Two commands do everything on a fresh machine: `make train` and `make test`.
ALGO ?= per_sac
ENV ?= Pendulum-v1
# The first run takes 7,000 steps, which solve the task. -1 takes the number in the hyperparameter file.
STEPS ?= $(if $(filter per_sac/Pendulum-v1,$(ALGO)/$(ENV)),7000,-1)
SEED ?= 0
# The command that `make train` suggests at its end.
NEXT = $(if $(filter per_dqn/CartPole-v1,$(ALGO)/$(ENV)),$(BIN)/sb3-per plot --algo per_dqn --env CartPole-v1 -f runs,make train ALGO=per_dqn ENV=CartPole-v1)
# Processes of `make study`, one core each.
WORKERS ?= 2
PYTHON ?= python3
BIN = .venv/bin
# What `make newest` installs last: names, or addresses of repositories.
NEWEST ?= stable-baselines3 sb3-contrib rl_zoo3 sbx-rl gymnasium torch
# Versions that pip must take.
CONSTRAINTS ?= constraints.txt
# Tests that need no extra but `test`.
CORE = tests/sampling tests/buffers tests/algorithms tests/persistence

.PHONY: train test pytest core newest lint type format doc figures dist benchmark study study-test clean

# Make .venv and install, once, and again after pyproject.toml or constraints.txt has changed. pip is upgraded first: the one that
# comes with Python 3.10 falls back to a source distribution that cannot be built.
.venv/%: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || ($(PYTHON) -m venv .venv && $(BIN)/pip install --quiet --upgrade pip)
	@echo "Installing the extras $*, which takes some minutes and prints nothing ..."
	$(BIN)/pip install --quiet -c $(CONSTRAINTS) -e '.[$*]'
	touch $@

train: .venv/zoo
	$(BIN)/python -m sb3_per.zoo train --algo $(ALGO) --env $(ENV) -n $(STEPS) --seed $(SEED) -f runs --eval-freq 1000 --eval-episodes 10
	$(BIN)/python -m sb3_per.zoo.summary --algo $(ALGO) --env $(ENV) -f runs --next "$(NEXT)"

test: lint type pytest

# One thread per process: the networks of the tests are small, and the processes share the cores.
pytest: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

# The tests of the core. `make core CONSTRAINTS=lowest.txt` in a clone without .venv runs them with the lowest versions.
core: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto $(CORE)

lowest.txt: pyproject.toml
	$(PYTHON) .ci/lowest.py > $@

# The lowest versions of an extra. Its other packages are the newest that go with them.
lowest-%.txt: pyproject.toml constraints.txt
	($(PYTHON) .ci/lowest.py $* && cat constraints.txt) > $@

# Quick tests with what is newest, pre-releases too, whatever pyproject.toml and constraints.txt admit.
newest:
	PIP_PRE=1 $(MAKE) .venv/dev CONSTRAINTS=/dev/null
	$(BIN)/pip install --quiet --pre --upgrade --no-deps $(NEWEST)
	$(BIN)/pip list
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The package, the examples, and every block of Python in README and documentation, with mypy and pyright side by side.
type: .venv/dev
	$(BIN)/pytest -q -n 2 -m slow tests/project/test_types.py

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

doc: .venv/doc
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

# Fill the figures that README and documentation quote, from docs/benchmarks and study/results.
figures: .venv/dev
	$(BIN)/python benchmarks/figures.py

# Build the wheel and the sdist, check their contents and metadata, and use the wheel in an empty environment, as the README does.
dist: .venv/release
	rm -rf dist .venv-package
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/pip install --quiet --upgrade pip
	.venv-package/bin/pip install --quiet -c $(CONSTRAINTS) dist/*.whl
	.venv-package/bin/python .ci/readme.py

# Takes about a quarter of an hour on an idle machine.
benchmark: .venv/benchmark
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/speed.py --out docs/benchmarks

# The study has pinned requirements, so an environment of its own.
.venv-study/done: pyproject.toml constraints.txt study/requirements.txt
	test -x .venv-study/bin/python || ($(PYTHON) -m venv .venv-study && .venv-study/bin/pip install --quiet --upgrade pip)
	.venv-study/bin/pip install --quiet -c constraints.txt -r study/requirements.txt -e .
	touch $@

# Run what study/data lacks, and write tables and figures. All of it takes days of one core. A stopped campaign continues.
study: .venv-study/done
	cd study && ../.venv-study/bin/python -m study.cliffwalk --workers $(WORKERS)
	cd study && ../.venv-study/bin/python -m study --workers $(WORKERS)

study-test: .venv-study/done
	cd study && OMP_NUM_THREADS=1 ../.venv-study/bin/python -m pytest -n auto -m "slow or not slow" tests

clean:
	rm -rf .venv .venv-package .venv-study lowest*.txt build dist *.egg-info docs/_build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
