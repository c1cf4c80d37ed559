#!/bin/sh
# Installs the packages of locks/images/NAME from base.lock, by digest: locks/image.sh NAME
# The Dockerfile uses it, since an image needs only a part of base.lock.
set -eu
cd "$(dirname "$0")"
lock=$(mktemp)
awk 'NR == FNR { if ($1 != "#") for (i = 1; i <= NF; i++) wanted[$i]; next }
     /^[^ ]/ { split($1, pin, "=="); name = tolower(pin[1]); gsub(/[-_.]+/, "-", name); keep = (name in wanted) }
     keep' "images/$1" base.lock >"$lock"
pip install --no-deps --require-hashes -r build.lock
pip install --no-deps --require-hashes --no-build-isolation -r "$lock"
rm "$lock"
