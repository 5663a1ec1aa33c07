#!/bin/sh
# update_page_scripts.sh: fetches the libraries of the page (toolchain/etkit/inspection/page/scripts) with npm. A package with another
# digest than the one here is an error.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
scripts=$here/../toolchain/etkit/inspection/page/scripts
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# fetch PACKAGE VERSION SHA512 (as npm writes it, in base64)
fetch() {
  "$here/find_npm.sh" pack --silent "$1@$2" > /dev/null
  found=$(openssl dgst -sha512 -binary "$1-$2.tgz" | base64 -w 0)
  [ "$found" = "$3" ] || { echo "$1@$2 has the digest $found, not $3" >&2; exit 1; }
  tar -xzOf "$1-$2.tgz" "package/dist/$1.min.js" > "$scripts/$1.min.js"
}

fetch cytoscape 3.34.4 msY99tMY8iWTg+sIPGfSqDcPNOt4xcj+v/K/7qUFaCUxxlqnMkUYLBjRUzn9W5CU/R2hrmtJa5+UtovrEM2ctg==
fetch cytoscape-dagre 4.0.1 hyNdh8Vp1nwzBcjHnM4c71G81bFhPmQYLXD2HM9AZIvl+8TrMzWEOPW45hF/XOBQiEguPcDQzi6VrXR1XBcXOA==
fetch d3-hierarchy 3.1.3 GRajN5ZcnEwYFWqqdzhG1qJ3+fDg6WWzk47TJg7ePY7yvYAgRfD2r1mUx+wviBOWuCwamCUzjwMSdato43jbGA==
