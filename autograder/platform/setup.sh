#!/usr/bin/env bash
# Gradescope runs this once, as root, while it builds the image: it makes .venv beside this file, closes what students may not
# read, and grades the reference, so that a broken image fails here and not on the night of the deadline.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The one outside host that is named here: PyTorch's own index of wheels without CUDA. From the ordinary index, pip on Linux takes
# several GB of CUDA libraries that nothing on this platform can use. Set it to nothing to use plain pip.
TORCH_CPU_INDEX=${TORCH_CPU_INDEX-https://download.pytorch.org/whl/cpu}

say() { printf 'setup: %s\n' "$*"; }
trap 'say "FAILED in line $LINENO: $BASH_COMMAND. This image cannot grade."' ERR

# The system's python3 stays as it is: the platform's own harness runs on it.
if ! /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null; then
    say "installing python3-venv"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null
fi

# torch is fetched first and by itself, with a pip of its own: where it comes from is decided here, and pip then finds it by name.
fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT
/usr/bin/python3 -I -m venv "$fetched/venv"
fetch() {
    "$fetched/venv/bin/python" -I -m pip --disable-pip-version-check download --quiet --no-deps \
        --constraint constraints.txt --dest "$fetched/wheels" "$@" torch
}
if fetch --no-index 2>/dev/null; then
    say "a wheel of torch is at hand: taking it with plain pip and the pin"
elif [ -n "$TORCH_CPU_INDEX" ] && fetch --retries 1 --timeout 20 --index-url "$TORCH_CPU_INDEX"; then
    say "taking torch without CUDA, from $TORCH_CPU_INDEX"
    export PIP_FIND_LINKS="$fetched/wheels${PIP_FIND_LINKS:+ $PIP_FIND_LINKS}" # the pin torch==X is met by X+cpu first
else
    say "${TORCH_CPU_INDEX:-no index of wheels without CUDA} cannot be reached: taking torch with plain pip and the pin, several GB more"
fi

PYTHON=/usr/bin/python3 /usr/bin/python3 -I tests/environment.py grader

# Students' code runs as users of its own: they read .venv, and nothing of ours.
chmod -R a+rX .venv
chmod a+x . ..
chmod -R go-rwx reference autograder

say "grading the reference and the stubs"
.venv/bin/python -m autograder verify --quick
say "done"
