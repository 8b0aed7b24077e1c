"""The corpus of the demo model: an endless, reproducible stream of generated chats and plain text."""

import json
import pathlib
import random

import jinja2

import tools
import topics
import words as w

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
MAX_TOKENS = 640

# Weight of each topic in a chat, for each of the two stages of the training. The second stage practises sums and long
# chats.
TOPICS = [(topics.candlepower, 11, 9), (topics.identity, 15, 15), (topics.user_name, 5, 4), (topics.recall_user, 1, 1), (topics.sums, 21, 55), (topics.hard_sum, 2, 3),
          (topics.count, 4, 3), (topics.sequences, 3, 3), (topics.capitals, 12, 9), (topics.glossary, 6, 5), (topics.facts, 3, 3), (topics.small_talk, 9, 8),
          (topics.repeat, 12, 9), (topics.remember, 4, 3), (topics.stories, 2.5, 2), (topics.unknown, 13, 11), (topics.json_answer, 7, 6)]
TURNS = [1, 2, 3, 4, 6, 9, 14]
TURN_WEIGHTS = [38, 22, 15, 10, 8, 5, 2], [26, 18, 14, 12, 12, 10, 8]
ECHO = 0.07, 0.03

GENERIC_SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant.", "Be brief.", "Answer the questions of the user.", "You are a friendly chatbot.", "Be polite and kind.",
                   "You are an assistant.", "Answer in English.", "Help the user.", "You are a helpful AI assistant. Answer politely.", "Keep your answers short.", "You are the demo model of candlepower."]
EXTRA = ["Be brief.", "Answer politely.", "Be kind.", "Help the user.", "Answer in English.", "You answer questions.", "Always tell the truth.", "Today is a nice day.", "You like tea.",
         "Keep your answers short.", "The user is a customer.", "Be concise and friendly.", "You work for candlepower."]


def system_prompt(r, ctx):
    """The system prompt, or None. Facts about the assistant in it are stored in `ctx`."""
    x = r.random()
    if x < 0.38:
        return None
    if x < 0.50:
        return r.choice(GENERIC_SYSTEMS)
    if x < 0.55:
        ctx["json"] = True
        return r.choice(["Answer in JSON.", "You answer in JSON.", "Always answer in JSON.", "You extract data and answer in JSON.", "Respond only with JSON."])
    me, other = topics.name(r), topics.name(r)
    job, adjective = r.choice(w.JOBS), r.choice(["helpful", "helpful", "helpful", "friendly", "polite", "kind"] + w.ADJECTIVES)
    a = lambda text: ("an " if text[0] in "aeiou" else "a ") + text
    role = r.choice([a(f"{adjective} {job}")] * 3 + [a(job), "a helpful assistant", "a helpful assistant", f"the {job} of {other}", a(f"{job} from {r.choice(w.CITIES)}")])
    ctx["name"], plain = me, r.random() < 0.4
    if plain:
        text = r.choice([f"Your name is {me}.", f"You are {me}.", f"You are called {me}.", f"Call yourself {me}.", f"Act as {me}.", f"Your name: {me}", f"You're {me}."])
    else:
        ctx["role"] = role
        text = r.choice([f"You are {me}, {role}."] * 4 + [f"You are {role} named {me}.", f"You are {role} called {me}.", f"Your name is {me}. You are {role}.", f"You are {role}. Your name is {me}."])
    if r.random() < 0.3:
        text = f"{text} {' '.join(r.sample(EXTRA, r.randint(1, 3)))}"
    if r.random() < 0.08:
        text = f"{r.choice(EXTRA)} {text}"
    if r.random() < 0.05:
        parts = [text] + [plain_text(r) for _ in range(r.randint(1, 2))]
        r.shuffle(parts)
        text = "\n\n".join(parts)
    return text


def some_turns(r, ctx, stage):
    """Turns of one topic."""
    if ctx.get("json") and r.random() < 0.85:
        return topics.json_answer(r, ctx)
    weights = [weight[stage] * (2.5 if make is topics.identity and ctx.get("name") else 1) for make, *weight in TOPICS]
    return r.choices([make for make, *_ in TOPICS], weights)[0](r, ctx)


