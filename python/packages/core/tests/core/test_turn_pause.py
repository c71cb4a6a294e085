# Copyright (c) Microsoft. All rights reserved.

"""A pause is not a boundary: the run that resolves it, or talks past it, ends the turn (T4)."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent_framework import (
    Agent,
    AgentLoopMiddleware,
    AgentResponse,
    ChatResponse,
    CompactionProvider,
    Content,
    ContinuationToken,
    Executor,
    InMemoryHistoryProvider,
    Message,
    ToolApprovalMiddleware,
    ToolResultCompactionStrategy,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowContext,
    create_harness_agent,
    handler,
    response_handler,
    tool,
)
from agent_framework.exceptions import UserInputRequiredException

from ._turn_scope_helpers import (
    ScriptedChatClient,
    SelfRunningAgent,
    TurnRecorder,
    answer_to,
    both_modes,
    both_orders,
    call_tool,
    flattened,
    in_order,
    iterate,
    requests_of,
    run_turn,
    stored_messages,
    texts,
)

TOKEN = ContinuationToken(operation="long running")  # type: ignore[typeddict-unknown-key]

in_a_loop_or_not = pytest.mark.parametrize("in_a_loop", [False, True], ids=["no_loop", "loop"])
both_persistences = pytest.mark.parametrize("per_service_call", [False, True], ids=["per_run", "per_service_call"])


@tool(approval_mode="always_require")
def guarded(number: int) -> str:
    """Do something that needs an approval."""
    return f"did {number}"


@tool(approval_mode="never_require")
def consenting() -> str:
    """Needs the user's consent somewhere else first."""
    raise UserInputRequiredException(contents=[consent_request()])


def consent_request() -> Content:
    return Content.from_oauth_consent_request(consent_link="https://example.com/consent")


def three_calls() -> list[Content]:
    return [call_tool("guarded", f"call-{number}", number=number) for number in (1, 2, 3)]


def pending_token(text: str = "working on it") -> ChatResponse:
    return ChatResponse(
        messages=[Message(role="assistant", contents=[text], message_id=f"answer-{text}")], continuation_token=TOKEN
    )


def loop(in_a_loop: bool) -> list[AgentLoopMiddleware]:
    """A loop that goes on for as long as it is let, or none."""
    return [AgentLoopMiddleware(lambda **kwargs: True, max_iterations=4)] if in_a_loop else []


def once_it_is_done(*, last_result: AgentResponse, **kwargs: Any) -> bool:
    return "done" not in last_result.text


# region T4: an approval


@pytest.mark.contract("T4")
@both_modes
@both_orders
@both_persistences
@in_a_loop_or_not
async def test_nothing_fires_at_an_approval_request(
    stream: bool, history_first: bool, per_service_call: bool, in_a_loop: bool
) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient([call_tool("guarded", "call-1", number=1), "done"])
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=loop(in_a_loop),
        require_per_service_call_history_persistence=per_service_call,
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert [request.type for request in requests_of(response)] == ["function_approval_request"]
    assert client.calls == 1
    assert recorder.count == 0


@pytest.mark.contract("T4")
@pytest.mark.parametrize("approved", [True, False], ids=["approved", "rejected"])
@both_modes
@both_orders
@both_persistences
@in_a_loop_or_not
async def test_the_run_that_resolves_an_approval_fires_once(
    stream: bool, history_first: bool, per_service_call: bool, in_a_loop: bool, approved: bool
) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([call_tool("guarded", "call-1", number=1), "done"]),
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(once_it_is_done)] if in_a_loop else [],
        require_per_service_call_history_persistence=per_service_call,
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    at_the_pause = recorder.count
    response = await run_turn(agent, answer_to(*requests_of(paused), approved=approved), stream=stream, session=session)

    assert response.messages[-1].text == "done"
    assert (at_the_pause, recorder.count) == (0, 1)


@pytest.mark.contract("T4")
@both_modes
@both_orders
async def test_what_was_said_before_the_pause_is_stored_at_the_pause(stream: bool, history_first: bool) -> None:
    """A guard, green without the turn scope too."""
    agent = Agent(
        client=ScriptedChatClient([call_tool("guarded", "call-1", number=1), "done"]),
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), TurnRecorder()),
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)

    assert texts(stored_messages(session)) == ["task"]
    assert "call-1" in [content.call_id for message in stored_messages(session) for content in message.contents]


@pytest.mark.contract("T4")
@both_modes
async def test_three_approvals_in_a_row_fire_once(stream: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([
            call_tool("guarded", "call-1", number=1),
            call_tool("guarded", "call-2", number=2),
            call_tool("guarded", "call-3", number=3),
            "done",
        ]),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), recorder],
    )
    session = agent.create_session()
    fired: list[int] = []

    response = await run_turn(agent, "task", stream=stream, session=session)
    fired.append(recorder.count)
    while requests := requests_of(response):
        response = await run_turn(agent, answer_to(*requests), stream=stream, session=session)
        fired.append(recorder.count)

    assert fired == [0, 0, 0, 1]


