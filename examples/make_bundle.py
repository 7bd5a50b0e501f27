# SPDX-License-Identifier: Apache-2.0
"""A journal or a trace in, a checked bundle out.

python examples/make_bundle.py SOURCE DIRECTORY RUN_ID RUN_AGENT_ID
"""

import sys

import voicetrace
from voicetrace.agentclash import BundleError, export_bundle, validate_bundle

if len(sys.argv) != 5:
    sys.exit(__doc__)
source, directory, run_id, run_agent_id = sys.argv[1:]

[call] = voicetrace.read_calls(source)
try:
    manifest = export_bundle(
        call,
        directory,
        run_id=run_id,
        run_agent_id=run_agent_id,
        language="en-US",
        metadata={"transport": "webrtc"},
    )
except BundleError as error:
    sys.exit(str(error))
problems = validate_bundle(directory)
print("\n".join(problems) or f"{manifest} is valid")
sys.exit(1 if problems else 0)
