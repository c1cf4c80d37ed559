#!/usr/bin/env bash
# Sees to it that no test is skipped for want of a Debian package: SciWorld needs a Java, WebArena a browser.
#
# As root it installs what is missing. Otherwise it says in one line what will be skipped and which command installs it.
# With CI=true it fails instead: a green run must not hide tests that were not run.
set -euo pipefail

packages=()
worlds=()
if ! command -v java >/dev/null; then
    packages+=(default-jre-headless)
    worlds+=(SciWorld)
fi
# The browsers that environments/webarena/browser.py looks for.
if ! command -v "${WEBARENA_CHROMIUM:-chromium-headless-shell}" >/dev/null && ! command -v chromium chromium-browser >/dev/null; then
    packages+=(chromium-headless-shell libatomic1) # to the second one Playwright's driver links
    worlds+=(WebArena)
fi
[ ${#packages[@]} -eq 0 ] && exit 0

install="apt-get install -y --no-install-recommends ${packages[*]}"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing ${packages[*]} for the tests of $(printf '%s and ' "${worlds[@]}" | sed 's/ and $//')"
    export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
    if apt-get update -qq >/dev/null && $install >/dev/null; then
        exit 0
    fi
fi
sudo=$([ "$(id -u)" = 0 ] || echo 'sudo ')
said="The tests of $(printf '%s and ' "${worlds[@]}" | sed 's/ and $//') will be skipped; to run them too: $sudo$install"
if [ "${CI:-}" = true ]; then
    echo "CI: ${said/will be skipped/would be skipped}" >&2
    exit 1
fi
echo "$said"
