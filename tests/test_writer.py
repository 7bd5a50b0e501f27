# SPDX-License-Identifier: Apache-2.0
"""The writer thread: in order, never dropping a fact, and done before the process is."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

import pytest

from voicetrace.writer import Writer


def test_jobs_run_in_the_order_of_submission_on_one_other_thread():
    writer, seen = Writer(), []
    for n in range(500):
        writer.submit(lambda n=n: seen.append((n, threading.current_thread().name)))
    assert writer.drain(10)
    assert seen == [(n, "voicetrace-writer") for n in range(500)]


def test_jobs_of_many_threads_all_run_and_each_threads_in_its_order():
    writer, seen = Writer(), []
    gate = threading.Barrier(4)

    def submit(name):
        gate.wait()
        for n in range(200):
            writer.submit(seen.append, (name, n))

    threads = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.drain(10)
    assert len(seen) == 800
    for name in range(4):
        assert [n for who, n in seen if who == name] == list(range(200))


def test_a_job_may_submit_another():
    writer, seen = Writer(), []
    writer.submit(writer.submit, seen.append, 1)
    assert writer.drain(10)
    assert seen == [1]


def test_a_job_that_still_runs_is_waited_for_though_nothing_is_queued_behind_it():
    marked, gate, seen = threading.Event(), threading.Event(), []

    class Marking(Writer):
        def submit(self, job, *args):
            super().submit(job, *args)
            if job == self._pass_through:
                marked.set()

    writer = Marking()

    def last():
        gate.wait()
        seen.append("last")

    def first():  # queues `last` behind the mark of `drain`
        marked.wait()
        writer.submit(last)

    writer.submit(first)
    assert not writer.drain(0.2)
    gate.set()
    assert writer.drain(10)
    assert seen == ["last"]


def test_a_job_that_drains_its_own_queue_does_not_wait_for_itself():
    writer, seen = Writer(), []
    writer.submit(lambda: seen.append(writer.drain(60)))
    assert writer.drain(10)
    assert seen == [False]


@pytest.mark.parametrize("error", [RuntimeError("disk"), SystemExit(1), KeyboardInterrupt()])
def test_a_failing_job_is_logged_and_the_next_one_runs(caplog, error):
    writer, seen = Writer(max_pending_audio=10), []

    def fail():
        raise error

    assert writer.submit_audio(10, fail)
    writer.submit(seen.append, "next")
    assert writer.drain(10)
    assert seen == ["next"]
    assert "a write job failed; other calls go on" in caplog.text
    assert writer.submit_audio(10, seen.append, "room again")
    assert writer.drain(10)


def test_audio_is_refused_when_too_much_waits_and_facts_are_not():
    writer, seen, gate = Writer(max_pending_audio=100), [], threading.Event()
    writer.submit(gate.wait)
    taken = [writer.submit_audio(40, seen.append, f"audio{n}") for n in range(4)]
    writer.submit(seen.append, "fact")
    assert taken == [True, True, False, False]
    assert not writer.drain(0.01)
    gate.set()
    assert writer.drain(10)
    assert seen == ["audio0", "audio1", "fact"]
    assert writer.submit_audio(100, seen.append, "room again")
    assert writer.drain(10)


def test_backpressure_counts_exactly_under_contention():
    writer, gate, taken = Writer(max_pending_audio=1000), threading.Event(), []
    writer.submit(gate.wait)
    start = threading.Barrier(4)

    def feed():
        start.wait()
        taken.extend(writer.submit_audio(7, lambda: None) for _ in range(200))

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 1000 // 7
    gate.set()
    assert writer.drain(10)
    assert writer.submit_audio(1000, lambda: None)
    assert writer.drain(10)


def test_no_thread_is_started_before_there_is_work():
    before = threading.active_count()
    Writer()
    assert threading.active_count() == before


@pytest.mark.parametrize("how", ["", "raise SystemExit(3)", "raise ValueError('the application failed')"])
def test_what_is_queued_is_written_when_the_interpreter_exits(tmp_path, how):
    code = f"""
import sys
from pathlib import Path
from voicetrace.writer import WRITER
for n in range(2000):
    WRITER.submit(lambda n=n: out.write(f"{{n}}\\n"))
out = Path(sys.argv[1]).open("w", buffering=1)
{how}
"""
    # the jobs find `out` at once or fail and are logged; the gate makes them wait for it
    code = code.replace(
        "for n in", "import threading; gate = threading.Event(); WRITER.submit(gate.wait)\nfor n in", 1
    )
    code = code.replace('open("w", buffering=1)', 'open("w", buffering=1); gate.set()')
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], check=False, capture_output=True, timeout=60
    )
    assert (tmp_path / "out").read_text().split() == [str(n) for n in range(2000)]


@pytest.mark.parametrize("how", multiprocessing.get_all_start_methods())
def test_what_is_queued_is_written_when_a_child_process_ends(tmp_path, how):
    script = tmp_path / "main.py"
    script.write_text("""
import multiprocessing, sys, threading
from pathlib import Path
def child(out):
    from voicetrace.writer import WRITER
    gate = threading.Event()
    WRITER.submit(gate.wait)
    for n in range(2000):
        WRITER.submit(lambda n=n: file.write(f"{n}\\n"))
    file = Path(out).open("w", buffering=1)
    gate.set()
if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child, args=(sys.argv[2],))
    process.start()
    process.join()
    sys.exit(process.exitcode)
""")
    subprocess.run([sys.executable, str(script), how, str(tmp_path / "out")], check=True, timeout=60)
    assert (tmp_path / "out").read_text().split() == [str(n) for n in range(2000)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_its_own_and_does_not_repeat_its_parents_queue(tmp_path):
    code = """
import os, sys, threading
from pathlib import Path
from voicetrace.writer import WRITER
out = Path(sys.argv[1])
gate = threading.Event()
def note(name):
    with out.open("a") as file:
        file.write(f"{name} {os.getpid() == parent}\\n")
parent = os.getpid()
WRITER.submit(gate.wait)
WRITER.submit(note, "queued")
child = os.fork()
if child == 0:
    WRITER.submit(note, "child")
    os._exit(0 if WRITER.drain(10) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
gate.set()
assert WRITER.drain(10)
"""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "out")], check=True, timeout=60
    )
    assert (tmp_path / "out").read_text().splitlines() == ["child False", "queued True"]
