# SPDX-License-Identifier: Apache-2.0
"""A real LiveKit worker, job and participant on loopback: the job's call is recorded, in both executors.

    python tests/e2e/worker.py [process|thread]

In the thread's job LiveKit records the call too, and its file is adopted.

Needs ``livekit-gateway``, which speaks LiveKit's worker protocol on one side and a telephone's audio stream
on the other; this script is the telephone. Exits with 1 and the reason when a call is not as it must be.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

import voicetrace

HERE = Path(__file__).parent
FRAME = 160  # samples of 20 ms at 8 kHz
MULAW_SILENCE = b"\xff" * FRAME


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def worker(executor: str, calls: Path, log: Path) -> Any:
    """The worker and its gateway as child processes; gives the telephone's address."""
    phone, xml, agent = free_port(), free_port(), free_port()
    env = os.environ | {
        "PLIVO_WS_ADDR": f"127.0.0.1:{phone}",
        "PLIVO_XML_ADDR": f"127.0.0.1:{xml}",
        "PLIVO_PUBLIC_HOST": f"127.0.0.1:{phone}",
        "LIVEKIT_AGENT_WS_ADDR": f"127.0.0.1:{agent}",
        "LIVEKIT_URL": f"ws://127.0.0.1:{agent}",
        "LIVEKIT_API_KEY": "devkey",
        "LIVEKIT_API_SECRET": "secretsecretsecretsecretsecretsecret",
        "LKG_GATEWAY_LOG": str(log.with_suffix(".gateway")),
        "RUST_LOG": "warn",
        "E2E_CALLS": str(calls),
        "E2E_EXECUTOR": executor,
        "E2E_ADOPT": "yes" if executor == "thread" else "no",
        "E2E_PORT": str(free_port()),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker_agent.py"), "start"], env=env, stdout=out, stderr=out
        )
        try:
            yield phone, xml, process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


async def until(what: str, test: Any, limit_s: float = 120) -> Any:
    """Ask again until there is an answer.

    Raises:
        TimeoutError: there was none in time.
    """
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = await test() if asyncio.iscoroutinefunction(test) else test()
        if found:
            return found
        await asyncio.sleep(0.2)
    raise TimeoutError(f"{what}: not within {limit_s:g} s")


async def telephone(port: int, xml: int, heard: list[np.ndarray], over: Any) -> None:
    """Call in, send silence, keep what is played, and hang up when `over` says so."""
    async with aiohttp.ClientSession() as client:

        async def answered() -> str | None:
            for base in (port, xml):
                with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
                    data = {"CallUUID": "call-1", "From": "+1555", "To": "+1666"}
                    timeout = aiohttp.ClientTimeout(total=2)
                    async with client.post(
                        f"http://127.0.0.1:{base}/answer", data=data, timeout=timeout
                    ) as reply:
                        text = await reply.text()
                        if reply.status == 200 and "Stream" in text:
                            return text[text.index("ws") :].split("<")[0].strip().replace("wss:", "ws:", 1)
            return None

        url = await until("the gateway answers the call", answered)
        async with client.ws_connect(url) as stream:
            start = {
                "event": "start",
                "sequenceNumber": 0,
                "start": {
                    "callId": "call-1",
                    "streamId": "stream-1",
                    "accountId": "acct",
                    "tracks": ["inbound"],
                    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
                },
                "extra_headers": "{}",
            }
            await stream.send_str(json.dumps(start))
            tasks = [asyncio.create_task(_send(stream)), asyncio.create_task(_listen(stream, heard))]
            try:
                await until("the agent has said all it has to say", over)
            finally:
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(ConnectionError):
                    await stream.send_str(json.dumps({"event": "stop", "streamId": "stream-1"}))


async def _send(stream: aiohttp.ClientWebSocketResponse) -> None:
    began, number = time.monotonic(), 0
    while True:
        number += 1
        media = {
            "track": "inbound",
            "timestamp": str(number * 20),
            "chunk": number,
            "payload": base64.b64encode(MULAW_SILENCE).decode(),
        }
        await stream.send_str(
            json.dumps({"event": "media", "sequenceNumber": number, "streamId": "stream-1", "media": media})
        )
        await asyncio.sleep(max(0.0, began + number * 0.02 - time.monotonic()))


async def _listen(stream: aiohttp.ClientWebSocketResponse, heard: list[np.ndarray]) -> None:
    async for message in stream:
        if message.type is not aiohttp.WSMsgType.TEXT:
            continue
        event = json.loads(message.data)
        if event.get("event") == "playAudio":
            heard.append(np.frombuffer(base64.b64decode(event["media"]["payload"]), np.uint8))
        elif event.get("event") == "checkpoint":
            await stream.send_str(
                json.dumps({"event": "playedStream", "streamId": "stream-1", "name": event.get("name")})
            )


async def call_in(executor: str, directory: Path) -> None:
    """One call through the worker, checked.

    Raises:
        AssertionError: the record is not what the call was.
    """
    calls, log, heard = directory / "calls", directory / "worker.log", []
    with worker(executor, calls, log) as (phone, xml, process):
        try:
            await until("the worker registers", lambda: b"registered worker" in log.read_bytes())
            await telephone(phone, xml, heard, lambda: _all_said(calls) and _sounded(heard))
            found = await until("the call's record is whole", lambda: _finished(calls))
        except BaseException:
            sys.stderr.write(log.read_text(errors="replace")[-4000:])
            raise
        assert process.poll() is None, "the worker died"
    (call,) = found
    print(f"{executor}: {[(m.role.value, m.state.value, m.text) for m in call.messages]}")
    assert [(m.role.value, m.text, m.committed) for m in call.messages] == [
        ("assistant", "Welcome to the call", True),
        ("user", "a typed question", True),
        ("assistant", "Here is your answer", True),
    ]
    assert call.messages[2].produced_by_span_id == call.llm_steps[0].span_id
    assert list(call.llm_steps[0].output_ids) == [call.messages[2].id]
    assert call.recording.format == ("opus" if executor == "thread" else "wav")
    assert call.recording.origin_unix_ms == call.origin_unix_ms
    assert call.warnings == (), call.warnings
    for message in (call.messages[0], call.messages[2]):
        assert message.timing_source == "local_playout"
        clip = call.clip(message)
        assert clip.duration_ms > 500
        assert np.abs(clip.samples.astype(int)).mean() > 300, "the clip is silent"


def _all_said(calls: Path) -> bool:
    """Both of the agent's messages have played, by the journal of the call that is going on."""
    found = voicetrace.read_calls(calls) if calls.is_dir() and any(calls.rglob("journal.jsonl")) else []
    return any(sum(m.role == "assistant" and m.state == "complete" for m in c.messages) == 2 for c in found)


def _sounded(heard: list[np.ndarray]) -> bool:
    """The telephone heard more than silence; the line is a moment behind the room."""
    return bool(heard) and np.unique(np.concatenate(heard)).size > 20


def _finished(calls: Path) -> list[Any]:
    found = voicetrace.read_calls(calls) if calls.is_dir() and any(calls.iterdir()) else []
    done = found and all(c.ended and c.recording and c.recording.sha256 for c in found)
    return found if done else []


def main() -> int:
    for executor in sys.argv[1:] or ("process", "thread"):
        with tempfile.TemporaryDirectory() as directory:
            began = time.monotonic()
            asyncio.run(call_in(executor, Path(directory)))
            print(f"{executor}: passed in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
