"""A TCP proxy that delays what passes through it, each way, and does not limit how much does.

What arrives gets a time at which it is due, and waits in a queue until then, while more arrives behind it: like a long
wire, and unlike a sleep for every read.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any


class DelayProxy:
    """Listens on a port of its own, in a thread of its own. A context manager.

    Args:
        target: ``host:port`` that it passes everything on to.
        delay: seconds in each direction; a round trip takes twice that.
    """

    def __init__(self, target: str, delay: float) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._delay = delay
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.address = ""

    def __enter__(self) -> DelayProxy:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
            await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))
        except asyncio.CancelledError:
            # The proxy ends. asyncio would log it as an error of the connection.
            pass

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._send(queue, writer))
        try:
            while data := await reader.read(1 << 16):
                queue.put_nowait((self._loop.time() + self._delay, data))
        except ConnectionError:
            pass
        queue.put_nowait((self._loop.time() + self._delay, b""))
        await sender

    async def _send(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - self._loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
