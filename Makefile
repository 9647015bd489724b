# Two commands do everything: `make table` reruns the SafetyPointGoal2 table, `make test` checks everything.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TYPED := build/typed
TOOLS := build/site-tools
MODERN := .venv-modern
CORE := .venv-core
SUPPLY := .venv-supply
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
TORCH := $(shell grep '^torch==' requirements.txt)
SOURCES := $(shell find ccfs certificates controllers envs -name '*.py')
# The parts that touch Gymnasium, Stable-Baselines3, sb3-contrib and onnxruntime, run again on their newest releases.
MODERN_TESTS := $(addprefix tests/,runtime/test_wrapper.py runtime/test_wrapper_stages.py runtime/test_environment.py runtime/test_remade.py runtime/test_program.py runtime/test_selector.py \
	runs/test_events.py runs/test_record.py runs/test_trace.py runs/test_trial.py test_policy.py \
	attacks/test_attack.py attacks/test_rules.py attacks/test_ledger.py \
	certificates/test_schedule.py certificates/test_trajectory.py certificates/test_validated.py \
	runtime/test_flat.py files/test_pickled.py controllers/test_intake.py \
	$(addprefix controllers/adapters/test_,callables.py predict.py programs.py rebuilt.py rl_zoo.py saved.py sb3.py supported.py))

# The parts that need no extra.
CORE_TESTS := $(addprefix tests/,certificates files runtime attacks/test_ledger.py attacks/test_rules.py \
	runs/test_counting.py runs/test_events.py runs/test_executors.py runs/test_preflight.py runs/test_record.py \
	runs/test_run.py runs/test_run_interrupted.py runs/test_store.py runs/test_trace.py runs/test_trial.py \
	results/test_totals.py results/test_strata.py test_policy.py audit envs/toys test_doctests.py \
	$(addprefix controllers/navigator/test_,fields.py kalman.py robot.py route.py search.py settings.py))

# One process per core. The tests of a file stay together, because they share what they set up.
PARALLEL := -n auto --dist loadfile

TABLE := runs/goal2$(if $(SEEDS),-first-$(SEEDS))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo table tables site notebooks test quick lint format types modern core unit bench train lock dist supply clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY) ## create .venv with everything: torch, Safety-Gymnasium, OmniSafe, Stable-Baselines3

# Every file is checked against its hash. The list is complete, hence --no-deps. torch comes apart: people use the build
# for their processor or graphics card, whose hash is not that of another one, and it brings its own companions.
$(READY): supply/full-$(VERSION).txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-deps --require-hashes -r $<
	$(BIN)/python -m pip install -q $(TORCH)
	$(BIN)/python -m pip uninstall -q -y ccfs 2> /dev/null # the distribution had this name before it was `ccfs-rl`
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: $(READY) ## wrap, certify and attack a policy on a small environment; writes runs/demo/report.html
	$(BIN)/ccfs demo -o runs/demo

# `ccfs study run` exits with 1 when a claim is not certified; that is a result, and the table shows it.
table: $(READY) ## rerun the SafetyPointGoal2 table beside the paper's (SEEDS=32: a quick look); resumable
	$(BIN)/ccfs study run goal2 -o $(TABLE) $(if $(SEEDS),--seeds $(SEEDS)) || test $$? -eq 1
	$(BIN)/python experiments/goal2/stock.py $(TABLE) 12

tables: $(READY) ## write the tables of docs/ and the shipped schemas anew from the models
	$(BIN)/python docs/tables.py

$(TOOLS)/.ready: $(READY) supply/site.txt
	@rm -rf $(TOOLS)
	$(BIN)/python -m pip install -q --no-deps --require-hashes --target $(TOOLS) -r supply/site.txt
	@touch $@

site: $(TOOLS)/.ready $(TYPED)/.ready ## build the documentation in build/site, and refuse dead links and other hosts
	PYTHONPATH=$(TOOLS) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	$(BIN)/python docs/check_site.py build/site

notebooks: $(TOOLS)/.ready ## run the tutorials again and store what they print and draw
	PYTHONPATH=$(TOOLS) $(BIN)/python docs/notebooks.py

test: lint types modern unit ## lint, type-check and run all tests

quick: lint ## lint and the fast tests, in less than a minute
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow"

lint: $(READY) ## ruff: rules and form
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## write every file in the one form
	$(BIN)/ruff format .

# mypy cannot follow the folder mapping of an editable install, so it checks an installed copy.
$(TYPED)/.ready: $(READY) $(SOURCES)
	@rm -rf $(TYPED) build/lib build/bdist.*
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation --target $(TYPED) .
	@touch $@

types: $(TYPED)/.ready ## mypy --strict on the installed package
	MYPYPATH=$(TYPED) $(BIN)/mypy --strict -p ccfs

$(MODERN)/.ready: supply/modern.txt pyproject.toml
	$(PYTHON) -m venv $(MODERN)
	$(MODERN)/bin/python -m pip install -q --no-deps --require-hashes -r $<
	$(MODERN)/bin/python -m pip install -q $(TORCH)
	$(MODERN)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

modern: $(MODERN)/.ready ## the tests of wrapper and adapters on the newest Gymnasium and Stable-Baselines3
	$(MODERN)/bin/python -m pytest -q --durations=0 --durations-min=5 $(MODERN_TESTS)

# A stale build folder would be installed too. The tests start elsewhere, because `ccfs` here would shadow the installed one.
core: ## the package alone, without torch and MuJoCo, and its tests (PYTHON=python3.13; 3.10 to 3.13)
	@rm -rf build/lib build/bdist.*
	$(PYTHON) -m venv --clear $(CORE)
	$(CORE)/bin/python -m pip install -q --require-hashes -r supply/core.txt
	$(CORE)/bin/python -m pip install -q --no-deps --no-build-isolation .
	cd $(CORE) && bin/pytest -q -c ../pyproject.toml -m "not extras" $(addprefix ../,$(CORE_TESTS))

unit: $(READY) ## pytest alone
	$(BIN)/python -m pytest -q $(PARALLEL)

bench: $(READY) ## speed as ratios, contenders alternating in one run
	$(BIN)/python benchmarks/bench_binomial.py
	$(BIN)/python benchmarks/bench_images.py
	$(BIN)/python benchmarks/bench_envs.py
	$(BIN)/python benchmarks/bench_runtime.py

train: $(READY) ## train the shipped controllers to the plan's last milestone (interrupt and repeat at will)
	OPENBLAS_NUM_THREADS=1 nice -n 15 $(BIN)/ccfs train --plan experiments/training/plan.toml

$(SUPPLY)/.ready: supply/tools.txt
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install -q --require-hashes -r $<
	@touch $@

# They call their tools by name.
lock dist supply: export PATH := $(abspath $(SUPPLY)/bin):$(PATH)

lock: $(SUPPLY)/.ready ## write the locked requirements anew, with hashes, after a pin has changed (needs a network)
	$(SUPPLY)/bin/python supply/run.py lock

dist: $(SUPPLY)/.ready ## build wheel and sdist twice and compare their bytes; they are in dist/
	$(SUPPLY)/bin/python supply/run.py dist

supply: $(SUPPLY)/.ready $(READY) ## SBOM, licences and known vulnerabilities of what is installed
	$(SUPPLY)/bin/python supply/run.py check

clean: ## remove the environment and everything built
	rm -rf $(VENV) $(MODERN) $(CORE) $(SUPPLY) build dist *.egg-info
