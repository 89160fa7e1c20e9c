from tidemill.sdk.async_client import AsyncBatch as AsyncBatch
from tidemill.sdk.async_client import AsyncBatches as AsyncBatches
from tidemill.sdk.async_client import AsyncClient as AsyncClient
from tidemill.sdk.claims import LargePayloads as LargePayloads
from tidemill.sdk.client import Client as Client
from tidemill.sdk.consuming.batches import Batch as Batch
from tidemill.sdk.consuming.batches import Batches as Batches
from tidemill.sdk.errors import ClientError as ClientError
from tidemill.sdk.publishing.hot_keys import HotKeys as HotKeys
from tidemill.sdk.queues.jobs import AsyncJob as AsyncJob
from tidemill.sdk.queues.jobs import Job as Job
from tidemill.sdk.queues.queue import AsyncQueue as AsyncQueue
from tidemill.sdk.queues.queue import Queue as Queue
from tidemill.sdk.records import Delivery as Delivery
from tidemill.sdk.records import NewRecord as NewRecord
from tidemill.sdk.records import Record as Record
from tidemill.sdk.records import to_json as to_json
from tidemill.sdk.stopping import stop_on_sigterm as stop_on_sigterm

__version__: str
