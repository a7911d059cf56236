#!/usr/bin/env bash
# Measures how long headless Chromium takes to open a page of `report`: milliseconds until its charts are
# drawn, and the wall time compared with an empty page.
#
#     bench/speed/page.sh /tmp/long/report.html
set -euo pipefail
page=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo '<p>' >"$scratch/empty.html"
opened() { # PAGE
    "${CHROMIUM:-chromium}" --headless --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" --timeout=20000 --dump-dom "file://$1" 2>/dev/null
}
opened "$scratch/empty.html" >/dev/null # creates the profile
for _ in 1 2 3; do
    for file in "$scratch/empty.html" "$page"; do
        start=$(date +%s%N)
        drawn=$(opened "$file" | grep -o 'data-drawn="[0-9]*"' | head -n 1 || true)
        echo "${file##*/}: $((($(date +%s%N) - start) / 1000000)) ms ${drawn:+, charts after $drawn ms}"
    done
done
