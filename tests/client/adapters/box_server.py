"""An MCP server for the tests, run as a process of its own. What it runs it writes to the file that it is given."""

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("box")
RAN = Path(sys.argv[1])


def ran(what: str) -> None:
    with RAN.open("a") as file:
        file.write(what + "\n")


@server.tool()
def read(path: str) -> str:
    ran(f"read {path}")
    return f"the text of {path}"


@server.tool()
def shell(command: str) -> str:
    ran(command)
    return "done"


@server.tool()
def refund(amount: int) -> str:
    ran(f"refund {amount}")
    return f"paid {amount}"


@server.tool()
def fail() -> str:
    raise ValueError("no such thing")


if __name__ == "__main__":
    server.run("stdio")
