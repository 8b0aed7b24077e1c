"""Sends a body that is too large. The standard library's client sends all of it first, and still gets the 413."""

import http.client
import sys

for _ in range(3):
    client = http.client.HTTPConnection(sys.argv[1])
    client.request("POST", "/v1/completions", b" " * (33 << 20), {"Content-Type": "application/json"})
    assert client.getresponse().status == 413