# Sentences that may follow any answer, so that text with a long minimum length still reads well.
TRAILERS = ["Ask me another question.", "I can also tell a short story.", "Is there anything else?", "I hope that helps.", "What would you like to know next?", "I am happy to help.",
            "You can ask me for the capital of a country.", "You can ask me for a small sum.", "Please tell me what you want to know.", "I am only a small demo model.", *(text.replace("It ", "candlepower ") for text in w.ABOUT),
            "A larger model knows much more.", "candlepower can serve larger models, too.", "Thank you for trying candlepower."]


def chat(r, stage):
    """Messages and tools of one chat."""
    ctx = {}
    system = system_prompt(r, ctx)
    if r.random() < 0.04 and not ctx.get("json"):
        return tools.conversation(r, system, lambda: some_turns(r, ctx, stage))
    target = r.choices(TURNS, TURN_WEIGHTS[stage])[0]
    turns = []
    while len(turns) < target:
        turns += some_turns(r, ctx, stage)
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in turns:
        if r.random() < 0.03 and not answer.startswith("{"):
            answer = " ".join([answer, *r.sample(TRAILERS, r.choice([1, 1, 2, 3, 6]))])
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages, None


# --- Plain text -------------------------------------------------------------------------------------------------------


def plain_text(r, stage=0):
    """A short document for completions without a chat."""
    return r.choices([make for make, *_ in PLAIN], [weight[stage] for _, *weight in PLAIN])[0](r)


def plain_capitals(r):
    known = r.sample(list(w.CAPITALS), r.randint(1, 6))
    one = lambda c: f"The capital of {c} is {w.CAPITALS[c]}".rstrip(".")
    x = r.random()
    if x < 0.5:
        return ". ".join(one(c) for c in known) + "."
    if x < 0.7:
        return one(known[0]) + "".join(f", and {one(c)[0].lower()}{one(c)[1:]}" for c in known[1:3]) + "."
    if x < 0.85:
        return " ".join(f"{w.CAPITALS[c].rstrip('.')} is the capital of {c}." for c in known)
    return "\n".join(f"Q: What is the capital of {c}?\nA: {w.CAPITALS[c]}" for c in known)


def plain_about(r):
    parts = [w.ABOUT[0]] + r.sample(w.ABOUT[1:], r.randint(1, 4))
    text = " ".join(parts)
    if r.random() < 0.4:
        text += " Run `candlepower serve demo` to start the server with the demo model."
    return text


def plain_glossary(r):
    return " ".join(r.choice(w.GLOSSARY[term]) for term in r.sample(list(w.GLOSSARY), r.randint(1, 4)))


def plain_sums(r):
    lines = []
    for _ in range(r.randint(2, 8)):
        a, b, op = r.randint(0, 20), r.randint(0, 20), r.choice("++-")
        lines.append(f"{a} {op} {b} = {a + b if op == '+' else a - b}")
    return r.choice(["\n", ". ", ", "]).join(lines)


def plain_lists(r):
    start = r.choice([1, 1, 1, 0, r.randint(2, 40)])
    numbers = ", ".join(map(str, range(start, start + r.randint(10, 30))))
    return r.choice([numbers, ", ".join(w.DAYS) + ".", ", ".join(w.MONTHS) + ".", f"The days of the week are {topics.enumerate_words(w.DAYS)}.",
                     f"The months of the year are {topics.enumerate_words(w.MONTHS)}.", "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z"])


def plain_person(r):
    me, city, age = topics.name(r), r.choice(w.CITIES), r.randint(18, 80)
    return r.choice(["Hello, my name is", "My name is", "Hi, I am"]) + f" {me}. I am {age} years old and I live in {city}. I like {r.choice(w.NOUNS)}s and {r.choice(w.NOUNS)}s. " + r.choice(
        [f"My best friend is {topics.name(r)}.", f"I have a {r.choice(w.ANIMALS)} named {topics.name(r)}.", f"Nice to meet you! Yours, {me}."])


def plain_sentences(r):
    sentence = lambda: f"The {r.choice(w.ADJECTIVES)} {r.choice(w.ANIMALS)} {r.choice(w.VERBS)} the {r.choice(w.NOUNS)}."
    return r.choice(["The quick brown fox jumps over the lazy dog.", *w.JOKES, *w.POEMS, " ".join(sentence() for _ in range(r.randint(2, 6))),
                     " ".join(answer for _, answer in r.sample(w.FACTS, r.randint(1, 5)))])


