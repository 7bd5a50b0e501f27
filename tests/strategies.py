# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for events and calls, and the fold's invariants.

`any_event` draws whatever `events.from_dict` accepts; `scripted_call` draws a call as a framework tells it;
`disturbed` loses, doubles and displaces events of a call.
"""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from voicetrace import events as ev
from voicetrace.call import CallRecorder
from voicetrace.messages import Channel, Role, State, TextSource, TimingSource, regressions, writer_problems

SPANS = tuple(f"{n:016x}" for n in range(1, 5))

# few ids, shared by all roles, so that they collide; some look like those the fold makes itself
_IDS = st.sampled_from(["", "a", "b", "vad_0", "vad_1", "vad_3", "typed_2", "sp1", "sp1_2", "sp2", "sp1#2"])
_MS = st.one_of(
    st.integers(-10, 12_000),
    st.sampled_from([-(10**20), -1, 0, 10**9, 2**63, 10**30]),
)
_TEXT = st.one_of(
    st.none(),
    st.sampled_from(["", " ", "hello", "hello there ", "\ud800", "\x00", "x" * 300]),
    st.text(max_size=8),
)
_SPAN = st.sampled_from([*SPANS, "", "0" * 16, "g" * 16, "0" * 15 + "1\n"])


def _field(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if name in ("text", "heard_text"):
        return _TEXT
    if name.endswith("span_id"):
        return st.one_of(st.none(), _SPAN) if type(None) in typing.get_args(hint) else _SPAN
    if hint is int:
        return _MS
    if hint == int | None:
        return st.one_of(st.none(), _MS)
    if hint is str:
        return _IDS
    if hint == str | None:
        return st.one_of(st.none(), _IDS)
    if hint is bool:
        return st.booleans()
    if hint == tuple[str, ...]:
        return st.lists(_IDS, max_size=3).map(tuple)
    if hint == tuple[str | None, ...]:
        return st.lists(st.one_of(st.none(), _IDS), max_size=4).map(tuple)
    if hint == tuple[Channel, ...]:
        return st.lists(st.sampled_from(Channel), max_size=3).map(tuple)
    if hint in (Role, TextSource, TimingSource):
        return st.sampled_from(hint)
    assert typing.get_origin(hint) is typing.Literal, (name, hint)
    return st.sampled_from(typing.get_args(hint))


def events_of(cls: type[ev.Event]) -> st.SearchStrategy[ev.Event]:
    """Any event of this type that `from_dict` accepts."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: _field(f.name, hints[f.name]) for f in fields(cls)})


_RARE = (
    ev.CallEnded,
    ev.CallStarted,
    ev.ConsentChanged,
    ev.CallSpanBound,
    ev.CaptureFault,
    ev.LLMStepExported,
)
_USUAL = [cls for cls in ev.EVENTS.values() if cls not in _RARE]
any_event = st.one_of(*[events_of(cls) for cls in _USUAL], st.one_of(*[events_of(cls) for cls in _RARE]))


def start(**changes: Any) -> ev.CallStarted:
    return ev.CallStarted(
        **({"at_ms": 0, "call_id": "c", "origin_unix_ms": 1_700_000_000_000, "framework": "test"} | changes)
    )