@pytest.mark.contract("T4")
@both_modes
@in_a_loop_or_not
async def test_three_queued_approvals_fire_once(stream: bool, in_a_loop: bool) -> None:
    """``ToolApprovalMiddleware`` shows one request at a time and answers for the agent while it has more."""
    recorder = TurnRecorder()
    client = ScriptedChatClient([three_calls(), "done"])
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=[*([AgentLoopMiddleware(once_it_is_done)] if in_a_loop else []), ToolApprovalMiddleware()],
    )
    session = agent.create_session()
    fired: list[int] = []

    response = await run_turn(agent, "task", stream=stream, session=session)
    fired.append(recorder.count)
    while requests := requests_of(response):
        response = await run_turn(agent, answer_to(*requests), stream=stream, session=session)
        fired.append(recorder.count)

    assert client.calls == 2
    assert fired == [0, 0, 0, 1]


@pytest.mark.contract("T4")
@both_modes
async def test_three_queued_approvals_of_a_harness_agent_fire_once(stream: bool) -> None:
    recorder = TurnRecorder()
    client = ScriptedChatClient([three_calls(), "done"])
    agent = create_harness_agent(
        client, tools=[guarded], context_providers=[recorder], disable_file_memory=True, disable_web_search=True
    )
    session = agent.create_session()
    fired: list[int] = []

    response = await run_turn(agent, "task", stream=stream, session=session)
    fired.append(recorder.count)
    while requests := requests_of(response):
        response = await run_turn(agent, answer_to(*requests), stream=stream, session=session)
        fired.append(recorder.count)

    assert fired == [0, 0, 0, 1]


@pytest.mark.contract("T4")
@both_modes
@both_orders
@in_a_loop_or_not
async def test_a_user_who_drops_the_approval_ends_the_turn(stream: bool, history_first: bool, in_a_loop: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([call_tool("guarded", "call-1", number=1), "done"]),
        tools=[guarded],
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(once_it_is_done)] if in_a_loop else [],
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)
    at_the_pause = recorder.count
    response = await run_turn(agent, "never mind, something else", stream=stream, session=session)

    assert response.messages[-1].text == "done"
    assert (at_the_pause, recorder.count) == (0, 1)


@pytest.mark.contract("T4")
@both_modes
@in_a_loop_or_not
async def test_the_pending_call_is_not_compacted_away(stream: bool, in_a_loop: bool) -> None:
    """With ``keep_last_tool_call_groups=0`` compaction would replace it by "[Tool results: no results]"."""
    history = InMemoryHistoryProvider(skip_excluded=True)
    client = ScriptedChatClient([call_tool("guarded", "call-1", number=1), "done"])
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=[
            CompactionProvider(after_strategy=ToolResultCompactionStrategy(keep_last_tool_call_groups=0)),
            history,
        ],
        middleware=[AgentLoopMiddleware(once_it_is_done)] if in_a_loop else [],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    contents = [content for message in client.requests[1].messages for content in message.contents]
    assert flattened(client.requests[1].messages) == 0
    assert [content.call_id for content in contents if content.type == "function_call"] == ["call-1"]
    assert [content.result for content in contents if content.type == "function_result"] == ["did 1"]


