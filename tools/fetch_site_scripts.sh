#!/bin/sh
# fetch_site_scripts.sh DIRECTORY: puts the third-party scripts of the documentation site into DIRECTORY.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
"$here/find_npm.sh" pack --silent mermaid@11.12.0 iframe-worker@1.0.4 > /dev/null
tar -xzOf mermaid-11.12.0.tgz package/dist/mermaid.min.js > mermaid.js
tar -xzOf iframe-worker-1.0.4.tgz package/shim/index.js > iframe-worker.js
rm mermaid-11.12.0.tgz iframe-worker-1.0.4.tgz
