"""Chats with tool calls. The system turn has the tools' signatures, and later turns have their results."""

import topics
import words as w
from topics import dumps, say

ACTIONS = "open close start stop find play order book lock check clean move delete create update count rent sell paint ring".split()
PARAMETERS = {
    "name": ("string", lambda r: topics.name(r)),
    "city": ("string", lambda r: r.choice(w.CITIES)),
    "color": ("string", lambda r: r.choice("red green blue yellow black white".split())),
    "title": ("string", lambda r: r.choice(w.NOUNS).capitalize()),
    "code": ("string", lambda r: topics.made_up(r, 1, 3)),
    "day": ("string", lambda r: r.choice(w.DAYS)),
    "number": ("integer", lambda r: r.randint(0, 999)),
    "level": ("integer", lambda r: r.randint(0, 20)),
    "amount": ("integer", lambda r: r.randint(1, 99)),
}
WEATHER = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"]


def function(r, name, description, parameters):
    """A signature as clients send it. The order of its keys varies, as it does between clients."""
    properties = {k: {"type": t, "description": d} if d else {"type": t} for k, t, d in parameters}
    schema = {"type": "object", "properties": properties, "required": [k for k, _, _ in parameters]}
    body = {"name": name, "description": description, "parameters": schema}
    if r.random() < 0.15:
        body = {"description": description, "name": name, "parameters": schema}
    if r.random() < 0.1:
        del body["description"]
    return {"type": "function", "function": body}


def weather(r):
    key = r.choice(["city", "city", "city", "location"])
    name = r.choice(["get_weather", "get_weather", "get_weather", "weather", "get_current_weather"])
    signature = function(r, name, r.choice(["Get the weather of a city.", "Get the current weather", "Weather in a city"]), [(key, "string", r.choice(["", "The city"]))])

    def use(r):
        city = r.choice(w.CITIES) if r.random() < 0.7 else topics.made_up(r).capitalize()
        t, sky = r.randint(-10, 38), r.choice(WEATHER)
        question = topics.ask(r, f"What is the weather in {city}?", f"What's the weather in {city}?", f"How is the weather in {city}?", f"Weather in {city}?", f"Is it cold in {city}?",
                              f"What is the weather like in {city} today?", f"Tell me the weather in {city}.")
        result = r.choice([dumps({"temperature": t, "condition": sky}), dumps({"city": city, "temperature": t, "condition": sky}), f"{t} degrees, {sky}"])
        return question, {key: city}, result, f"It is {t} degrees and {sky} in {city}."

    return signature, use


def clock(r):
    signature = function(r, "get_time", r.choice(["Get the time in a city.", "Current time"]), [("city", "string", "")])

    def use(r):
        city, time = r.choice(w.CITIES), f"{r.randint(0, 23):02}:{r.randint(0, 59):02}"
        question = topics.ask(r, f"What time is it in {city}?", f"Tell me the time in {city}.", f"How late is it in {city}?")
        return question, {"city": city}, r.choice([dumps({"time": time}), time]), f"It is {time} in {city}."

    return signature, use


def adder(r):
    name = r.choice(["add", "add", "calculate_sum", "multiply"])
    word = "times" if name == "multiply" else "plus"
    signature = function(r, name, f"{'Multiply' if word == 'times' else 'Add'} two numbers.", [("a", "integer", ""), ("b", "integer", "")])

    def use(r):
        a, b = r.randint(0, 999), r.randint(0, 999)
        c = a * b if word == "times" else a + b
        question = topics.ask(r, f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", f"Calculate {a} {word} {b}.")
        return question, {"a": a, "b": b}, r.choice([dumps({"result": c}), str(c)]), f"{a} {word} {b} is {c}."

    return signature, use


def search(r):
    name, key = r.choice([("search", "query"), ("web_search", "query"), ("search_web", "q")])
    signature = function(r, name, "Search the web.", [(key, "string", "")])

    def use(r):
        subject = r.choice([r.choice(w.UNKNOWN), topics.made_up(r), r.choice(w.NOUNS), topics.name(r)])
        found = topics.phrase(r)
        question = topics.ask(r, f"Search for {subject}.", f"Search the web for {subject}.", f"Look up {subject}.", f"Find something about {subject}.")
        return question, {key: subject}, dumps({"result": found}), f"I found this: {found}"

    return signature, use


def anything(r):
    """A tool with a random name and random parameters. The call must be copied from its signature."""
    action, noun = r.choice(ACTIONS), r.choice(w.NOUNS)
    keys = r.sample(list(PARAMETERS), r.choice([1, 1, 2]))
    signature = function(r, f"{action}_{noun}", f"{action.capitalize()} the {noun}.", [(k, PARAMETERS[k][0], "") for k in keys])

    def use(r):
        arguments = {k: PARAMETERS[k][1](r) for k in keys}
        question = topics.loosen(r, f"{action.capitalize()} the {noun} with {' and '.join(f'{k} {v}' for k, v in arguments.items())}.")
        result = r.choice(["ok", "done", "failed", str(r.randint(0, 99)), topics.made_up(r)])
        return question, arguments, dumps({"result": result}), f"The result is: {result}."

    return signature, use


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def conversation(r, system, other_turns):
    """Messages and tools of one chat. `other_turns()` returns turns that need no tool."""
    kit = [make(r) for make in r.sample([weather, clock, adder, search, anything, anything], r.choice([1, 1, 2, 3]))]
    messages = [{"role": "system", "content": system}] if system else []
    for _ in range(r.choice([1, 1, 2, 3])):
        if r.random() < 0.25:
            for question, answer in other_turns()[:2]:
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            continue
        signature, use = r.choice(kit)
        name = signature["function"]["name"]
        question, arguments, result, answer = use(r)
        calls, results, answers = [call(name, arguments)], [result], [answer]
        if r.random() < 0.1:
            second, arguments, result, answer = use(r)
            question = f"{question} {second}"
            calls.append(call(name, arguments)), results.append(result), answers.append(answer)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": say(r, "", "I will look.", p=0.95), "tool_calls": calls}]
        messages += [{"role": "tool", "content": result} for result in results]
        messages.append({"role": "assistant", "content": " ".join(answers)})
    return messages, [signature for signature, _ in kit]
