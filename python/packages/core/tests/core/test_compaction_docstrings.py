# Copyright (c) Microsoft. All rights reserved.

"""What takes part in compaction says how it composes: scope, order, provenance, stores."""

from __future__ import annotations

import inspect

import pytest

import agent_framework

_SAYS = {
    "ChatMiddleware": ["compaction", "order", "record_superseded", "per-service-call"],
    "CompactionStrategy": ["in place", "summary", "SUMMARY_OF_MESSAGE_IDS_KEY", "function call"],
    "CompactionProvider": [
        "before_strategy",
        "after_strategy",
        "turn",
        "order",
        "save_messages",
        "replace_messages",
        "retain_excluded",
        "history_source_id",
    ],
    "HistoryProvider": ["save_messages", "replace_messages", "CompactionProvider", "summar"],
    "AgentLoopMiddleware": ["CompactionProvider", "turn", "after_run_once_per_turn"],
    "create_harness_agent": ["compaction", "per-service-call", "order", "turn"],
}


@pytest.mark.contract("C19")
@pytest.mark.parametrize("name", _SAYS)
def test_a_docstring_says_how_its_subject_composes(name: str) -> None:
    text = " ".join((inspect.getdoc(getattr(agent_framework, name)) or "").split())

    assert [word for word in _SAYS[name] if word.casefold() not in text.casefold()] == []


@pytest.mark.contract("C19")
@pytest.mark.parametrize("name", ["record_superseded", "project_included_messages"])
def test_a_new_public_function_is_documented(name: str) -> None:
    function = getattr(agent_framework, name, None)
    assert function is not None, f"agent_framework has no {name!r}"
    text = inspect.getdoc(function) or ""

    assert "Args:" in text
    assert "Returns:" in text


@pytest.mark.contract("C19")
@pytest.mark.parametrize("provider", ["HistoryProvider", "InMemoryHistoryProvider", "FileHistoryProvider"])
def test_replacing_messages_is_documented(provider: str) -> None:
    method = getattr(getattr(agent_framework, provider), "replace_messages", None)
    assert method is not None, f"{provider} has no 'replace_messages'"

    assert inspect.getdoc(method)


@pytest.mark.contract("C19")
def test_the_parameter_of_the_provider_is_documented() -> None:
    text = inspect.getdoc(agent_framework.CompactionProvider.__init__) or ""

    assert "retain_excluded:" in text
