"""What an intruder in a plugin's pod asks of the API server, with the token that lies there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .test_manifests import Plugin

PLAIN: Final = "application/json"
MERGE: Final = "application/merge-patch+json"

_SCRIPT: Final = """
import json, ssl, sys, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
token = open(f"{account}/token").read()
context = ssl.create_default_context(cafile=f"{account}/ca.crt")
method, path, media, body = sys.argv[1:]
request = urllib.request.Request("https://10.0.0.1" + path, body.encode(), method=method)
request.add_header("Authorization", f"Bearer {token}")
request.add_header("Content-Type", media)
try:
    print(urllib.request.urlopen(request, context=context).status)
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["message"])
"""


async def with_stolen_token(plugin: Plugin, method: str, path: str, media: str, body: object) -> str:
    """Send a request from within a plugin's pod; return the status, and the message of a refusal."""
    return await plugin.exec("python3", "-c", _SCRIPT, method, path, media, json.dumps(body))
