# SPDX-License-Identifier: Apache-2.0
"""A recording of one side only still gives that side's clips."""

from __future__ import annotations

import numpy as np
import pytest

from voicetrace.audio import ClipError, RecordingWriter, clip_message
from voicetrace.messages import Channel, Recording, Role, Segment, Selection, State, TextStatus, VoiceMessage
from voicetrace.voice_call import VoiceCall

RATE = 16_000


def one_sided(tmp_path, side: Channel) -> VoiceCall:
    path = tmp_path / "recording.wav"
    writer = RecordingWriter(path, sample_rate_hz=RATE, origin_unix_ms=0, channels=[side])
    tone = np.arange(1, RATE // 2 + 1, dtype=np.int16)
    writer.write_agent_run(1000, tone)
    writer.write_caller(1500.0, tone, RATE)
    facts = writer.finish(2000)
    recording = Recording(
        recording_id="r",
        uri=path.as_uri(),
        format="wav",
        sample_rate_hz=RATE,
        channels=[side],
        origin_unix_ms=0,
        duration_ms=facts.duration_ms,
        segments={"seg_0": Segment(start_ms=0, length_ms=2000)},
    )
    return VoiceCall("c", recording=recording)


def message(side: Channel) -> VoiceMessage:
    return VoiceMessage(
        id="m",
        role=Role.USER if side is Channel.CALLER else Role.ASSISTANT,
        seq=0,
        committed=True,
        state=State.COMPLETE,
        text_status=TextStatus.MISSING,
        selections=[Selection(segment_id="seg_0", channel=side, start_ms=1000, end_ms=1500)],
    )


@pytest.mark.parametrize("side", list(Channel))
def test_the_captured_side_is_found_in_its_own_column(tmp_path, side):
    clip = clip_message(one_sided(tmp_path, side), message(side))
    assert clip.samples.size == RATE // 2
    assert np.array_equal(clip.samples, np.arange(1, RATE // 2 + 1, dtype=np.int16))


def test_the_other_side_is_said_not_to_be_there(tmp_path):
    call = one_sided(tmp_path, Channel.AGENT)
    with pytest.raises(ClipError):
        clip_message(call, message(Channel.CALLER))
