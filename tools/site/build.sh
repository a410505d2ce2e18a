#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Builds a site of all pages and the reference of all plugins and roles: .cache/site/html/index.html.
# It fails on a broken link, a page that is not listed, or invalid documentation. It downloads nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"
tools/setup.sh docs
here=tools/site work=.cache/site source=.cache/site/source

# Built from scratch, so that links to removed pages fail. The pages keep their relative paths, so that links between them work.
rm -rf "$work"
mkdir -p "$source/reference"
chmod go-w "$source/reference" # antsibull-docs wants it
git ls-files -z --cached --others --exclude-standard -- '*.md' 'docs/*' schemas LICENSE |
    xargs -0 cp --parents -t "$source"
cp "$here/index.rst" "$source"

antsibull-docs --config-file "$here/antsibull-docs.cfg" collection --use-current --fail-on-error --squash-hierarchy \
    --dest-dir "$source/reference" convoy.upgrade >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
sphinx-build --quiet --jobs auto --nitpicky --fail-on-warning --keep-going -b html -c "$here" -d "$work/doctrees" "$source" "$work/html"
printf 'site: %s pages, from %s/%s/html/index.html on\n' "$(find "$work/html" -name '*.html' | wc -l)" "$PWD" "$work"
