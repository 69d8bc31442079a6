#!/usr/bin/env bash
# Creates a virtual environment and installs Benthic into it, editable, at the pinned versions.
# usage: scripts/install.sh VENV EXTRAS      e.g. scripts/install.sh .venv "[test]"
# PYTHON chooses the interpreter; without it the first of python3, python3.13, 3.12, 3.11 that is new enough.
set -euo pipefail
venv=$1 extras=$2

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then command -v "$candidate"; return; fi
    done
    echo "Benthic needs Python 3.11 or newer; tried: ${PYTHON:-python3 python3.13 python3.12 python3.11}." >&2
    echo "Install one, or name it: make serve PYTHON=/path/to/python3.12" >&2
    return 1
}

create_venv() {
    local python=$1
    "$python" -m venv "$venv" >"$venv.log" 2>&1 && { rm -f "$venv.log"; return; }
    # Debian splits ensurepip into python3-venv; an interpreter that has pip can still fill a bare environment.
    rm -rf "$venv"
    if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip "$venv" >>"$venv.log" 2>&1 \
        && "$python" -m pip --python "$venv/bin/python" install -q pip; then
        rm -f "$venv.log"
        return
    fi
    echo "$python cannot create a virtual environment:" >&2
    cat "$venv.log" >&2
    rm -rf "$venv" "$venv.log"
    echo "On Debian or Ubuntu: apt install python3-venv. Elsewhere: install the venv and ensurepip modules." >&2
    return 1
}

if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    python=$(find_python)
    create_venv "$python"
fi
echo "Installing into $venv; the first time takes a few minutes."
install=("$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt)
# The build tool comes from the constraints too, so the build itself is reproducible.
"${install[@]}" setuptools
"${install[@]}" --no-build-isolation -e ".$extras"
