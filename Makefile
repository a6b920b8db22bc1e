# Every target sets up what it needs: Python 3.11 or newer, make and the package index are enough.
# `make help` lists them. A second run reuses the environments and starts at once.

# Images of containers often set it. Then each process that a test starts, and each run of the tests, compiles everything.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PROTO_VENV := .venv-proto
FLOORS_VENV := .venv-floors
DOCS_VENV := .venv-docs
PYTHON_IN := $(VENV)/bin/python

# Each example is a package of its own, installed beside kdp so that its tests and the demo can use it.
EXAMPLES := $(wildcard examples/*/pyproject.toml)
EXAMPLE_PACKAGES := $(patsubst %/pyproject.toml,-e ./%,$(EXAMPLES))

# What mypy reads; pyright has its own list in pyproject.toml.
TYPED := src testkit tests scripts $(wildcard examples demo benchmarks)
SPACE := $(subst ,, )

# Processes that share the tests: more than there are processors, since most tests wait; eight at most, since they share
# the kernel's 128 inotify instances. 0 runs the tests in one process, which a debugger needs.
JOBS ?= $(shell n=$$((3 * $$(nproc))); echo $$((n < 8 ? n : 8)))
# The versions of CPython that kdp supports.
VERSIONS ?= 3.11 3.12 3.13 3.14
# A plugin and a driver on the simulated kubelet, which `make quick` has beside the unit tests.
SMOKE := tests/integration/deviceplugin/test_registration.py tests/integration/deviceplugin/test_allocation.py tests/integration/dra/test_readiness.py
# More for pytest: make test ARGS="-k socket"
ARGS ?=
# What `make floors` runs.
TESTS ?= tests/unit tests/integration
# What `make node-tools` compiles and unpacks. Nothing: everything; gate: what `make test-node ARGS=--gate` needs.
TOOLS ?=
GATE_TOOLS := devmgr-1.37 devmgr-1.36 devmgr-1.34 kubelet kube-apiserver kube-controller-manager kube-scheduler kubectl etcd \
  cdi-validate runtime cni containerd-2

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-pages docs verify nightly test-packaging test-slow test-long chaos pythons bench node-tools test-node hardware-tools test-hardware test-gpu browser-tools test-browser simulation peers faults night reference pictures dashboard dashboard-picture lint workflows format types layers structure build proto floors clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.ready ## run a device plugin on devices of this machine, through a kubelet that restarts
	@$(PYTHON_IN) -m demo

quick: $(VENV)/.ready ## run the tests of the inner loop, in less than half a minute: unit tests that start no process, a first plugin
	@$(PYTHON_IN) -m pytest -n $$(nproc) --dist worksteal -m "not (slow or repository or thorough or drawn)" tests/unit $(SMOKE) $(ARGS)

test: $(VENV)/.ready ## run the tests
	@$(PYTHON_IN) -m pytest -n $(JOBS) --dist worksteal -m "not slow and not pages" $(ARGS)

test-pages: $(VENV)/.ready ## run the commands of the documentation's pages, and compare what they print
	@$(PYTHON_IN) -m pytest -n $(JOBS) --dist worksteal -m pages $(ARGS)

docs: $(DOCS_VENV)/.ready ## build the documentation site into docs/_build; open docs/_build/index.html
	@rm -rf docs/_build
	@$(DOCS_VENV)/bin/python -m sphinx --builder html --nitpicky --fail-on-warning --keep-going --quiet --conf-dir docs \
	  --doctree-dir docs/_build/.doctrees . docs/_build

verify: ## run what .ci/run leaves out, as root, in an hour and more (needs Go): all Pythons, real kubelets, guests, chaos
	@.ci/verify

nightly: ## run what verify runs, whole where verify runs a third, and an hour of chaos: three hours
	@.ci/verify nightly

test-packaging: $(VENV)/.ready $(PROTO_VENV)/.ready ## build what is published, install it into empty environments, and generate kdp.proto again
	@$(PYTHON_IN) -m pytest tests/packaging -n $(JOBS) $(ARGS)

test-slow: $(VENV)/.ready ## run what the tests leave out: mutants of the cores, all drawn inputs, processes that die at each step
	@KDP_TEST_EFFORT=1 $(PYTHON_IN) -m pytest -n $(JOBS) --dist worksteal -m "slow or drawn" $(ARGS)

test-long: $(VENV)/.ready ## draw ten times the lives of test-slow, others in each run: devices that change their names while pods hold them
	@KDP_TEST_EFFORT=10 $(PYTHON_IN) -m pytest -s -m drawn tests/unit/supervision/test_holdings_properties.py $(ARGS)

chaos: $(VENV)/.ready ## play a plugin and a DRA driver at random, half an hour each; ARGS="--seconds 60 --seed 7"
	@$(PYTHON_IN) -m tests.chaos --seconds 1800 $(ARGS)
	@$(PYTHON_IN) -m tests.chaos.dra --seconds 1800 $(ARGS)

pythons: $(VENV)/.ready ## run the unit and integration tests with each other CPython that can be had; VERSIONS="3.13" with these
	@sh scripts/pythons.sh "$(VERSIONS)" -e ".[cli,kube,metrics,testing]" -e ./testkit $(EXAMPLE_PACKAGES) --group test -- \
	  -q -n $(JOBS) --dist worksteal $(ARGS)

node-tools: ## compile the real kubelet and its kin for the tests of a node (needs Go); TOOLS="kubelet runtime" these only
	@sh tests/node/build.sh $(if $(filter gate,$(TOOLS)),$(GATE_TOOLS),$(TOOLS))
	@sh tests/node/packages.sh $(if $(filter gate,$(TOOLS)),$(GATE_TOOLS),$(TOOLS))

test-node: $(VENV)/.ready ## run the tests of a node: real device managers, a real kubelet, a real cluster
	@$(PYTHON_IN) -m pytest tests/node -n 4 --durations=10 $(ARGS)

test-gpu: $(VENV)/.ready ## run the tests of a real NVIDIA GPU; skipped with the reason where there is none
	@$(PYTHON_IN) -m pytest examples/nvidia_gpu/gpu -s $(ARGS)

hardware-tools: ## unpack QEMU and a kernel for the tests on hardware, and compile its FPGA drivers (needs gcc)
	@sh tests/hardware/packages.sh

test-hardware: $(VENV)/.ready ## run the tests on hardware: guests with a kernel and devices of their own
	@sh tests/hardware/packages.sh || [ -s tests/hardware/bin/.unanswered ]
	@$(PYTHON_IN) -m compileall -q src testkit tests examples # a guest, which may not write here, takes twenty times as long to do it
	@$(PYTHON_IN) -m pytest tests/hardware --durations=10 $(ARGS)

browser-tools: ## unpack a browser for the tests in a browser
	@sh tests/browser/packages.sh

test-browser: $(VENV)/.ready docs ## run the tests in a browser: the status page and the documentation in Chromium; prepares all that itself
	@sh tests/browser/packages.sh || [ -s tests/browser/bin/.unanswered ]
	@$(PYTHON_IN) -m pytest tests/browser -n 2 --durations=5 $(ARGS)

simulation: $(VENV)/.ready ## write docs/explanation/simulation.md from the comparison with the real device managers
	@rows=$$(mktemp -d) && SIMULATION_PAGE_ROWS=$$rows $(PYTHON_IN) -m pytest -q -n $(JOBS) tests/node/test_differential.py \
	  tests/node/test_broken_rules.py; status=$$?; $(PYTHON_IN) -m tests.node.table $$rows; rm -rf $$rows; exit $$status

peers: $(VENV)/.ready ## judge plugins by others with the conformance kit, and write docs/explanation/peers.md (needs Go)
	@sh tests/node/build.sh peer-reference peer-sample peer-rdma
	@$(PYTHON_IN) -m tests.node.peers $(ARGS)

faults: $(VENV)/.ready ## write docs/reference/faults.md from what the tests of the faults see
	@rows=$$(mktemp -d) && FAULTS_PAGE_ROWS=$$rows $(PYTHON_IN) -m pytest -q -n $(JOBS) --ignore tests/integration/faults/test_page.py \
	  tests/integration/faults \
	  && PYTHONPATH=tests $(PYTHON_IN) -m integration.faults.catalogue $$rows; status=$$?; rm -rf $$rows; exit $$status

night: $(VENV)/.ready ## write docs/explanation/night.md from what fails in a real cluster, and what each source says of it
	@rows=$$(mktemp -d) && NIGHT_ROWS=$$rows $(PYTHON_IN) -m pytest -q -n 2 tests/node/test_night.py \
	  && $(PYTHON_IN) -m tests.node.night_page $$rows; status=$$?; rm -rf $$rows; exit $$status

reference: $(VENV)/.ready ## write docs/reference/python/, cli.md, and doctor.md, the rooms and layers in architecture.md, and the checks in kubelet.md
	@$(PYTHON_IN) scripts/reference.py

pictures: $(VENV)/.ready ## draw docs/pictures, the pictures of README and docs
	@$(PYTHON_IN) scripts/diagrams.py

dashboard: $(VENV)/.ready ## write deploy/grafana/kdp.json, the dashboard of the metrics, and what charts have of it and of the alerts
	@$(PYTHON_IN) scripts/dashboard.py

dashboard-picture: $(VENV)/.ready ## draw docs/how-to/dashboard.svg from a real Prometheus's data (needs `make node-tools`)
	@DASHBOARD_PICTURE=docs/how-to/dashboard.svg $(PYTHON_IN) -m pytest -q -n 0 tests/node/test_prometheus.py

bench: $(VENV)/.ready ## measure kdp beside a plugin without it, in a quarter of an hour; AGAINST=REV: beside a commit; ARGS=--quick in one minute
	@$(PYTHON_IN) -m benchmarks $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

lint: $(VENV)/.ready ## check style, formatting, sentences, circles of files, and references between pages and source
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PYTHON_IN) scripts/pages.py
	@$(PYTHON_IN) scripts/sentences.py
	@$(PYTHON_IN) scripts/reference.py --check
	@$(PYTHON_IN) scripts/diagrams.py --check
	@$(PYTHON_IN) scripts/dashboard.py --check
	@$(PYTHON_IN) scripts/structure.py --check

workflows: $(VENV)/.ready ## check .github/workflows (needs Go)
	@go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	@$(VENV)/bin/zizmor --quiet --offline .github/workflows

format: $(VENV)/.ready ## repair what can be repaired of that
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

types: $(VENV)/.ready ## check the types with mypy and pyright, also of the Python on the pages
	@MYPYPATH=$(subst $(SPACE),:,$(wildcard examples/*/src)) $(VENV)/bin/mypy $(TYPED)
	@$(VENV)/bin/pyright --pythonpath $(PYTHON_IN)
	@$(PYTHON_IN) scripts/block_types.py

