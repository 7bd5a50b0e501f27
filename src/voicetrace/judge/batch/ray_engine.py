# SPDX-License-Identifier: Apache-2.0
"""The same function on Ray Data, for many machines (the ``ray`` extra).

Every actor has one worker process of `pool`, so a call that kills its process or hangs is answered for on
Ray exactly as it is here. The calls' paths must mean the same on every machine.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from voicetrace.judge.batch.pool import map_local
from voicetrace.judge.batch.source import CallRef
from voicetrace.judge.batch.work import JudgeCall, JudgeConfig
from voicetrace.judge.result import CallJudgement


class RayError(RuntimeError):
    """Ray is not installed, or its cluster cannot be used."""


class _Actor:
    """Judges one row at a time; the worker process behind it lives as long as the actor."""

    def __init__(self, judge: JudgeConfig, judge_call: JudgeCall, timeout_s: float | None) -> None:
        self._given: list[CallRef] = []
        self._done = map_local(
            self._calls(), judge=judge, judge_call=judge_call, workers=1, timeout_s=timeout_s
        )

    def _calls(self) -> Iterator[CallRef]:
        while True:
            yield self._given.pop()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self._given.append(row["ref"])
        _, judgement = next(self._done)
        return {"nth": row["nth"], "judgement": judgement.model_dump_json()}


def map_ray(
    refs: Iterable[CallRef],
    *,
    judge: JudgeConfig,
    judge_call: JudgeCall,
    workers: int | None = None,
    timeout_s: float | None = None,
) -> Generator[tuple[CallRef, CallJudgement], None, None]:
    """Judge calls on a Ray cluster: the one of ``RAY_ADDRESS``, else this machine; as they are done.

    One CPU is kept free for reading and writing: on a machine whose every CPU judges, Ray's own steps never
    run.

    Raises:
        RayError: Ray is not installed, or the cluster cannot be used.
    """
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
        import ray.data  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise RayError("the Ray engine needs Ray: pip install 'voicetrace[ray]'") from error

    items = list(refs)
    if not items:
        return
    ours = not ray.is_initialized()
    try:
        if ours:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        cluster: Any = ray
        free = max(1, int(cluster.cluster_resources().get("CPU", 1)) - 1)
        actors = max(1, min(workers or free, free, len(items)))
        rows = [{"nth": nth, "ref": ref} for nth, ref in enumerate(items)]
        # a block is a call: results come one by one, and no actor waits behind another's
        data = ray.data.from_items(rows, override_num_blocks=len(rows))
        actor: Any = _Actor
        done = data.map(
            actor,
            fn_constructor_args=(judge, judge_call, timeout_s),
            compute=ray.data.ActorPoolStrategy(size=actors),
            num_cpus=1,
        )
        for row in done.iter_rows():
            yield items[row["nth"]], CallJudgement.model_validate_json(row["judgement"])
    except ray.exceptions.RayError as error:
        raise RayError(f"Ray cannot go on: {' '.join(str(error).split())[:300]}") from error
    finally:
        if ours and ray.is_initialized():
            ray.shutdown()
