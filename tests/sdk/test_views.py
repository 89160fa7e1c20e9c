"""`client.views`: made, consumed, changed and deleted from a program."""

from __future__ import annotations

import asyncio

import pytest

from tidemill import AsyncClient, Client
from tidemill.sdk.errors import ClientError
from tidemill.sdk.views import View
from tidemill.testing import InProcessBroker


def _texts(client: Client, topic: str, group: str, count: int) -> list[str | None]:
    found: list[str | None] = []
    with client.consume(topic, group=group) as batches:
        for batch in batches:
            found += [record.text() for record in batch]
            if len(found) >= count:
                return found
    raise AssertionError("the iterator ended")


def test_a_view_is_consumed_like_a_topic(client: Client, topic: str, name: str) -> None:
    client.views.create(f"{name}-eu", topic, "region = 'eu'")
    for region in ("us", "eu", "us", "eu"):
        client.publish(topic, region, headers={"region": region})
    client.flush()
    assert _texts(client, f"{name}-eu", name, 2) == ["eu", "eu"]
    assert View(f"{name}-eu", topic, "region = 'eu'") in client.views.list()
    client.views.alter(f"{name}-eu", "region = 'us'")
    assert _texts(client, f"{name}-eu", f"{name}-again", 2) == ["us", "us"]
    client.views.delete(f"{name}-eu")
    assert all(view.name != f"{name}-eu" for view in client.views.list())


def test_a_bad_filter_is_refused_with_the_reason(client: Client, topic: str, name: str) -> None:
    with pytest.raises(ClientError, match="cannot have this filter"):
        client.views.create(f"{name}-bad", topic, "region ~ 'eu'")


def test_publishing_to_a_view_is_refused_with_the_way_out(client: Client, topic: str, name: str) -> None:
    client.views.create(f"{name}-eu", topic, "region = 'eu'")
    with pytest.raises(ClientError, match="publish to the source of the view"):
        client.publish(f"{name}-eu", "x").result(30)
    client.views.delete(f"{name}-eu")


def test_a_topic_is_not_deleted_as_a_view(client: Client, topic: str) -> None:
    with pytest.raises(ClientError, match="not a view"):
        client.views.delete(topic)
    with pytest.raises(ClientError, match="not a view"):
        client.views.alter(topic, "key exists")


def test_views_of_the_async_client(shared: InProcessBroker, topic: str, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared.bootstrap) as client:
            await client.views.create(f"{name}-async", topic, "key exists")
            await client.views.alter(f"{name}-async", "key = 'a'")
            assert View(f"{name}-async", topic, "key = 'a'") in await client.views.list()
            await client.views.delete(f"{name}-async")

    asyncio.run(main())
