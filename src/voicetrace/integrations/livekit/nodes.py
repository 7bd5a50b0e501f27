# SPDX-License-Identifier: Apache-2.0
"""LLM steps by public hooks only: the `llm_node` of each agent, replaced on the agent's instance.

Used where the private function is not replaced: in `trace_session`, and with releases that were not tested.
It gives the step, its context and its span; the text of a reply that was cut before its first sound is lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from livekit.agents import llm
from opentelemetry import trace
from opentelemetry.trace import Span


class AgentNodes:
    """The agents of one call whose `llm_node` we replaced."""

    def __init__(self, called: Callable[[llm.ChatContext, Span], Any]) -> None:
        self._called = called
        self._agents: weakref.WeakSet[Any] = weakref.WeakSet()

    def follow(self, agent: Any) -> None:
        """Be told of this agent's LLM calls. An instance that has a node of its own is left alone."""
        if agent in self._agents or "llm_node" in vars(agent):
            return
        node, called = agent.llm_node, self._called

        def llm_node(chat_ctx: llm.ChatContext, *args: Any, **kwargs: Any) -> Any:
            # runs inside the llm_node span; what the user's node returns is passed on as it is (T28)
            called(chat_ctx, trace.get_current_span())
            return node(chat_ctx, *args, **kwargs)

        llm_node._voicetrace = self  # type: ignore[attr-defined]  # noqa: SLF001
        agent.llm_node = llm_node
        self._agents.add(agent)

    def leave(self) -> None:
        """Put every agent back as it was."""
        for agent in self._agents:
            if getattr(vars(agent).get("llm_node"), "_voicetrace", None) is self:
                del agent.llm_node
        self._agents.clear()
