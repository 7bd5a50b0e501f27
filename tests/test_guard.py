# SPDX-License-Identifier: Apache-2.0
"""The guard: nothing of ours reaches the framework, and it is counted."""

from __future__ import annotations

import asyncio
import logging

import pytest

from voicetrace.guard import MAX_FAILURES, Guard


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("not even printable")


def failing(error):
    def hook():
        raise error

    return hook


@pytest.mark.parametrize(
    "error", [TypeError("arity"), ValueError("x"), AssertionError(), RecursionError(), Unprintable()]
)
def test_no_exception_of_ours_gets_out_typeerror_included(error):
    guard = Guard()
    assert guard.wrap("hook", failing(error))() is None
    assert guard.failures["hook"] == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()])
def test_cancellation_and_exits_pass(error):
    guard = Guard()
    with pytest.raises(type(error)):
        guard.wrap("hook", failing(error))()
    assert not guard.failures


def test_what_the_function_takes_and_returns_passes_through():
    def hook(a, *, b):
        """Doc."""
        return (a, b)

    guarded = Guard().wrap("hook", hook)
    assert guarded(1, b=2) == (1, 2)
    assert (guarded.__name__, guarded.__doc__) == ("hook", "Doc.")


def test_a_hook_that_keeps_failing_is_switched_off_and_others_go_on(caplog):
    told, calls = [], []
    guard = Guard(told.append)

    def hook():
        calls.append(1)
        raise ValueError("again")

    guarded = guard.wrap("hook", hook)
    for _ in range(MAX_FAILURES + 5):
        guarded()
    assert (len(calls), guard.failures["hook"]) == (MAX_FAILURES, MAX_FAILURES)
    assert guard.is_off("hook")
    assert not guard.is_off("other")
    assert guard.wrap("other", lambda: "works")() == "works"
    assert [t.split(":")[0] for t in told] == ["voicetrace's hook failed"] * 2
    assert "now off for this call" in told[1]
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 2


def test_what_goes_on_is_never_said_to_be_off(caplog):
    told = []
    guard = Guard(told.append)
    for _ in range(MAX_FAILURES + 5):
        guard.failed("redact", ValueError("again"))
    assert guard.failures["redact"] == MAX_FAILURES + 5
    assert told == ["voicetrace's redact failed: ValueError: again"]
    assert " off " not in caplog.text


def test_a_report_that_raises_is_counted_and_goes_no_further():
    def report(what):
        raise RuntimeError("no")

    guard = Guard(report)
    guard.wrap("hook", failing(ValueError("x")))()
    assert guard.failures == {"hook": 1, "report": 1}


def test_a_log_handler_that_raises_goes_no_further():
    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("the log's disk is full")

    broken = Broken()
    logging.getLogger("voicetrace").addHandler(broken)
    try:
        told = []
        assert Guard(told.append).wrap("hook", failing(ValueError("x")))() is None
        assert told == ["voicetrace's hook failed: ValueError: x"]
    finally:
        logging.getLogger("voicetrace").removeHandler(broken)
