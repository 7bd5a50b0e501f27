# SPDX-License-Identifier: Apache-2.0
"""``voicetrace bundle``: a call as a voice artifact bundle."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from voicetrace.cli.common import PROBLEMS, USAGE, Failure, clean, print_json, read, reason, say

if TYPE_CHECKING:
    from voicetrace.agentclash import Evidence, Promotion
    from voicetrace.voice_call import VoiceCall

EXAMPLE = (
    "Example: voicetrace bundle demo --out bundle --run-id 0190d0f4-8f5b-7cc3-a1b6-2f7d5c9e4b10 "
    "--run-agent-id 0190d0f4-8f5b-7cc3-a1b6-2f7d5c9e4b11"
)
_AUDIO: Final = "A call that was not traced"
_EVIDENCE: Final = "More evidence"
_PRODUCER: Final = "What made the call"
_CASE: Final = "A regression case"
_STORE: Final = "Object storage"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("bundle", short_help="Write a call as a voice artifact bundle.", epilog=EXAMPLE)(bundle)


def _option(name: str, words: str, panel: str | None = None) -> Any:
    return typer.Option(name, help=words, rich_help_panel=panel)


OptionalPath = Path | None
OptionalText = str | None


def bundle(
    out: Annotated[Path, _option("--out", "The bundle's directory: new, empty, or one of ours.")],
    run_id: Annotated[uuid.UUID, _option("--run-id", "The run's UUID.")],
    run_agent_id: Annotated[uuid.UUID, _option("--run-agent-id", "The UUID of the run's agent.")],
    source: Annotated[
        OptionalPath,
        typer.Argument(help="A trace, a journal, or a directory of them.", metavar="SOURCE"),
    ] = None,
    call: Annotated[OptionalText, _option("--call", "Which call, when there are several.")] = None,
    structured_output: Annotated[
        OptionalPath, _option("--structured-output", "A JSON file: the task's result. Default: computed.")
    ] = None,
    schema_ref: Annotated[
        OptionalText, _option("--schema-ref", "What names the shape of the structured output.")
    ] = None,
    language: Annotated[OptionalText, _option("--language", "BCP 47, for example en-US.")] = None,
    incomplete: Annotated[
        bool, _option("--incomplete", "Write what can be made, also when that is no valid bundle.")
    ] = False,
    json: Annotated[bool, _option("--json", "What was written, for a machine.")] = False,
    caller: Annotated[
        OptionalPath, _option("--caller", "The caller's side, a mono audio file from the start on.", _AUDIO)
    ] = None,
    agent: Annotated[OptionalPath, _option("--agent", "The agent's side, likewise.", _AUDIO)] = None,
    transcript: Annotated[
        OptionalPath, _option("--transcript", 'JSON: {"turns": [{"speaker", "text"}]}.', _AUDIO)
    ] = None,
    call_id: Annotated[OptionalText, _option("--call-id", "What the call is called.", _AUDIO)] = None,
    captured_at: Annotated[
        OptionalText, _option("--captured-at", "When the audio starts, RFC 3339 with a zone.", _AUDIO)
    ] = None,
    redaction: Annotated[
        OptionalPath, _option("--redaction", "JSON: the review of the evidence.", _EVIDENCE)
    ] = None,
    media_policy: Annotated[
        OptionalPath, _option("--media-policy", "JSON: a source separation report, or its ratios.", _EVIDENCE)
    ] = None,
    speech_stem: Annotated[
        OptionalPath, _option("--speech-stem", "Mono audio to measure separation from.", _EVIDENCE)
    ] = None,
    background_stem: Annotated[
        OptionalPath, _option("--background-stem", "The other stem.", _EVIDENCE)
    ] = None,
    speech_reference: Annotated[
        OptionalPath, _option("--speech-reference", "The true speech behind the stems.", _EVIDENCE)
    ] = None,
    background_reference: Annotated[
        OptionalPath, _option("--background-reference", "The true background.", _EVIDENCE)
    ] = None,
    video_sync: Annotated[
        OptionalPath, _option("--video-sync", "JSON: a video sync report, or its segments.", _EVIDENCE)
    ] = None,
    source_speech: Annotated[
        OptionalPath, _option("--source-speech", "Mono audio to measure video sync from.", _EVIDENCE)
    ] = None,
    translated_speech: Annotated[
        OptionalPath, _option("--translated-speech", "Its translation.", _EVIDENCE)
    ] = None,
    threshold: Annotated[
        list[str] | None,
        _option("--threshold", "Live continuity, NAME=WARN,FAIL; may be repeated.", _EVIDENCE),
    ] = None,
    gap_ms: Annotated[
        int, typer.Option("--gap-ms", min=1, help="A shorter pause is no gap.", rich_help_panel=_EVIDENCE)
    ] = 200,
    provider: Annotated[OptionalText, _option("--provider", "Of the model.", _PRODUCER)] = None,
    model: Annotated[OptionalText, _option("--model", "Its name.", _PRODUCER)] = None,
    transport: Annotated[
        OptionalText, _option("--transport", "webrtc, telephony, file, …", _PRODUCER)
    ] = None,
    streaming_mode: Annotated[
        OptionalText, _option("--streaming-mode", "streaming, batched or hybrid.", _PRODUCER)
    ] = None,
    background_audio: Annotated[
        OptionalText,
        _option("--background-audio", "preserved, ducked, discarded or unavailable.", _PRODUCER),
    ] = None,
    promote: Annotated[
        OptionalText,
        _option("--promote", "Also write call_import.json, for PACK/INPUT_SET/CHALLENGE/CASE.", _CASE),
    ] = None,
    expected_outcome: Annotated[str, _option("--expected-outcome", "What should have happened.", _CASE)] = "",
    failure_category: Annotated[str, _option("--failure-category", "What went wrong.", _CASE)] = "",
    label: Annotated[list[str] | None, _option("--label", "A reviewer's; may be repeated.", _CASE)] = None,
    multimodal_trace: Annotated[
        bool, _option("--multimodal-trace", "Also write multimodal_trace.json.", _CASE)
    ] = False,
    store: Annotated[
        OptionalText, _option("--store", "Upload to s3://, gs://, az:// or file://, and check.", _STORE)
    ] = None,
    store_option: Annotated[
        list[str] | None, _option("--store-option", "KEY=VALUE, as endpoint or region.", _STORE)
    ] = None,
) -> None:
    """Write one call as a bundle: manifest, audio, transcript, timeline and reports.

    The call is a traced one (SOURCE), with both sides recorded or given as --caller and --agent; or one that
    was never traced, from its two sides and a transcript. The bundle is checked after it was written. A case
    and a multimodal trace need a --redaction whose status is approved_for_regression.
    """
    from voicetrace.agentclash import BundleError, export_bundle, upload_bundle, validate_bundle

    for name, value in (("--run-id", run_id), ("--run-agent-id", run_agent_id)):
        if not value.int:
            raise Failure(f"{name} must not be the nil UUID", code=USAGE)
    config = _store_config(store, store_option)
    stems = _Stems(speech_stem, background_stem, speech_reference, background_reference)
    promotion = _promotion(promote, expected_outcome, failure_category, label, captured_at)
    metadata = {
        "provider": provider,
        "model": model,
        "transport": transport,
        "streaming_mode": streaming_mode,
        "background_audio": background_audio,
    }
    try:
        evidence = _evidence(caller, agent, redaction, threshold, gap_ms)
        evidence = replace(
            evidence,
            structured_output=_object("--structured-output", structured_output),
            schema_ref=schema_ref,
            media_policy_report=_media_policy(media_policy, stems),
            video_sync_report=_video_sync(video_sync, source_speech, translated_speech),
            metadata={name: value for name, value in metadata.items() if value is not None},
            promotion=promotion,
            with_multimodal_trace=multimodal_trace,
        )
        chosen, languages = _call(source, call, evidence, transcript, call_id, captured_at)
        manifest = export_bundle(
            chosen,
            out,
            run_id=run_id,
            run_agent_id=run_agent_id,
            language=language or languages or None,
            evidence=evidence,
            incomplete=incomplete,
        )
        problems = validate_bundle(out)
        uploaded = upload_bundle(out, store, config=config or None) if store and not problems else None
    except BundleError as error:
        raise Failure(reason(error)) from error
    if problems and not incomplete:
        raise Failure(f"{out} was written and is not valid: {problems[0]}")
    written = [manifest, *_written(out, manifest, uploaded)]
    if json:
        print_json(
            {
                "call_id": chosen.call_id,
                "manifest": str(manifest),
                "artifacts": [str(path) for path in written[1:]],
                "uploaded_to": store if uploaded else None,
                "problems": problems,
            }
        )
    else:
        for path in written:
            say(f"wrote {path}")
        if uploaded:
            say(clean(f"uploaded to {store}"))
        for problem in problems:
            say(clean(problem))
    if problems:
        raise typer.Exit(PROBLEMS)


def _written(out: Path, manifest: Path, uploaded: Path | None) -> list[Path]:
    from voicetrace.agentclash.artifacts import CALL_IMPORT_NAME, MULTIMODAL_TRACE_NAME

    files = sorted(p for p in (out / "artifacts").iterdir() if p.is_file())
    beside = [out / name for name in (CALL_IMPORT_NAME, MULTIMODAL_TRACE_NAME)]
    return files + [p for p in beside if p.exists()] + ([uploaded] if uploaded else [])


# -- which call --------------------------------------------------------------------------------------
def _call(
    source: Path | None,
    wanted: str | None,
    evidence: Evidence,
    transcript: Path | None,
    call_id: str | None,
    captured_at: str | None,
) -> tuple[VoiceCall, Mapping[str, str]]:
    from voicetrace.agentclash import call_from_audio

    if source is not None:
        for name, value in (("--transcript", transcript), ("--call-id", call_id)):
            if value is not None:
                raise Failure(f"{name} is for a call without SOURCE; {source} says it itself", code=USAGE)
        return _choose(read(source), wanted, source), {}
    if evidence.caller_audio is None or evidence.agent_audio is None:
        raise Failure("name a SOURCE, or both --caller and --agent", code=USAGE)
    imported = call_from_audio(
        evidence.caller_audio,
        evidence.agent_audio,
        transcript,
        call_id=call_id,
        captured_at=captured_at,
        vad=evidence.vad,
    )
    return imported.call, imported.languages


def _choose(calls: list[VoiceCall], wanted: str | None, source: Path) -> VoiceCall:
    ids = ", ".join(call.call_id for call in calls)
    if wanted is None:
        if len(calls) > 1:
            raise Failure(f"{source} has {len(calls)} calls; choose one with --call: {ids}", code=USAGE)
        return calls[0]
    for call in calls:
        if call.call_id == wanted:
            return call
    raise Failure(f"{source} has no call {wanted}; it has {ids}", code=USAGE)


# -- what else there is ------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Stems:
    speech: Path | None
    background: Path | None
    speech_reference: Path | None
    background_reference: Path | None


def _document(option: str, path: Path) -> Any:
    from voicetrace.agentclash.problems import load_json

    data, problems = load_json(path)
    if problems:
        raise Failure(f"{option} {path} cannot be read as JSON: {problems[0].removeprefix('$: ')}")
    return data


def _object(option: str, path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    data = _document(option, path)
    if not isinstance(data, dict):
        raise Failure(f"{option} {path} is no JSON object")
    return data


def _evidence(
    caller: Path | None, agent: Path | None, redaction: Path | None, thresholds: list[str] | None, gap_ms: int
) -> Evidence:
    from voicetrace.agentclash import Evidence
    from voicetrace.agentclash.vad import VadSettings

    return Evidence(
        caller_audio=caller,
        agent_audio=agent,
        redaction=_object("--redaction", redaction),
        thresholds=dict(map(_threshold, thresholds or [])),
        vad=VadSettings(min_silence_ms=gap_ms),
    )


def _threshold(text: str) -> tuple[str, tuple[float, float]]:
    name, _, values = text.partition("=")
    warn, _, fail = values.partition(",")
    try:
        return name.strip(), (float(warn), float(fail))
    except ValueError as error:
        raise Failure(f"--threshold must be NAME=WARN,FAIL, not {text}", code=USAGE) from error


def _media_policy(path: Path | None, stems: _Stems) -> dict[str, Any] | None:
    from voicetrace.agentclash import References, measure_separation, source_separation_report

    if path is not None:
        data = _object("--media-policy", path) or {}
        if "type" in data:
            return data
        ratios = data.get("metrics", data)
        if not isinstance(ratios, dict):
            raise Failure(f"--media-policy {path} has no object of ratios")
        return source_separation_report(ratios)
    if stems.speech is None and stems.background is None:
        return None
    if stems.speech is None or stems.background is None:
        raise Failure("separation needs both --speech-stem and --background-stem", code=USAGE)
    references = None
    if stems.speech_reference is not None and stems.background_reference is not None:
        references = References(stems.speech_reference, stems.background_reference)
    elif stems.speech_reference is not None or stems.background_reference is not None:
        raise Failure("a reference needs both --speech-reference and --background-reference", code=USAGE)
    return measure_separation(stems.speech, stems.background, references=references)


def _video_sync(path: Path | None, source: Path | None, translated: Path | None) -> dict[str, Any] | None:
    from voicetrace.agentclash import measure_video_sync, video_sync_report

    if path is not None:
        data = _object("--video-sync", path) or {}
        if "summary" in data:
            return data
        sides = [_segments(path, name, data.get(name)) for name in ("source_segments", "translated_segments")]
        return video_sync_report(*sides)
    if source is None and translated is None:
        return None
    if source is None or translated is None:
        raise Failure("video sync needs both --source-speech and --translated-speech", code=USAGE)
    return measure_video_sync(source, translated)


def _segments(path: Path, name: str, rows: Any) -> list[Any]:
    from voicetrace.agentclash import SpeechSegment

    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Failure(f"--video-sync {path} has no {name}, a list of objects with start_ms and end_ms")
    return [SpeechSegment(row.get("start_ms"), row.get("end_ms"), row.get("source_index")) for row in rows]


def _promotion(
    target: str | None, outcome: str, failure: str, labels: list[str] | None, captured_at: str | None
) -> Promotion | None:
    from voicetrace.agentclash import Promotion, PromotionTarget

    if target is None:
        for name, value in (
            ("--expected-outcome", outcome),
            ("--failure-category", failure),
            ("--label", labels),
        ):
            if value:
                raise Failure(f"{name} needs --promote", code=USAGE)
        return None
    parts = target.split("/")
    if len(parts) != 4 or not all(part.strip() for part in parts):
        raise Failure(f"--promote must be PACK/INPUT_SET/CHALLENGE/CASE, not {target}", code=USAGE)
    return Promotion(PromotionTarget(*parts), outcome, failure, tuple(labels or ()), captured_at or "")


def _store_config(store: str | None, options: list[str] | None) -> dict[str, str]:
    if options and store is None:
        raise Failure("--store-option needs --store", code=USAGE)
    config: dict[str, str] = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise Failure(f"--store-option must be KEY=VALUE, not {option}", code=USAGE)
        config[name] = value
    return config
