# SPDX-License-Identifier: Apache-2.0
"""A process killed (SIGKILL) at random points: does `recover` yield every message whose end was journalled?

    python benchmarks/kill.py [--kills 20] [--seed 1] [--json]

The child runs a call of many exchanges with both channels of audio and acknowledges each message once the
writer thread has journalled its end. The parent kills it at a random moment, recovers, and compares.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = "--child"


def child(directory: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import numpy as np
    from overhead import RATE, Clock, exchange, new_call

    from voicetrace.writer import WRITER

    def acknowledge(change, recorder):
        for message in change.settled:
            line = json.dumps({"id": message.id, **message.to_wire()}) + "\n"
            WRITER.submit(lambda line=line: os.write(1, line.encode()))

    clock = Clock()
    call, tracer = new_call(Path(directory), clock)
    call.listeners.append(acknowledge)
    call.files.start_recording(RATE)
    frame = np.full(RATE // 50, 500, np.int16).tobytes()
    context: list[str] = []
    os.write(1, b"ready\n")
    for n in range(100_000):
        for event in exchange(call, tracer, n, context):
            if callable(event):
                event()
            else:
                call.emit(event)
            call.files.caller_audio(call.precise_ms(), frame, RATE, 1)
        clock.now += 7
        del context[:-20]
        time.sleep(0.005)


def one_kill(rng: random.Random) -> dict[str, object]:
    from voicetrace.journal import journals_in, read_journal
    from voicetrace.messages import writer_problems
    from voicetrace.recovery import recover

    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([sys.executable, __file__, CHILD, folder], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        acknowledged = {}
        for line in process.stdout.read().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the last line may be torn
            acknowledged[entry.pop("id")] = entry
        process.wait()
        process.stdout.close()
        journal = read_journal(journals_in(Path(folder))[0])
        report = recover(folder)
        (call,) = report.recovered
        recovered = {m.id: m.to_wire() for m in call.messages}
        lost = [i for i, entry in acknowledged.items() if recovered.get(i) != entry]
        invalid = [m.id for m in call.messages if writer_problems(m) or m.state == "open"]
        path = call.recording_path()
        return {
            "acknowledged": len(acknowledged),
            "recovered": len(recovered),
            "lost": lost,
            "invalid": invalid,
            "torn": journal.torn,
            # a process killed before its recording began has none
            "recording_ok": call.recording is None
            or (path is not None and path.exists() and call.recording.sha256 is not None),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    results = []
    for number in range(arguments.kills):
        results.append(one_kill(rng))
        if not arguments.json:
            r = results[-1]
            print(
                f"kill {number + 1:2}: {r['acknowledged']:4} ends journalled, {r['recovered']:4} recovered, "
                f"lost {len(r['lost'])}, invalid {len(r['invalid'])}, torn line {r['torn']}, "
                f"recording {'ok' if r['recording_ok'] else 'BROKEN'}"
            )
    good = sum(not r["lost"] and not r["invalid"] and r["recording_ok"] for r in results)
    summary = f"{good} of {len(results)} whole"
    print(json.dumps({"good": good, "kills": results}) if arguments.json else summary)
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == CHILD:
        child(sys.argv[2])
    else:
        raise SystemExit(main())
