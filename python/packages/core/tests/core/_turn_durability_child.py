# Copyright (c) Microsoft. All rights reserved.

"""Continues a stored session in a process of its own and prints what its model was sent, as JSON.

Run as ``python _turn_durability_child.py STORAGE_PATH SESSION_ID FORMAT``. It uses nothing that a release without the
turn scope lacks, so that such a release can be the one that reads the session.
"""

import asyncio
import json
import sys
from pathlib import Path

from agent_framework import Agent, CompactionProvider, FileSessionStore, InMemoryHistoryProvider

sys.path.insert(0, str(Path(__file__).parent))

from _turn_scope_helpers import ScriptedChatClient, flattened, stored_messages, texts


async def main(storage_path: str, session_id: str, serialization_format: str) -> None:
    store = FileSessionStore(storage_path, serialization_format=serialization_format)  # type: ignore[arg-type]
    session = await store.get(session_id)
    assert session is not None
    client = ScriptedChatClient(["continued"])
    agent = Agent(
        client=client,
        context_providers=[
            CompactionProvider(),
            InMemoryHistoryProvider(skip_excluded=True),
        ],
    )

    await agent.run("go on", session=session)

    sent = client.requests[0].messages
    json.dump(
        {
            "flattened": flattened(sent),
            "texts": texts(sent),
            "call_ids": [
                content.call_id for message in sent for content in message.contents if content.type == "function_call"
            ],
            "stored": len(stored_messages(session)),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
