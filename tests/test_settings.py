# SPDX-License-Identifier: Apache-2.0
"""`configure` and the environment's defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from voicetrace import semconv, settings
from voicetrace.messages import Channel
from voicetrace.settings import configure, current, override, reset


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    monkeypatch.delenv(settings.ENV_DIRECTORY, raising=False)
    monkeypatch.delenv(semconv.ENV_CAPTURE_CONTENT, raising=False)
    reset()
    yield
    reset()


def test_without_configure_the_defaults_hold_and_audio_is_off():
    now = current()
    assert (now.content, now.audio, now.directory) == ("full", "off", Path("voicetrace-calls"))
    assert (now.audio_channels, now.uncommitted_timeout_ms, now.structured_messages) == ((), 3000, False)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("false", "none"),
        ("NO_CONTENT", "none"),
        ("0", "none"),
        (" event_only ", "none"),
        ("true", "full"),
        ("SPAN_AND_EVENT", "full"),
        ("", "full"),
    ],
)
def test_content_follows_the_standard_switch_unless_it_is_said(monkeypatch, value, content):
    monkeypatch.setenv(semconv.ENV_CAPTURE_CONTENT, value)
    assert current().content == content
    configure(content="full")
    assert current().content == "full"
    configure()
    assert current().content == content


def test_the_directory_is_what_is_said_else_the_environments(monkeypatch, tmp_path):
    monkeypatch.setenv(settings.ENV_DIRECTORY, str(tmp_path))
    assert current().directory == tmp_path
    configure(directory="elsewhere")
    assert current().directory == Path("elsewhere")
    configure(directory=None)
    assert current().directory is None


@pytest.mark.parametrize(
    ("audio", "channels"),
    [
        ("off", ()),
        ("agent", (Channel.AGENT,)),
        ("caller", (Channel.CALLER,)),
        ("both", (Channel.CALLER, Channel.AGENT)),
    ],
)
def test_audio_names_the_channels_in_file_order(audio, channels):
    configure(audio=audio)
    assert current().audio_channels == channels


@pytest.mark.parametrize(
    "wrong",
    [
        {"content": "some"},
        {"audio": "on"},
        {"audio": None},
        {"recording_format": "mp3"},
        {"message_records": "file"},
        {"max_messages_bytes": 0},
        {"uncommitted_timeout_ms": -1},
        {"uncommitted_timeout_ms": "3000"},
        {"uncommitted_timeout_ms": 2.5},
        {"max_messages_bytes": True},
        {"audio": "both", "directory": None},
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_named_and_changes_nothing(wrong):
    configure(workspace_id="before")
    with pytest.raises(ValueError, match=rf"configure\({next(iter(wrong))}="):
        configure(**wrong)
    assert current().workspace_id == "before"


def test_override_changes_a_copy_only():
    changed = override(None, audio="both")
    assert (changed.audio, current().audio) == ("both", "off")
