#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The real LiveKit worker on loopback (worker.py), in an environment of its own: the gateway is for tests only.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
home=build/e2e
[ -x "$home/bin/python" ] || "$python" -m venv "$home"
"$home/bin/python" -m pip --disable-pip-version-check --quiet install \
  -c constraints.txt livekit-gateway==0.1.2 aiohttp -e '.[livekit]'
exec "$home/bin/python" tests/e2e/worker.py "$@"
