# Everything runs from this folder, in .venv, which is made on first use. `make` alone says what there is.
# All paths are relative: make cannot handle spaces in names, and the folders above may have some.

.PHONY: help test watch figures submission
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

ifeq ($(OS),Windows_NT)
VENV := .venv/Scripts/python.exe
else
VENV := .venv/bin/python
endif

# $(call environment,EXTRAS) makes .venv, or brings it up to date. If nothing is to be done, .venv's own Python says so in 30 ms;
# else any other does the work, or the one that PYTHON names.
environment = @$(VENV) -I -S tests/environment.py --check $(1) 2>/dev/null || "$${PYTHON:-python3}" -I tests/environment.py $(1)

# Values reach commands through the shell's variables and never as text of a command, and make itself does not expand them (a file
# called $(shell ...) would run), so that any character may be in them.
VALUES := PART SUBMISSION OUT ISOLATION LANGUAGES EXPORT WORKERS ANONYMOUS DEVICE CLUSTER PARTITION JOBS CPU CUDA BEFORE AFTER STUDENTS SEED TIMES
$(foreach name,$(VALUES),$(if $(filter command line,$(origin $(name))),$(eval override export $(name) := $$(value $(name)))))

# The lines that begin with "#:" are the help.
help:
	@sed -n 's/^#: \{0,1\}//p' $(MAKEFILE_LIST)

#: For students (without make: the command in brackets)
#:
#:   make test                         run the public tests, and see what to do next  [python3 -m tests]
#:   make test PART=optimizers         the same for one part                          [python3 -m tests --part optimizers]
test:
	$(call environment)
	@$(VENV) -m tests $${PART:+--part "$$PART"}

#:   make watch                        run a part's tests again when it is saved      [python3 -m tests.watch]
watch:
	$(call environment)
	@$(VENV) -m tests.watch $${PART:+--part "$$PART"}

#:   make figures                      draw what your functions say                   [python3 -m tests.figures]
figures:
	$(call environment,figures)
	@$(VENV) -m tests.figures

#:   make submission                   pack what is handed in                         [python3 -m tests.submission]
submission:
	$(call environment)
	@$(VENV) -m tests.submission

-include autograder/staff.mk
