"""Runs the image mover of `docs/compaction.md` in a long tool loop; prints what came of it as JSON.

`image_mover_run.py <strategy> <stream>` with the example importable as `image_mover`, on any core that has it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import AsyncIterable, Awaitable, Sequence
from typing import Any

warnings.filterwarnings("ignore")

from agent_framework import (  # noqa: E402
    GROUP_ANNOTATION_KEY,
    SUMMARY_OF_MESSAGE_IDS_KEY,
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FileHistoryProvider,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    SummarizationStrategy,
    ToolResultCompactionStrategy,
    tool,
)
from image_mover import ImageMover  # noqa: E402

CALLS = 11


@tool(approval_mode="never_require")
def look(page: int) -> list[Content]:
    """Return a page as text and as a picture."""
    return [Content.from_text(f"page {page}"), Content.from_data(f"picture {page}".encode(), "image/png")]


def images(message: Message) -> int:
    """Return how many images a message has, also in its results."""
    every = [item for content in message.contents for item in (content, *(content.items or []))]
    return sum(bool(item.media_type) for item in every)


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A model that looks at one page after the other, and notes what it is shown."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.requests: list[list[Message]] = []

    def answer(self, messages: Sequence[Message]) -> list[Content]:
        """Ask for the next page."""
        self.requests.append(list(messages))
        number = len(self.requests)
        if number > CALLS:
            return [Content.from_text("all is read")]
        return [Content.from_function_call(f"call-{number}", "look", arguments={"page": number})]

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **kwargs: Any
    ) -> Awaitable[ChatResponse] | ResponseStream[ChatResponseUpdate, ChatResponse]:
        async def updates() -> AsyncIterable[ChatResponseUpdate]:
            yield ChatResponseUpdate(contents=self.answer(messages), role="assistant")

        async def response() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", self.answer(messages))])

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates) if stream else response()


class Summarizer(BaseChatClient):
    """A model that summarizes."""

    def _inner_get_response(self, **kwargs: Any) -> Awaitable[ChatResponse]:
        async def response() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", ["what was on the pages"])])

        return response()


def is_summary(message: Message) -> bool:
    """Return whether a message is a summary."""
    return bool((message.additional_properties.get(GROUP_ANNOTATION_KEY) or {}).get(SUMMARY_OF_MESSAGE_IDS_KEY))


async def main(strategy: str, stream: bool) -> dict[str, Any]:
    """Run the loop and the next turn."""
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("agent_framework").addHandler(handler)
    client = Client(middleware=[ImageMover()])
    strategies = {
        "summarization": SummarizationStrategy(client=Summarizer(), target_count=4, threshold=2),
        "tool_results": ToolResultCompactionStrategy(keep_last_tool_call_groups=1),
    }
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(
            client=client,
            tools=[look],
            context_providers=[FileHistoryProvider(folder)],
            compaction_strategy=strategies[strategy],
        )
        session = agent.create_session()
        for question in ("Read the pages.", "And now?"):
            if stream:
                async for _ in agent.run(question, session=session, stream=True):
                    pass
            else:
                await agent.run(question, session=session)
        stored = await FileHistoryProvider(folder).get_messages(session.session_id)
    return {
        "images_in_tool_messages": sum(images(m) for request in client.requests for m in request if m.role == "tool"),
        "images_in_user_messages": [sum(images(m) for m in request if m.role == "user") for request in client.requests],
        "messages": [len(request) for request in client.requests],
        "stored_images": sum(images(message) for message in stored if message.role == "tool"),
        "stored_moved": sum(images(message) for message in stored if message.role != "tool"),
        "stored_summaries": sum(map(is_summary, stored)),
        "logged": logged,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2] == "stream"))))  # noqa: T201
