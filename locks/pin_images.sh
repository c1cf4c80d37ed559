#!/bin/sh
# Pulls the images of locks/images.mk and writes their present digests into it. Call it by: make pin-images
set -eu
file=$(dirname "$0")/images.mk
pinned=$(mktemp)
while IFS= read -r line; do
    case $line in
    *' ?= '*)
        image=${line#* \?= }
        tag=${image%@*}
        docker pull --quiet "$tag" >/dev/null
        digest=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$tag" | sed -n 's/.*@//p' | head -n 1)
        [ -n "$digest" ] || { echo "$tag has no digest: it is not from a registry" >&2; exit 1; }
        echo "${line%% *} ?= $tag@$digest"
        ;;
    *) echo "$line" ;;
    esac
done <"$file" >"$pinned"
cat "$pinned" >"$file"
rm "$pinned"
