#!/usr/bin/env bash
# Makes .venv what the lock files say, or does nothing when it already is.
#
#   locks/install.sh [cpu|gpu]
#
# Without an argument the device is the one of an earlier call, else gpu where `nvidia-smi -L` lists one, else cpu.
# .venv/.complete holds a hash of all that went in. It is written last, so an interrupted installation is never taken for a complete one.
# PYTHON names the interpreter for .venv, any Python 3.11 to 3.13. If it has another version than .venv, .venv is built again.
# Without it, .venv keeps its Python. A new .venv takes the first that fits of python3, python3.13, python3.12 and python3.11.
set -euo pipefail
cd "$(dirname "$0")/.."

device=${1:-}
if [ -z "$device" ]; then
    if [ -f .venv/.device ]; then
        device=$(cat .venv/.device)
    elif nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        device=gpu
    else
        device=cpu
    fi
fi
locks=(locks/build.lock locks/base.lock "locks/$device.lock" locks/dev.lock)
if [ ! -f "locks/$device.lock" ]; then
    echo "DEVICE is '$device'; it must be cpu or gpu" >&2
    exit 2
fi
[ "$device" = gpu ] || locks+=(locks/torch-cpu.lock)

wanted=$({ printf '%s\n' "$device" "$PWD"; cat "${locks[@]}" pyproject.toml locks/install.sh locks/top_levels.py; } | sha256sum | cut -d' ' -f1)
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
is_right_python() { [ -x .venv/bin/python ] && { [ -z "${PYTHON:-}" ] || [ "$(version "$PYTHON")" = "$(version .venv/bin/python)" ]; }; }
is_complete() { [ "$(cat .venv/.complete 2>/dev/null)" = "$wanted" ] && is_right_python; }
is_complete && exit 0
# One installation at a time in a checkout; whoever waited looks again. NFSv4 locks only what is open for writing.
exec 9>>locks/install.sh
flock 9
is_complete && exit 0

