# The targets of instructors and TAs: part of the Makefile where this folder is.

.PHONY: class merge regrade synthetic handout grade verify check mutate soak bench stubs release autograder
.PHONY: container faults fuzz
STAFF := grader class dev handout

# $(anonymously) before a command: $$anonymous is the option that ANONYMOUS asks for, and what is neither a yes nor a no is refused.
anonymously = case "$${ANONYMOUS:-no}" in 1|yes|true) anonymous=--anonymous ;; 0|no|false) anonymous= ;; \
    *) echo 'ANONYMOUS is 1, yes or true for a report without names, or 0, no or false' >&2; exit 2 ;; esac;

#:
#: For instructors and TAs
#:
#:   make grade SUBMISSION=reference   grade a folder or a zip; OUT=results.json says where the results go; DEVICE=cuda: on a GPU too
grade:
	@test -n "$$SUBMISSION" || { echo 'say what to grade: make grade SUBMISSION=<folder or zip> [OUT=results.json]' >&2; exit 2; }
	@test -e "$$SUBMISSION" || { printf 'there is no %s\n' "$$SUBMISSION" >&2; exit 2; }
	$(call environment,$(STAFF))
	@$(VENV) -m autograder grade $${OUT:+--out="$$OUT"} $${ISOLATION:+--isolation "$$ISOLATION"} $${DEVICE:+--device "$$DEVICE"} -- "$$SUBMISSION"

#:   make class EXPORT=export.zip OUT=class   grade everybody; run it again to go on; WORKERS=8 ANONYMOUS=1 ISOLATION=process;
#:                                     the bonus too, on a GPU: DEVICE=cuda; on a cluster: CLUSTER=slurm PARTITION=cpu JOBS=20
class:
	@test -n "$$EXPORT" && test -n "$$OUT" || { echo 'say what and where to: make class EXPORT=<zip or folder> OUT=<folder>' >&2; exit 2; }
	$(call environment,$(STAFF))
	@$(anonymously) $(VENV) -m autograder class --out="$$OUT" $${WORKERS:+--workers="$$WORKERS"} $$anonymous \
	    $${DEVICE:+--device="$$DEVICE"} $${CLUSTER:+--cluster="$$CLUSTER"} $${PARTITION:+--partition="$$PARTITION"} $${JOBS:+--jobs="$$JOBS"} \
	    $${ISOLATION:+--isolation "$$ISOLATION"} -- "$$EXPORT"

#:   make merge CPU=class CUDA=class-gpu OUT=both      join a GPU's bonus rows with the CPU's results; touches neither
merge:
	@test -n "$$CPU" && test -n "$$CUDA" && test -n "$$OUT" || { echo 'say which: make merge CPU=<folder> CUDA=<folder> OUT=<folder>' >&2; exit 2; }
	$(call environment,$(STAFF))
	@$(anonymously) $(VENV) -m autograder merge --out="$$OUT" $$anonymous -- "$$CPU" "$$CUDA"

#:   make regrade BEFORE=class AFTER=class2    compare two runs: whose score changed, by how much, and by which row
regrade:
	@test -n "$$BEFORE" && test -n "$$AFTER" || { echo 'say which: make regrade BEFORE=<folder> AFTER=<folder>' >&2; exit 2; }
	$(call environment,$(STAFF))
	@$(VENV) -m autograder regrade -- "$$BEFORE" "$$AFTER"

#:   make synthetic OUT=invented       invent a class to try that on; STUDENTS=200 SEED=0
synthetic:
	@test -n "$$OUT" || { echo 'say where to: make synthetic OUT=<folder> [STUDENTS=200] [SEED=0]' >&2; exit 2; }
	$(call environment,$(STAFF))
	@$(VENV) -m autograder synthetic --out="$$OUT" $${STUDENTS:+--students="$$STUDENTS"} $${SEED:+--seed="$$SEED"}

#:   make verify                       the reference gets every point, the stubs none, and each misconception loses its own;
#:                                     PART=optimizers: only that part's
verify:
	$(call environment,$(STAFF))
	@$(VENV) -m autograder verify $${ISOLATION:+--isolation "$$ISOLATION"} $${PART:+--part "$$PART"} $${DEVICE:+--device "$$DEVICE"}

#:   make check                        lint, types, old and new Pythons, the package's own tests, verify
check:
	$(call environment,$(STAFF))
	$(VENV) -m ruff check .
	$(VENV) -m ruff format --check .
	$(VENV) -m mypy
	@for python in python3.10 python3.11 python3.12 python3.13 python3.14; do \
	    $$python -c '' 2>/dev/null || continue; \
	    echo "byte-compiling with $$python"; \
	    find handout student tests reference autograder -name '*.py' -exec $$python -I -W error::SyntaxWarning -c \
	        'import sys; [compile(open(path, "rb").read(), path, "exec") for path in sys.argv[1:]]' {} + || exit 1; \
	done
	@# verify takes a core for as long as the tests take the other: it says what it found when both are done.
	@verified=$$(mktemp); $(VENV) -m autograder verify >"$$verified" 2>&1 & verify=$$!; \
	trap 'kill $$verify 2>/dev/null; rm -f "$$verified"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	$(VENV) -m pytest autograder/tests; tests=$$?; \
	echo 'waiting for: autograder verify'; wait $$verify; known=$$?; cat "$$verified"; \
	exit $$((tests || known))

#:   make mutate                       each small change of the reference loses a row, or survivors.toml says why: minutes; PART=strides
mutate:
	$(call environment,$(STAFF))
	@$(VENV) -m autograder mutate $${PART:+--part "$$PART"} $${ISOLATION:+--isolation "$$ISOLATION"}

#:   make soak                         known submissions again and again on every core, and no verdict differs: hours; PART=strides TIMES=3
soak:
	$(call environment,$(STAFF))
	@$(VENV) -m autograder soak $${PART:+--part "$$PART"} $${TIMES:+--times "$$TIMES"} $${ISOLATION:+--isolation "$$ISOLATION"}

#:   make container                    the zip as Gradescope runs it: Debian 12 in runc, 0.75 GB, half a core (root; minutes)
container: autograder
	@$(VENV) -m autograder.tests.container

#:   make faults                       everything that a submission can do to the grader, with and without walls (minutes)
faults:
	$(call environment,$(STAFF))
	@$(VENV) -m pytest autograder/tests/test_faults.py autograder/tests/test_leaderboard.py --thorough -q -s

#:   make fuzz                         try the decoder of replies and its pipe, steered by coverage, for ten minutes
fuzz:
	$(call environment,$(STAFF) fuzz)
	@$(VENV) -m autograder.tests.fuzz

#:   make bench                        time and memory of grading, against plain pytest
bench:
	$(call environment,$(STAFF))
	@$(VENV) -m autograder bench

#:   make stubs                        write student/ anew from reference/
stubs:
	$(call environment,$(STAFF))
	@$(VENV) -m autograder stubs

#:   make handout                      build the handout, PDF and web page, in both languages
handout:
	$(call environment,$(STAFF))
	@$(VENV) -m handout.build

#:   make release                      pack what students get; LANGUAGES="en zh" says in which languages the handout is
release: handout
	@$(VENV) -m autograder.release --languages $${LANGUAGES:-en}

#:   make autograder                   pack what Gradescope gets
autograder:
	$(call environment,$(STAFF))
	@$(VENV) -m autograder pack
