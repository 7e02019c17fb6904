#!/usr/bin/env bash
# Gradescope runs this once, as root, while it builds the image: it makes .venv beside this file, closes what students may not
# read, and grades the reference, so that a broken image fails here and not on the night of the deadline.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The one outside host that is named here: PyTorch's own index of wheels without CUDA. From the ordinary index, pip on Linux takes
# several GB of CUDA libraries that nothing on this platform can use. Set it to nothing to use plain pip.
TORCH_CPU_INDEX=${TORCH_CPU_INDEX-https://download.pytorch.org/whl/cpu}

say() { printf 'setup: %s\n' "$*"; }

# The system's python3 stays as it is: the platform's own harness runs on it.
if ! /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null; then
    say "installing python3-venv"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
fi

if [ -n "${PIP_FIND_LINKS:-}" ]; then
    say "using the wheels at hand in $PIP_FIND_LINKS"
elif [ -n "$TORCH_CPU_INDEX" ] && /usr/bin/python3 - "$TORCH_CPU_INDEX" <<'PY'
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=20).close()
except OSError as error:
    sys.exit(f"setup: {sys.argv[1]} cannot be reached ({error})")
PY
then
    export PIP_EXTRA_INDEX_URL=$TORCH_CPU_INDEX # the pin torch==X is then met by X+cpu first
else
    say "taking torch with plain pip: several GB more on Linux"
fi

PYTHON=/usr/bin/python3 /usr/bin/python3 -I tests/environment.py grader

# Students' code runs as users of its own: they read .venv, and nothing of ours.
chmod -R a+rX .venv
chmod a+x . ..
chmod -R go-rwx reference autograder

say "grading the reference"
.venv/bin/python -m autograder verify --quick
say "done"
