# Every target makes the environment first; `make sweep` is the shortest way to an answer.
# `make check test` is the gate before a commit, .ci/run the one behind it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST ?= $(BIN)/pytest
JOBS ?= 2
# Slow tests wait for much of their time.
SLOW_JOBS ?= 4
TESTS := --dist loadfile --numprocesses
QUICK := not slow and not network and not browser
SLOW := (slow or network or browser) and not recipes
SEEDS ?= 5
BENCHMARKS := launch dispatch instrumentation probe records cli packing lm feed
INSTALLED := $(VENV)/.installed
# Environments of frameworks, tests/recipes/environments; tensorflow and deepspeed when named.
RECIPES ?= torch common jax keras
# Of their recipes those whose name holds this; all of them.
ONLY ?=

# Packages are compiled as they are first imported, and then not again.
unexport PYTHONDONTWRITEBYTECODE
# Tests share the cores; the threads of small matrices would only wait for each other.
export OPENBLAS_NUM_THREADS := 1

.PHONY: sweep wheel test test-ci test-batch test-all test-faults test-slurm test-recipes golden check bench bench-slurm \
	docs notebooks clean

# Threads of PyTorch in the process of a test would wait for each other, too.
test test-ci test-batch test-all: export OMP_NUM_THREADS := 1

sweep: $(INSTALLED)
	$(BIN)/scalelab sweep experiments/first.yaml

test: $(INSTALLED)
	$(PYTEST) $(TESTS) $(JOBS) -m "$(QUICK)"

# What continuous integration adds to `make check test`.
test-ci: $(INSTALLED)
	$(BIN)/pytest --no-loadscope-reorder $(TESTS) $(SLOW_JOBS) -m "($(SLOW)) and not repetition" \
		--ignore tests/slurm --ignore tests/pbs

test-batch: $(INSTALLED)
	$(BIN)/pytest --no-loadscope-reorder $(TESTS) $(SLOW_JOBS) -m "($(SLOW)) and not repetition" tests/slurm tests/pbs

test-all: $(INSTALLED)
	$(BIN)/coverage erase
	$(MAKE) test PYTEST="$(BIN)/coverage run -m pytest"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/pytest --no-loadscope-reorder $(TESTS) $(SLOW_JOBS) -m "$(SLOW)"

test-faults: $(INSTALLED)
	SCALELAB_FAULT_SEEDS=$(SEEDS) $(BIN)/pytest tests/faults

# Public-style scripts of each framework, swept as they are.
test-recipes: $(RECIPES:%=.recipes/%/.installed)
	SCALELAB_RECIPES="$(RECIPES)" $(BIN)/pytest -m recipes -k "$(ONLY)" tests/recipes

# The sentences of the rooms anew; they are reviewed as a diff.
golden: $(INSTALLED)
	rm -f tests/golden/sentences/*.txt
	SCALELAB_WRITE_GOLDEN=1 $(BIN)/pytest --quiet
	git --no-pager diff --stat tests/golden/sentences

check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Three times in a row: what depends on who comes first shows up.
test-slurm: $(INSTALLED)
	for run in 1 2 3; do $(BIN)/pytest tests/slurm || exit 1; done

bench: $(INSTALLED)
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# As root, with SLURM's daemons installed, like test-slurm.
bench-slurm: $(INSTALLED)
	for name in refusal turnaround; do $(BIN)/python benchmarks/$$name.py || exit 1; done

# The documentation as a site, .site/html: links between pages hold here and there.
docs: $(INSTALLED)
	rm -rf .site && mkdir -p .site/pages
	cp -r README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs analysis experiments benchmarks .site/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The notebooks anew, with the outputs they are shipped with; needs Chrome or Chromium.
notebooks: $(INSTALLED)
	rm -rf runs/from-python  # its plan is shown before it has run
	PLOTLY_RENDERER=svg $(BIN)/jupyter-execute --inplace --timeout 600 \
		--NotebookClient.record_timing=False analysis/*.ipynb
	$(BIN)/ruff format analysis

# A wheel with what it declares to need, and nothing else: it answers a table.
wheel: $(INSTALLED)
	rm -rf .wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir .wheel .
	$(BIN)/python -m venv --without-pip .wheel/venv
	$(BIN)/python tests/support/link_packages.py .wheel/scalelab-*.whl .wheel/venv/lib/python*/site-packages
	$(BIN)/python -m pip --python .wheel/venv install --quiet --disable-pip-version-check --no-compile \
		--no-deps .wheel/scalelab-*.whl
	cd .wheel && venv/bin/scalelab import ../experiments/cpu_or_gpu.csv answered \
		--column final_metric=val_acc
	cd .wheel && venv/bin/scalelab recommend answered --epochs 10 --samples-per-epoch 54305

clean:
	rm -rf .wheel $(VENV) .recipes .site .cache .mypy_cache .pytest_cache .ruff_cache .coverage*

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --upgrade pip  # the pip of Python 3.11 resolves slowly
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--constraint constraints.txt --editable '.[train,dev]'
	touch $@

# What $(VENV) has is seen through a .pth file, and so not installed again.
.recipes/%/.installed: tests/recipes/environments/%.txt tests/recipes/constraints.txt $(INSTALLED)
	$(PYTHON) -m venv --clear --without-pip $(@D)
	packages=$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages); \
	echo "import site; site.addsitedir('$$packages')" \
		> $$(echo $(@D)/lib/python*/site-packages)/of_scalelab.pth
	$(BIN)/python -m pip --python $(@D) install --quiet --disable-pip-version-check --no-compile \
		--constraint constraints.txt --constraint tests/recipes/constraints.txt --requirement $<
	touch $@