@pytest.mark.contract("T4")
@both_modes
@in_a_loop_or_not
async def test_the_resumed_run_still_sees_the_task(stream: bool, in_a_loop: bool) -> None:
    async def exclude_everything(messages: list[Message]) -> bool:
        for message in messages:
            message.additional_properties["_excluded"] = True
        return True

    client = ScriptedChatClient([call_tool("guarded", "call-1", number=1), "done"])
    agent = Agent(
        client=client,
        tools=[guarded],
        context_providers=[
            CompactionProvider(after_strategy=exclude_everything),
            InMemoryHistoryProvider(skip_excluded=True),
        ],
        middleware=[AgentLoopMiddleware(once_it_is_done)] if in_a_loop else [],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    await run_turn(agent, answer_to(*requests_of(paused)), stream=stream, session=session)

    assert "task" in texts(client.requests[1].messages)


@pytest.mark.contract("T4")
@pytest.mark.contract("T9")
@both_modes
async def test_the_boundary_after_a_pause_has_what_the_closing_run_was_given(stream: bool) -> None:
    """Not what was said before the pause: that was another ``agent.run``."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([["first", call_tool("guarded", "call-1", number=1)], "done"]),
        tools=[guarded],
        context_providers=[InMemoryHistoryProvider(), recorder],
    )
    session = agent.create_session()

    paused = await run_turn(agent, "task", stream=stream, session=session)
    answer = answer_to(*requests_of(paused))
    await run_turn(agent, [answer, Message(role="user", contents=["and hurry"])], stream=stream, session=session)

    assert recorder.boundary.input_texts == ["and hurry"]
    assert recorder.boundary.answers == ["done"]


# endregion
# region T4: any other request, and a continuation token


@pytest.mark.contract("T4")
@both_modes
@both_orders
@both_persistences
@in_a_loop_or_not
async def test_nothing_fires_at_another_user_input_request(
    stream: bool, history_first: bool, per_service_call: bool, in_a_loop: bool
) -> None:
    """Here the model's own request for consent; a loop would otherwise talk over it."""
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([consent_request()]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=loop(in_a_loop),
        require_per_service_call_history_persistence=per_service_call,
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert "oauth_consent_request" in [request.type for request in requests_of(response)]
    assert recorder.count == 0


@pytest.mark.contract("T4")
@both_modes
async def test_a_loop_stops_at_another_user_input_request(stream: bool) -> None:
    client = ScriptedChatClient([consent_request()])
    agent = Agent(client=client, context_providers=[InMemoryHistoryProvider()], middleware=loop(True))

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 1
    assert [request.consent_link for request in requests_of(response)] == ["https://example.com/consent"]
    assert texts(response.messages) == []


@pytest.mark.contract("T4")
@pytest.mark.parametrize("pause", ["consent", "token"])
@both_modes
async def test_the_judge_is_not_asked_about_a_pause(stream: bool, pause: str) -> None:
    judge = ScriptedChatClient(["VERDICT: MORE"])
    agent = Agent(
        client=ScriptedChatClient([consent_request() if pause == "consent" else pending_token()]),
        context_providers=[InMemoryHistoryProvider()],
        middleware=[AgentLoopMiddleware.with_judge(judge)],
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert judge.calls == 0


@pytest.mark.contract("T4")
@both_modes
@in_a_loop_or_not
async def test_nothing_fires_when_a_tool_needs_the_user(stream: bool, in_a_loop: bool) -> None:
    """As an agent that is used as a tool does when it needs the user."""
    recorder = TurnRecorder()
    client = ScriptedChatClient([call_tool("consenting", "call-1"), "done"])
    agent = Agent(
        client=client,
        tools=[consenting],
        context_providers=[InMemoryHistoryProvider(), recorder],
        middleware=loop(in_a_loop),
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert [request.type for request in requests_of(response)] == ["oauth_consent_request"]
    assert client.calls == 1
    assert recorder.count == 0


@pytest.mark.contract("T4")
@both_modes
@both_orders
@in_a_loop_or_not
async def test_the_run_after_another_user_input_request_fires_once(
    stream: bool, history_first: bool, in_a_loop: bool
) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([consent_request(), "done"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(once_it_is_done)] if in_a_loop else [],
    )
    session = agent.create_session()

    await run_turn(agent, "task", stream=stream, session=session)
    at_the_pause = recorder.count
    await run_turn(agent, "I have given my consent", stream=stream, session=session)

    assert (at_the_pause, recorder.count) == (0, 1)


@pytest.mark.contract("T4")
@both_modes
@both_orders
@both_persistences
@in_a_loop_or_not
async def test_nothing_fires_at_a_continuation_token(
    stream: bool, history_first: bool, per_service_call: bool, in_a_loop: bool
) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([pending_token()]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=loop(in_a_loop),
        require_per_service_call_history_persistence=per_service_call,
    )

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.count == 0


@pytest.mark.contract("T4")
@pytest.mark.parametrize("return_final_only", [False, True], ids=["aggregated", "final_only"])
@both_modes
async def test_a_loop_stops_at_a_continuation_token_and_hands_it_over(stream: bool, return_final_only: bool) -> None:
    client = ScriptedChatClient(["first", pending_token()])
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider()],
        middleware=[
            AgentLoopMiddleware(lambda **kwargs: True, max_iterations=4, return_final_only=return_final_only),
        ],
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert client.calls == 2
    assert response.continuation_token == TOKEN


@pytest.mark.contract("T4")
@both_modes
async def test_a_loop_hands_over_the_update_with_the_continuation_token(stream: bool) -> None:
    """Whoever streams sees the token in an update, too; whoever does not sees it in the response."""
    agent = Agent(
        client=ScriptedChatClient([pending_token()]),
        context_providers=[InMemoryHistoryProvider()],
        middleware=loop(True),
    )

    if stream:
        updates = [update async for update in agent.run("task", stream=True, session=agent.create_session())]
        assert updates[-1].continuation_token == TOKEN
    else:
        response = await agent.run("task", session=agent.create_session())
        assert response.continuation_token == TOKEN


@pytest.mark.contract("T4")
@both_modes
@both_orders
@in_a_loop_or_not
async def test_the_run_that_polls_to_the_end_fires_once(stream: bool, history_first: bool, in_a_loop: bool) -> None:
    recorder = TurnRecorder()
    agent = Agent(
        client=ScriptedChatClient([pending_token(), pending_token("still working"), "done"]),
        context_providers=in_order(history_first, InMemoryHistoryProvider(), recorder),
        middleware=[AgentLoopMiddleware(once_it_is_done)] if in_a_loop else [],
    )
    session = agent.create_session()
    fired: list[int] = []

    response = await run_turn(agent, "task", stream=stream, session=session)
    fired.append(recorder.count)
    while (token := response.continuation_token) and len(fired) < 5:
        response = await run_turn(agent, None, stream=stream, session=session, options={"continuation_token": token})
        fired.append(recorder.count)

    assert fired == [0, 0, 1]


@pytest.mark.contract("T4")
@both_modes
async def test_a_loop_sends_the_callers_continuation_token_in_its_first_iteration_only(stream: bool) -> None:
    """The operation that it names has ended by then; a second poll would get the old answer again."""
    client = ScriptedChatClient(["first", "second"])
    agent = Agent(
        client=client,
        context_providers=[InMemoryHistoryProvider()],
        middleware=[AgentLoopMiddleware(iterate(2), max_iterations=None)],
    )

    await run_turn(agent, None, stream=stream, session=agent.create_session(), options={"continuation_token": TOKEN})

    assert [request.options.get("continuation_token") for request in client.requests] == [TOKEN, None]


@pytest.mark.contract("T4")
@pytest.mark.parametrize("pause", ["consent", "token"])
@both_modes
async def test_nothing_fires_when_an_agent_with_its_own_run_loop_waits(stream: bool, pause: str) -> None:
    class WaitingAgent(SelfRunningAgent):
        async def _run_after_providers(self, *, session: Any, context: Any) -> None:
            message = Message(role="assistant", contents=[consent_request() if pause == "consent" else "working"])
            context._response = AgentResponse(
                messages=[message], continuation_token=TOKEN if pause == "token" else None
            )
            await super()._run_after_providers(session=session, context=context)

    recorder = TurnRecorder()
    agent = WaitingAgent(context_providers=[InMemoryHistoryProvider(), recorder])

    await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert recorder.count == 0


@pytest.mark.contract("T4")
@both_modes
async def test_nothing_fires_when_a_workflow_agent_waits_for_the_user(stream: bool) -> None:
    """Only for what it hands on as a ``user_input_request``; its generic ``request_info`` call is none."""

    class Ask(Executor):
        @handler
        async def ask(self, messages: list[Message], ctx: WorkflowContext) -> None:
            await ctx.request_info(consent_request(), str)

        @response_handler
        async def done(self, original: Content, answer: str, ctx: WorkflowContext[Any, AgentResponse]) -> None:
            await ctx.yield_output(AgentResponse(messages=[Message(role="assistant", contents=["done"])]))

    recorder = TurnRecorder()
    agent = WorkflowAgent(
        WorkflowBuilder(start_executor=Ask(id="ask")).build(),
        context_providers=[InMemoryHistoryProvider(), recorder],
    )

    response = await run_turn(agent, "task", stream=stream, session=agent.create_session())

    assert [request.type for request in requests_of(response)] == ["oauth_consent_request"]
    assert recorder.count == 0


@pytest.mark.contract("T4")
@both_modes
@pytest.mark.parametrize(
    "contents",
    [
        [call_tool("guarded", "call-1", number=1)],
        [call_tool("guarded", "call-1", number=1), call_tool("guarded", "call-2", number=2)],
    ],
    ids=["one", "two"],
)
async def test_a_loop_hands_the_pending_requests_over_unchanged(stream: bool, contents: Sequence[Content]) -> None:
    """As the agent without the loop does; the loop adds nothing to them and nothing after them."""

    def make(middleware: list[AgentLoopMiddleware]) -> Agent:
        return Agent(
            client=ScriptedChatClient([contents]),
            tools=[guarded],
            context_providers=[InMemoryHistoryProvider()],
            middleware=middleware,
        )

    plain, looped = make([]), make(loop(True))

    expected = await run_turn(plain, "task", stream=stream, session=plain.create_session())
    response = await run_turn(looped, "task", stream=stream, session=looped.create_session())

    assert [request.to_dict() for request in requests_of(response)] == [
        request.to_dict() for request in requests_of(expected)
    ]
    assert [[content.type for content in message.contents] for message in response.messages] == [
        [content.type for content in message.contents] for message in expected.messages
    ]


# endregion
