"""Collects the tools of published MCP servers, for tests with their schemas. Needs Node with npm, and no login.

    python scripts/mcp_tools.py FOLDER

installs the servers into FOLDER and writes FOLDER/tools.json: a list of {"server", "name", "description",
"parameters"}. The packages and their texts belong to their authors, so none of it is committed. `cargo xtask deep
agents` runs this.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

# Package, version, program, arguments. A server that needs a key gets an invalid one.
SERVERS = [
    ("@modelcontextprotocol/server-everything", "2026.8.31", "mcp-server-everything", []),
    ("@modelcontextprotocol/server-filesystem", "2026.8.31", "mcp-server-filesystem", ["."]),
    ("@modelcontextprotocol/server-memory", "2026.8.31", "mcp-server-memory", []),
    ("@modelcontextprotocol/server-sequential-thinking", "2026.8.31", "mcp-server-sequential-thinking", []),
    ("@modelcontextprotocol/server-github", "2025.4.8", "mcp-server-github", []),
    ("@notionhq/notion-mcp-server", "2.5.2", "notion-mcp-server", []),
    ("@playwright/mcp", "0.0.83", "playwright-mcp", []),
    ("mongodb-mcp-server", "3.0.4", "mongodb-mcp-server", []),
    ("@sentry/mcp-server", "0.36.0", "sentry-mcp", ["--access-token=x"]),
    ("@antv/mcp-server-chart", "0.9.10", "mcp-server-chart", []),
    ("chrome-devtools-mcp", "1.11.0", "chrome-devtools-mcp", []),
    ("@upstash/context7-mcp", "4.1.1", "context7-mcp", []),
    ("firecrawl-mcp", "3.22.2", "firecrawl-mcp", []),
    ("tavily-mcp", "0.2.22", "tavily-mcp", []),
    ("exa-mcp-server", "3.4.1", "exa-mcp-server", []),
]
KEYS = ["GITHUB_PERSONAL_ACCESS_TOKEN", "NOTION_TOKEN", "FIRECRAWL_API_KEY", "TAVILY_API_KEY", "EXA_API_KEY", "SENTRY_ACCESS_TOKEN"]
SECONDS = 60


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    packages = [f"{name}@{version}" for name, version, _, _ in SERVERS]
    installed = folder / "installed.txt"
    if not installed.exists() or installed.read_text() != "\n".join(packages):
        (folder / "package.json").write_text("{}")
        npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--save-exact", *packages]
        subprocess.run(npm, cwd=folder, check=True)
        installed.write_text("\n".join(packages))
    found, silent = [], []
    for package, _, program, arguments in SERVERS:
        try:
            tools = list_tools(folder, program, arguments)
        except (OSError, TimeoutError, ValueError) as error:
            silent.append(f"{package}: {error}")
            continue
        print(f"{len(tools):4} {package}")
        for tool in tools:
            found.append({"server": package, "name": tool["name"], "description": tool.get("description", ""), "parameters": tool["inputSchema"]})
    for line in silent:
        print(f"no answer from {line}")
    (folder / "tools.json").write_text(json.dumps(found))
    print(f"{len(found)} tools of {len(SERVERS) - len(silent)} servers")


def list_tools(folder: Path, program: str, arguments: list[str]) -> list[dict]:
    """The tools of a server that communicates over standard input and output."""
    environment = dict(os.environ, **dict.fromkeys(KEYS, "x"))
    server = subprocess.Popen([folder / "node_modules/.bin" / program, *arguments], cwd=folder, env=environment,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in server.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()

    def say(message: dict) -> None:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()

    def answer(to: int) -> dict:
        while True:
            try:
                line = lines.get(timeout=SECONDS)
            except queue.Empty:
                raise TimeoutError(f"nothing within {SECONDS} s") from None
            if line is None:
                raise ValueError("it ended")
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if message.get("id") == to and "method" not in message:
                if "error" in message:
                    raise ValueError(message["error"])
                return message["result"]

    try:
        capabilities = {"sampling": {}, "elicitation": {}, "roots": {}}
        say({"id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": {"name": "schemas", "version": "1"}}})
        answer(0)
        say({"method": "notifications/initialized"})
        tools, cursor = [], None
        while True:
            say({"id": len(tools) + 1, "method": "tools/list", "params": {"cursor": cursor} if cursor else {}})
            page = answer(len(tools) + 1)
            tools += page["tools"]
            cursor = page.get("nextCursor")
            if not cursor or not page["tools"]:
                return tools
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
