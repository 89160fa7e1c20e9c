"""The shell around what decides: asyncio, sockets, files. `node.py` wires the parts; the folders are the parts."""