layers: $(VENV)/.ready ## check who imports whom
	@$(VENV)/bin/lint-imports --no-logo

structure: $(VENV)/.ready ## draw who imports whom into build/structure.svg, and count; ROOM=dra one room's inside
	@$(PYTHON_IN) scripts/structure.py $(if $(ROOM),--room $(ROOM)) $(ARGS)

build: $(VENV)/.ready ## build the sdists and wheels of all distributions into dist/
	@rm -rf dist
	@for each in . testkit $(patsubst %/pyproject.toml,%,$(wildcard examples/nvidia_gpu/pyproject.toml examples/fpga/pyproject.toml examples/rdma/pyproject.toml)); do \
	  $(PYTHON_IN) -m build --outdir dist $$each || exit; done

proto: $(PROTO_VENV)/.ready ## generate the code of kdp.proto again
	@$(PROTO_VENV)/bin/python scripts/proto.py

floors: $(FLOORS_VENV)/.ready ## run the tests with the lowest versions that kdp declares; TESTS=tests/unit these only
	@# anyio before 4.16 leaves a connection to the garbage collector that is cancelled in the moment in which it is made.
	@$(FLOORS_VENV)/bin/python -m pytest -n $(JOBS) -m "not repository and not slow" -p no:cacheprovider \
	  -W "ignore:unclosed transport:ResourceWarning" -W "ignore:unclosed <socket:ResourceWarning" $(TESTS) $(ARGS)

clean: ## remove what was built, and the environments
	@rm -rf dist build docs/_build .venv .venv-* .pythons .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@rm -f .coverage .coverage.*
	@find src testkit tests scripts examples demo benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/.ready: pyproject.toml testkit/pyproject.toml $(EXAMPLES)
	@sh scripts/environment.sh $(VENV) -e ".[cli,kube,metrics,testing]" -e ./testkit $(EXAMPLE_PACKAGES) --group dev
	@touch $@

$(PROTO_VENV)/.ready: pyproject.toml
	@sh scripts/environment.sh $(PROTO_VENV) --group proto
	@touch $@

$(DOCS_VENV)/.ready: pyproject.toml
	@sh scripts/environment.sh $(DOCS_VENV) --group docs
	@touch $@

$(FLOORS_VENV)/.ready: pyproject.toml testkit/pyproject.toml $(EXAMPLES)
	@python=$$(sh scripts/python.sh) && "$$python" scripts/floors.py > $(FLOORS_VENV).txt
	@sh scripts/environment.sh $(FLOORS_VENV) -c $(FLOORS_VENV).txt -e ".[cli,kube,metrics,testing]" -e ./testkit $(EXAMPLE_PACKAGES) --group test
	@touch $@