class _Script:
    """Tells a call in framework order with a running clock."""

    def __init__(self, draw: Any, content: bool) -> None:
        self.draw, self.content = draw, content
        self.events: list[ev.Event] = [start(content_captured=content)]
        self.now, self.count = 10, 0

    def text(self, words: str) -> str | None:
        return words if self.content else None

    def tell(self, cls: type[ev.Event], **values: Any) -> None:
        self.now += self.draw(st.integers(0, 400))
        self.events.append(cls(at_ms=self.now, **values))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def number(self) -> int:
        self.count += 1
        return self.count

    # -- what can happen in a call -------------------------------------------------------------------
    def interval(self, item: str | None = None) -> None:
        source = TimingSource.LOCAL_RECEIPT if item else TimingSource.LOCAL_VAD
        begun = self.now
        self.tell(ev.UserSpeechStarted, start_ms=begun, source=source, item_id=item)
        if self.chance():
            self.tell(
                ev.UserTranscript, text=self.text("he"), final=False, source=TextSource.STT, item_id=item
            )
        self.now += 300
        self.tell(ev.UserSpeechStopped, end_ms=self.now - 50, source=source, item_id=item)

    def user_turn(self) -> str | None:
        n = self.number()
        for _ in range(self.draw(st.integers(1, 3))):
            self.interval()
            if self.chance():
                self.tell(ev.UserTranscript, text=self.text(f"part {n}"), final=True, source=TextSource.STT)
        fate = self.draw(
            st.sampled_from(["committed", "committed", "committed", "silent", "dropped", "cleared", "late"])
        )
        if fate in ("silent", "late"):
            self.now += 4000
            self.tell(ev.TimePassed)
        if fate == "silent":
            return None
        if fate == "cleared":
            self.tell(ev.UserTurnCleared)
            return None
        self.tell(ev.EndOfTurnPending, token=f"eou{n}")
        self.tell(ev.EndOfTurnDecided, token=f"eou{n}", outcome="committed")
        if fate == "dropped":
            self.tell(ev.UserTurnDropped)
            return None
        self.tell(
            ev.UserMessageAdded,
            item_id=f"item_u{n}",
            text=self.text(f"turn {n}"),
            source=TextSource.STT,
            end_of_turn_ms=self.draw(st.sampled_from([None, self.now, 1])),
        )
        return f"item_u{n}"

    def reply(self, answers: str | None, origin: str = "reply") -> None:
        n = self.number()
        speech = f"speech_{n}"
        self.tell(ev.SpeechCreated, speech_id=speech, origin=origin)
        if origin == "reply":
            span = f"{n:016x}"
            self.tell(
                ev.LLMStepStarted,
                span_id=span,
                trace_id="t",
                name="llm",
                context_ids=("sys", answers),
                speech_id=speech,
                answers=answers,
            )
            self.tell(ev.LLMStepEnded, span_id=span)
        source = TextSource.REALTIME_OUTPUT_TRANSCRIPT if origin == "realtime" else TextSource.TTS_INPUT
        kind = self.draw(
            st.sampled_from(["said", "said", "cut", "tool", "unplayed", "lost", "discarded", "resumed"])
        )
        if kind != "tool":
            for part in ("Good morning. ", "How are you?"):
                self.tell(ev.SpeechText, speech_id=speech, text=self.text(part), source=source)
        if kind in ("said", "cut", "lost", "resumed"):
            self.playout(speech, kind)
        if kind in ("said", "cut", "resumed") and self.chance():
            self.tell(
                ev.AssistantMessageAdded,
                item_id=f"item_a{n}",
                speech_id=speech,
                text=self.text("Good morning. How are you?"),
                cut=kind == "cut" or self.chance(),
            )
        if kind != "lost":
            self.tell(
                ev.SpeechEnded, speech_id=speech, outcome="discarded" if kind == "discarded" else "done"
            )

    def playout(self, speech: str, kind: str) -> None:
        for _ in range(self.draw(st.integers(1, 2))):
            begun = self.now
            self.tell(ev.PlayoutStarted, speech_id=speech, start_ms=begun)
            self.now += 500
            position = 500
            if self.chance():
                self.tell(ev.PlayoutRun, speech_id=speech, start_ms=begun, end_ms=begun + 500)
            if kind in ("cut", "resumed"):
                self.tell(ev.PlayoutStopped, speech_id=speech, stopped_ms=begun + 500)
            if kind == "resumed":
                begun, position = self.now, 900
                self.now += 400
                self.tell(ev.PlayoutRun, speech_id=speech, start_ms=begun, end_ms=begun + 400)
            if kind == "cut" and self.chance():
                self.tell(ev.ProviderTruncated, speech_id=speech, audio_end_ms=position)
            if kind == "lost":
                return
            aligned = self.chance()
            heard = self.draw(st.sampled_from(["", "Good", "Good morning. "]))
            self.tell(
                ev.PlayoutFinished,
                speech_id=speech,
                interrupted=kind == "cut",
                aligned=aligned,
                position_ms=self.draw(st.sampled_from([position, position, 0])),
                heard_text=self.text(heard) if aligned else None,
            )

    def realtime_turn(self) -> None:
        n = self.number()
        item = self.draw(st.sampled_from([None, f"item_rt{n}"]))
        self.interval(item if self.chance() else None)
        early = self.chance()
        words = ev.UserTranscript
        said: dict[str, Any] = {
            "text": self.text(f"rt {n}"),
            "final": True,
            "item_id": item,
            "source": TextSource.REALTIME_INPUT_TRANSCRIPT,
        }
        if early:
            self.tell(words, **said)
        self.tell(ev.ResponseStarted, item_ids=(item,) if item else ())
        self.reply(item, "realtime")
        if not early:
            self.tell(words, **said)

    def typed(self) -> None:
        n = self.number()
        self.tell(ev.UserTextSubmitted, token=f"t{n}", text=self.text("typed"))
        self.reply(None)
        if self.chance():
            self.tell(
                ev.UserMessageAdded,
                item_id=f"item_t{n}",
                text=self.text("typed"),
                source=TextSource.TEXT_INPUT,
                token=f"t{n}",
            )

    def noted(self) -> None:
        n = self.number()
        role = self.draw(st.sampled_from(Role))
        begun = self.draw(st.sampled_from([None, self.now, 0]))
        self.tell(
            ev.MessageNoted,
            message_id=f"note{n}",
            role=role,
            text=self.text("5"),
            start_ms=begun,
            end_ms=begun,
        )

    def recording(self) -> None:
        self.tell(
            ev.RecordingStarted,
            recording_id="r",
            uri="r.wav",
            format="wav",
            sample_rate_hz=24000,
            channels=tuple(Channel),
            origin_unix_ms=0,
        )
        n = self.number()
        self.tell(ev.SegmentStarted, segment_id=f"seg{n}", start_ms=self.now)
        if self.chance():
            self.tell(ev.SegmentEnded, segment_id=f"seg{n}", end_ms=self.now + 1000)

    def any_scene(self) -> None:
        scene = self.draw(st.integers(0, 7))
        if scene <= 3:
            self.reply(self.user_turn())
        elif scene == 4:
            self.realtime_turn()
        elif scene == 5:
            self.typed()
        elif scene == 6:
            self.reply(None, "say")
        else:
            self.draw(st.sampled_from([self.noted, self.recording]))()


