"""A loopback TCP proxy whose answers begin a fixed time after their requests, as a store in a region's would.

    python benchmarks/delay.py PORT UPSTREAM_PORT DELAY_S

Bytes pass through untouched otherwise. Ends when it is terminated.
"""

from __future__ import annotations

import asyncio
import sys

_CHUNK_BYTES = 1 << 18


async def serve(port: int, upstream_port: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream_port, limit=_CHUNK_BYTES)
        not_before_s = 0.0

        async def forth() -> None:
            nonlocal not_before_s
            while data := await reader.read(_CHUNK_BYTES):
                not_before_s = loop.time() + delay_s
                up_writer.write(data)
                await up_writer.drain()

        async def back() -> None:
            while data := await up_reader.read(_CHUNK_BYTES):
                if (wait_s := not_before_s - loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                writer.write(data)
                await writer.drain()

        both = [asyncio.ensure_future(forth()), asyncio.ensure_future(back())]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        for end in (writer, up_writer):
            end.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port, backlog=512, limit=_CHUNK_BYTES)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