# --- System packages -------------------------------------------------------------------------------------------------
find_python() { # prints the first supported Python that has the modules named in $1
    local candidate candidates=(python3 python3.13 python3.12 python3.11 /usr/bin/python3)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c "import $1; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}
loads() { "$1" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$2" 2>/dev/null; }

missing_packages() { # Debian's names of what is not there, one a line
    local python
    python=$(find_python "sys, ensurepip, venv")
    if [ -z "$python" ]; then
        python=$(find_python sys)
        echo "python$([ -z "$python" ] && echo 3 || version "$python")-venv"
    fi
    # vLLM's CPU kernels link to libnuma and libstdc++.
    if [ -n "$python" ]; then
        loads "$python" libnuma.so.1 || echo libnuma1
        loads "$python" libstdc++.so.6 || echo libstdc++6
    else
        printf '%s\n' libnuma1 libstdc++6
    fi
    # vLLM's sampler is compiled by torch where it runs, against Python's headers.
    command -v g++ >/dev/null || echo g++
    if [ -z "$python" ]; then
        echo python3-dev
    elif [ ! -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then
        echo "python$(version "$python")-dev"
    fi
}

if [ -n "${PYTHON:-}" ] && [ -z "$(find_python sys)" ]; then
    echo "PYTHON is '$PYTHON'; it must be a Python 3.11, 3.12 or 3.13" >&2
    exit 2
fi
missing=$(missing_packages | tr '\n' ' ')
missing=${missing% }
if [ -n "$missing" ]; then
    sudo=$([ "$(id -u)" = 0 ] || echo sudo)
    command="${sudo:+$sudo }apt-get install -y --no-install-recommends $missing"
    echo "System packages are missing: $missing" >&2
    answer=n
    if ! command -v apt-get >/dev/null; then
        echo "These are Debian's names; install what your system calls them, then call this again." >&2
        exit 1
    elif [ -t 0 ] && [ -t 2 ]; then
        read -r -p "Run '$command' now? [y/N] " answer
    elif [ -z "$sudo" ]; then
        answer=y
    fi
    if [[ $answer != [yY]* ]]; then
        echo "Run:  $command" >&2
        exit 1
    fi
    $sudo apt-get update -qq
    if ! DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes $command >/dev/null; then
        echo "apt-get could not install: $missing" >&2
        echo "If this system's Python is not 3.11, 3.12 or 3.13, install one of these by other means and name it: make PYTHON=/path/to/python ..." >&2
        exit 1
    fi
fi
python=$(find_python "sys, ensurepip, venv")
if [ -z "$python" ]; then
    echo "No Python 3.11, 3.12 or 3.13 with its venv module was found as ${PYTHON:-python3, python3.13, python3.12 or python3.11}." >&2
    echo "Name one: make PYTHON=/path/to/python ..." >&2
    exit 1
fi

# --- Python packages -------------------------------------------------------------------------------------------------
log=.venv/install.log
# The two builds of vLLM share their folder: never put one over the other.
if ! is_right_python || [ "$(cat .venv/.device 2>/dev/null || echo "$device")" != "$device" ]; then
    "$python" -m venv --clear .venv
fi
rm -f .venv/.complete
echo "$device" >.venv/.device
: >$log

total=$(cat "${locks[@]}" | grep -c '==')
site_packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# pip writes INSTALLER after a package's files and commands. A package without it was interrupted, and pip would not install it again.
find "$site_packages" -maxdepth 1 -name '*.dist-info' ! -exec test -f '{}/INSTALLER' ';' -exec rm -r {} +
installed() { find "$site_packages" -maxdepth 1 -name '*.dist-info' | wc -l; }
fetched() { sed -nE 's/^(Collecting|Processing|Requirement already satisfied:) ([^ ]+).*/\2/p' $log | sort -u | wc -l; }

jobs=()
in_background() {
    "$@" >>$log 2>&1 &
    jobs+=($!)
}
with_progress() { # waits for the background jobs, and says how far the installation has come
    local every=20 end='\n' failed=
    [ -t 1 ] && every=1 end=' \r'
    trap 'kill "${jobs[@]}" 2>/dev/null; exit 130' INT TERM
    local shown=$SECONDS
    while kill -0 "${jobs[@]}" 2>/dev/null; do
        sleep 0.5
        if ((SECONDS - shown >= every)); then
            shown=$SECONDS
            printf "  %d of %d packages fetched, %d installed, %d s$end" "$(fetched)" "$total" "$(installed)" "$((SECONDS - started))"
        fi
    done
    trap - INT TERM
    [ -t 1 ] && printf '%80s\r' ''
    for job in "${jobs[@]}"; do wait "$job" || failed=1; done
    jobs=()
    if [ -n "$failed" ]; then
        tail -n 20 $log >&2
        echo "The installation failed; the whole log is $log. Calling this again goes on from here." >&2
        exit 1
    fi
}

echo "Setting up .venv for $device, once (5 GB for cpu, more for gpu)"
started=$SECONDS
pip=(.venv/bin/python -m pip --disable-pip-version-check install --no-deps --no-build-isolation --no-input --no-compile)
by_digest=("${pip[@]}" --require-hashes)
# What has no wheel, and this project itself, is built with the locked setuptools.
in_background "${by_digest[@]}" -r locks/build.lock
with_progress
# pip uses one core and waits for each file, so several install at once. No package is in two of these lists.
sed '/^-r base.lock/d' "locks/$device.lock" locks/dev.lock >.venv/further.lock
in_background "${by_digest[@]}" -r locks/base.lock
in_background "${by_digest[@]}" -r .venv/further.lock
[ "$device" = gpu ] || in_background "${pip[@]}" -r locks/torch-cpu.lock
with_progress
in_background "${pip[@]}" -e .
with_progress
in_background .venv/bin/python locks/top_levels.py
in_background .venv/bin/python -m tasks.provision.empty_databases
# Bytecode, on all cores. Some packages carry files that are no valid Python.
in_background eval '.venv/bin/python -m compileall -qq -j 0 "$site_packages" || true'
with_progress

# PyPI carries one torch for each platform; on x86-64 Linux that is the CUDA build.
check='
import sys
try:
    import torch
except (ImportError, OSError) as error:
    sys.exit(f"import torch: {error}")
cuda = torch.version.cuda
if sys.argv[1] == "cpu" and cuda:
    sys.exit(f"torch {torch.__version__} is built for CUDA {cuda}")
if sys.argv[1] == "gpu" and not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} (CUDA {cuda}) sees no GPU: look at the driver with nvidia-smi, or choose DEVICE=cpu")
'
if ! reason=$(.venv/bin/python -c "$check" "$device" 2>&1); then
    echo "$reason" | tail -n 3 >&2
    if [ "$device" = cpu ]; then
        .venv/bin/python -m pip --disable-pip-version-check uninstall -q -y torch 2>/dev/null
        cat >&2 <<'MESSAGE'
The CPU build of torch is needed. Set PIP_EXTRA_INDEX_URL to the index of CPU wheels that https://pytorch.org/get-started/locally/
shows (choose Linux, Pip, CPU) and call this again; the other packages stay.
MESSAGE
    fi
    exit 1
fi

echo "$wanted" >.venv/.complete.new
mv .venv/.complete.new .venv/.complete
echo "Set up in $((SECONDS - started)) s"
