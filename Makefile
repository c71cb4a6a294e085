# The front door. Every command a person types is a target here; the work is done in scripts/patchset/.

PYTHON ?= python3
BASE ?=
LINE ?=
TESTS ?=
TODOS ?= 10
UPSTREAM ?=
REF ?=
JSON ?=

TOOLS := build/tools/bin
PATCHSET = env -u PYTHONHOME -u PYTHONSTARTUP -u PYTHONDONTWRITEBYTECODE PYTHONNOUSERSITE=1 PYTHONPATH=scripts \
	$(TOOLS)/python -m patchset

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  BASE=<release> picks a served release, BASE=all every one; the newest served one when left out."
	@echo "  PYTHON=<python> picks the Python that the tools are made with (3.10 or newer; make test and prove: 3.11)."

.PHONY: tools
tools: ## make the environment of the tools (every other command does it when needed)
	@command -v $(PYTHON) >/dev/null || { echo "tools: $(PYTHON) is not installed" >&2; \
		echo "  next:  install Python 3.11 or newer, or say which: make PYTHON=/path/to/python3 ..." >&2; exit 2; }
	@env -u PYTHONHOME -u PYTHONPATH -u PYTHONSTARTUP $(PYTHON) scripts/bootstrap.py

.PHONY: apply
apply: tools ## the base checkout with the patches applied; UPSTREAM=<folder or url> [REF=]: a clone of it instead
	@$(PATCHSET) apply --base "$(BASE)" --upstream "$(UPSTREAM)" --ref "$(REF)"

.PHONY: test
test: tools ## upstream's gates, the behaviour tests, the tests of the tooling; TESTS="<ids>": those alone, with and without
	@$(PATCHSET) test --base "$(BASE)" --tests "$(TESTS)"

.PHONY: prove
prove: tools ## every patch: its tests red before it and green after it, ruff and pyright clean
	@$(PATCHSET) prove --base "$(BASE)"

.PHONY: wheel
wheel: tools ## the patched core as a wheel in dist/: built twice, compared, installed and exercised
	@$(PATCHSET) wheel --base "$(BASE)"

.PHONY: siblings
siblings: tools ## suites of packages that build on core, unpatched and patched
	@$(PATCHSET) siblings --base "$(BASE)"

.PHONY: pythons
pythons: tools ## the wheel and the behaviour tests on every Python from 3.10 to 3.13 that is there
	@$(PATCHSET) pythons --base "$(BASE)"

.PHONY: dependents
dependents: tools ## released packages that build on core, installed next to the wheel by pip and uv
	@$(PATCHSET) dependents --base "$(BASE)"

.PHONY: demo
demo: tools ## the ten-todo task, stock and patched, call by call (TODOS=10 STREAM=1 HISTORY_LAST=1)
	@$(PATCHSET) demo --base "$(BASE)" --todos "$(TODOS)" $(if $(STREAM),--stream) $(if $(HISTORY_LAST),--history-last)

.PHONY: export
export: tools ## write the commits of a checkout back as patches
	@$(PATCHSET) export --base "$(BASE)"

.PHONY: lint
lint: tools ## form of the patches, marks of the behaviour tests, numbers of the wheels
	@$(PATCHSET) lint

.PHONY: try
try: tools ## hold a line's patches against any release: what applies, is there, conflicts with what (BASE= [LINE=])
	@$(PATCHSET) try --base "$(BASE)" --line "$(LINE)"

.PHONY: status
status: tools ## patches of every line with size and upstream status; JSON=1 as JSON
	@$(PATCHSET) status $(if $(JSON),--json)

.PHONY: lock
lock: tools ## resolve requirements/*.in anew and write the locks
	@$(PATCHSET) lock --base "$(BASE)"

.PHONY: clean
clean: ## remove build/ and dist/, unless somebody's work would be lost with them
	@test ! -f build/tools/stamp || $(PATCHSET) clean
	rm -rf build dist
