"""Measures streams under a JSON schema beside free ones: gpu-guided.py URL [CLIENTS [SECONDS]].

Half of the clients (64) ask for an object of 20 keys, the other half for free text, all at the same time for some seconds
(15). Then one client of either kind is alone. The last line is JSON. A server that gives each stream a token in each
step has a ratio of about 1, and more if it appends tokens that a schema forces. Without running ahead it is about 0.5.
"""

import json
import sys
import threading
import time
import urllib.request

KINDS = [{"type": "integer", "minimum": 0, "maximum": 99}, {"type": "boolean"}, {"enum": ["low", "middle", "high"]}]
PROPERTIES = {f"field_number_{i:02}": KINDS[i % len(KINDS)] for i in range(20)}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": list(PROPERTIES), "additionalProperties": False}
MAX_TOKENS = 160
WARM_UP_SECONDS = 3


def ask(url, model, number, is_guided):
    """The number of tokens of an answer."""
    body = {"model": model, "prompt": f"Report {number}: ", "max_tokens": MAX_TOKENS, "seed": number}
    body |= {"structured_outputs": {"json": SCHEMA}} if is_guided else {"ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def measure(url, model, kinds, seconds):
    """Tokens per second of one stream of each kind: a client for each of `kinds`, true for guided ones."""
    begin = time.monotonic() + WARM_UP_SECONDS
    counts = {kind: [0, 0.0] for kind in kinds}
    lock = threading.Lock()

    def client(number, is_guided):
        asked = 0
        while (started := time.monotonic()) < begin + seconds:
            tokens = ask(url, model, number + 1000 * asked, is_guided)
            asked += 1
            if started >= begin:
                with lock:
                    counts[is_guided][0] += tokens
                    counts[is_guided][1] += time.monotonic() - started

    clients = [threading.Thread(target=client, args=of) for of in enumerate(kinds)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    return {kind: tokens / max(taken, 1e-9) for kind, (tokens, taken) in counts.items()}


def main():
    url, clients, seconds = sys.argv[1].rstrip("/"), int((sys.argv[2:] or [64])[0]), float((sys.argv[3:] or [15])[0])
    model = json.load(urllib.request.urlopen(url + "/v1/models", timeout=10))["data"][0]["id"]
    together = measure(url, model, [number % 2 == 0 for number in range(clients)], seconds)
    guided, free = (measure(url, model, [kind], seconds / 3)[kind] for kind in (True, False))
    ratio = together[True] / together[False]
    print(f"= guided {together[True]:.1f}, free {together[False]:.1f} tok/s a stream of {clients}: ratio {ratio:.2f}; "
          f"alone {guided:.1f} and {free:.1f}")
    print(json.dumps({"clients": clients, "guided": together[True], "free": together[False], "ratio": ratio,
                      "guided_alone": guided, "free_alone": free}))


main()