@st.composite
def scripted_call(draw: Any, content: bool | None = None) -> list[ev.Event]:
    """A call as an undisturbed framework tells it, ended or cut short anywhere."""
    script = _Script(draw, draw(st.booleans()) if content is None else content)
    for _ in range(draw(st.integers(1, 5))):
        script.any_scene()
    events = script.events[: draw(st.integers(1, len(script.events)))] if script.chance() else script.events
    return [*events, ev.CallEnded(at_ms=events[-1].at_ms + 5, reason="done")]


@st.composite
def disturbed(draw: Any, calls: st.SearchStrategy[list[ev.Event]]) -> list[ev.Event]:
    """A call some of whose events are lost, told twice or told late. The first event stays the first."""
    first, *events = draw(calls)
    for _ in range(draw(st.integers(1, 6))):
        if not events:
            break
        index = draw(st.integers(0, len(events) - 1))
        what = draw(st.sampled_from(["lose", "double", "displace"]))
        event = events[index]
        if what != "double":
            del events[index]
        if what != "lose":
            place = index + draw(st.integers(-4, 8))
            events.insert(max(0, min(len(events), place)), event)
    return [first, *events]


# -- what must hold ----------------------------------------------------------------------------------
class Watched:
    """A recorder under watch: every `apply` is checked against the contract from outside."""

    def __init__(self, *, strict: bool) -> None:
        self.recorder = CallRecorder(strict=strict)
        self.written: dict[str, Any] = {}
        self.former: set[str] = set()

    def apply(self, event: ev.Event) -> None:
        recorder = self.recorder
        change = recorder.apply(event)
        written = {m.id for m in change.messages}
        for old, new in change.moved:
            assert old in self.written
            assert new not in self.written
            self.written[new] = self.written.pop(old)
            self.former.add(old)
            assert new in written
        for message in change.messages:
            assert writer_problems(message) == []
            before = self.written.get(message.id)
            if before is not None:
                assert regressions(before, message) == []
            self.written[message.id] = message
        assert dict(recorder.messages) == self.written
        assert all(key == m.id for key, m in recorder.messages.items())
        assert not self.former & recorder.messages.keys()
        seqs = [m.seq for m in recorder.ordered()]
        assert len(set(seqs)) == len(seqs)
        assert not [w for w in recorder.warnings if "not written" in w]
        if recorder.ended is not None:
            open_ones = [m for m in recorder.messages.values() if m.state is State.OPEN]
            assert open_ones == []
            assert not [
                m
                for m in recorder.messages.values()
                if m.text_status == "partial" and event == recorder.ended
            ]
        for step in recorder.steps:
            assert all(recorder.messages[i].committed for i in step.output_ids)
        assert recorder.recording is None or recorder.recording.to_wire()


def watch(events: list[ev.Event], *, strict: bool = False) -> CallRecorder:
    watched = Watched(strict=strict)
    for event in events:
        watched.apply(event)
    return watched.recorder