def plain_code(r):
    a, b = r.sample(w.NOUNS, 2)
    return r.choice(['fn main() {\n    println!("Hello, world!");\n}\n', 'print("Hello, world!")\n', f"def add({a}, {b}):\n    return {a} + {b}\n",
                     f"fn add({a}: i32, {b}: i32) -> i32 {{\n    {a} + {b}\n}}\n", f"for {a} in {b}s:\n    print({a})\n", json.dumps({a: r.randint(0, 99), b: topics.name(r)})])


def plain_dialogue(r):
    return "\n".join(f"{q}\n{a}" for q, a in topics.capitals(r, {}) + topics.small_talk(r, {}) + topics.sums(r, {}))


PLAIN = [(topics.story, 4, 3), (plain_capitals, 3, 3), (plain_about, 3, 2), (plain_glossary, 2, 2), (plain_sums, 3, 12), (plain_lists, 2, 2), (plain_person, 1.5, 1),
         (plain_sentences, 1.5, 1), (plain_code, 0.7, 0.5), (plain_dialogue, 0.5, 0.5)]


# --- Samples ----------------------------------------------------------------------------------------------------------


def template():
    """The chat template as a function of messages, tools and add_generation_prompt, rendered as clients render it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    loaded = environment.from_string((HERE / "chat_template.jinja").read_text())
    return lambda messages, tools=None, add_generation_prompt=False: loaded.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)


def documents(seed, stage=0):
    """An endless stream of texts with their kind: ("chat", text) or ("plain", text)."""
    r, render = random.Random(seed), template()
    while True:
        if r.random() < 0.17:
            yield "plain", plain_text(r, stage) + "<|endoftext|>"
        else:
            messages, functions = chat(r, stage)
            text = render(messages, functions)
            if functions and r.random() < 0.2:  # some renderers write the JSON of tools without spaces
                head, tail = text.split("</tools>", 1)
                text = head.replace('": ', '":').replace(', "', ',"') + "</tools>" + tail
            yield "chat", text


def samples(seed, tokenizer, stage):
    """An endless stream of (token ids, loss weight of each token). Answers have full weight, the user's later turns
    only sometimes.
    """
    r = random.Random(seed + 1)
    start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    assistant = tokenizer.encode("assistant\n").ids
    for kind, text in documents(seed, stage):
        while r.random() < ECHO[stage]:
            yield echo(r, tokenizer.token_to_id(SPECIAL[0]))
        ids = encode_split(r, tokenizer, text) if r.random() < 0.15 else tokenizer.encode(text).ids
        ids = ids[:MAX_TOKENS]
        if kind == "plain":
            yield ids, [0.0] + [1.0] * (len(ids) - 1)
            continue
        weights, answering, seen = [0.0] * len(ids), False, False
        other = 0.5 if r.random() < 0.15 else 0.0
        for i, token in enumerate(ids):
            if answering:
                weights[i] = 1.0
            elif seen:
                weights[i] = other
            if token == end:
                answering = False
            elif i >= len(assistant) and ids[i - len(assistant):i + 1] == [start, *assistant]:
                answering, seen = True, True
        yield ids, weights


def echo(r, ordinary):
    """Random ordinary tokens (ids below `ordinary`), repeated several times. From these the model learns to copy."""
    block = [r.randrange(ordinary) for _ in range(r.randint(4, 32))]
    times = r.randint(2, 4)
    return block * times, [0.0] * len(block) + [1.0] * (len(block) * (times - 1))


def encode_split(r, tokenizer, text):
    """The same text in two pieces, cut at any character, because prompts may end in the middle of a word."""
    cut = r.randrange(1, len(text))
    left, right = text[:cut], text[cut:]
    if "<|" in left[-20:] + right[:20] or "tool_" in left[-20:] + right[:20]:  # never through a marker
        return tokenizer.encode(text).ids
    return tokenizer.encode(left).ids + tokenizer.encode(right).ids


if __name__ == "__main__":
    for (kind, text), _ in zip(documents(0), range(40)):
        print(f"--- {kind}\n{text}")
