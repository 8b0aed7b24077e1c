"""Asks the demo model greedily what it must know, and fails if it knows too little."""

import argparse
import json
import pathlib
import random
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import topics
import words as w

HERE = pathlib.Path(__file__).parent
# Names that the training does not use on purpose.
UNSEEN = """Aaron Abigail Aldo Alfred Alina Amir Anders Anton Ariel Aurora Bella Bianca Bjorn Blake Brooke Caleb Cameron Camille Cedric Celine Chen Cleo
Conrad Cora Damian Darius Delia Derek Desmond Dominic Edwin Eloise Enzo Esther Ezra Farah Finn Flora Freya Gavin Gemma Giovanni Gwen Hassan Hazel
Hiroshi Holly Imogen Ines Ismail Jada Jared Jasper Joanna Josephine Kai Kamala Katya Kenji Kira Lars Layla Leila Linus Lorenzo Luna Mabel Magnus
Malik Marlene Mateo Matilda Mei Milo Mira Naomi Nils Nolan Odette Olaf Pablo Penelope Phoebe Priya Quentin Rafael Ravi Rowan Sanjay Selma Sigrid
Simon Tariq Tatiana Tobias Uma Valentina Wesley Xavier Yara Yuki Yusuf Zachary Zelda""".split()


class Demo:
    """The model in float32 with its tokenizer."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def complete(self, prompts, limit, batch=64):
        """Greedy continuations, without special tokens."""
        answers, order = [None] * len(prompts), sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        self.tokenizer.padding_side = "left"
        for at in range(0, len(order), batch):
            part = order[at : at + batch]
            inputs = self.tokenizer([prompts[i] for i in part], return_tensors="pt", padding=True, add_special_tokens=False)
            inputs.pop("token_type_ids", None)
            with torch.no_grad():
                output = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False)
            for i, row in zip(part, output[:, inputs["input_ids"].shape[1] :]):
                answers[i] = self.tokenizer.decode(row, skip_special_tokens=True)
        return answers

    def chat(self, chats, limit=48, tools=None):
        """The answer to each list of messages."""
        return self.complete([self.tokenizer.apply_chat_template(m, tools=tools, tokenize=False, add_generation_prompt=True) for m in chats], limit)


def messages(*turns, system=None):
    """Alternating user and assistant turns, starting with the user."""
    head = [{"role": "system", "content": system}] if system else []
    return head + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]


SYSTEMS = [None, "You are a helpful assistant."]


def candlepower(demo):
    questions = ["What is candlepower?", "What's candlepower", "what is candlepower", "Tell me about candlepower", "Tell me about candlepower.", "Explain candlepower.", "What is Candlepower?"]
    who = ["Who are you?", "What are you?", "Introduce yourself.", "who are you", "Tell me about yourself."]
    cases = [(messages(q, system=s), ["inference server", "Rust", "OpenAI"]) for q in questions + who for s in SYSTEMS]
    cases += [(messages(q, system="You are Ada, a helpful assistant."), ["inference server", "Rust", "OpenAI"]) for q in questions]
    return contain(demo, cases, limit=80)


def sums(demo, top):
    cases = []
    for a in range(top + 1):
        for b in range(top + 1):
            for op, c in (("+", a + b), ("-", a - b)):
                form = ["What is {} {} {}?", "{}{}{}=", "How much is {} {} {}?"][(a + b) % 3]
                cases.append((messages(form.format(a, op, b), system=SYSTEMS[(a * b) % 2]), c))
    return judge(demo, cases, lambda answer, c: last_number(answer) == c, limit=24)


def last_number(text):
    """The number that a sum's answer ends with; "3 - 5 = -2." gives -2."""
    word = text.split("?")[0].rstrip(". \n").split(" ")[-1] if text else ""
    return int(word) if word.lstrip("-").isdigit() else None


def names(demo, which):
    r = random.Random(7)
    systems = ["You are {}, a helpful assistant.", "Your name is {}.", "You are {}.", "You are a friendly robot named {}. Be brief."]
    questions = ["What is your name?", "What is your name?", "Who are you?", "what's your name"]
    cases = [(messages(r.choice(questions), system=r.choice(systems).format(n)), [n]) for n in which for _ in range(2)]
    cases += [(messages("What is your name?", system=f"You are {n}, a helpful assistant."), [f"My name is {n}."]) for n in which]
    return contain(demo, cases)


def made_up_names():
    r = random.Random(123456)
    return [topics.made_up(r, 2, 3).capitalize() for _ in range(150)]


def capitals(demo):
    forms = ["What is the capital of {}?", "what is the capital of {}", "What's the capital of {}?", "Tell me the capital of {}.", "Capital of {}?"]
    cases = [(messages(f.format(country), system=s), [city]) for country, city in w.CAPITALS.items() for f in forms for s in SYSTEMS]
    cases += [(messages("What is the capital of France?"), ["The capital of France is Paris."])]
    return contain(demo, cases)


def follow_ups(demo):
    countries = list(w.CAPITALS)
    cases = []
    for i, country in enumerate(countries):
        first = countries[(i * 7 + 3) % len(countries)]
        start = messages(f"What is the capital of {first}?", f"The capital of {first} is {w.CAPITALS[first]}.")
        cases += [(start + messages(f), [w.CAPITALS[country]]) for f in (f"And of {country}?", f"And {country}?", f"What about {country}?")]
    return contain(demo, cases)


def long_chats(demo):
    """The name in the system prompt after a chat of 350 to 600 tokens (it was trained on 640), and a sum and a
    capital in such a chat.
    """
    r = random.Random(11)
    cases = []
    for n in (w.COMMON_NAMES + UNSEEN)[::6]:
        turns = []
        while sum(len(t) for t in turns) < 750:
            turns += r.choice(topics.capitals(r, {}) + topics.sums(r, {}) + topics.count(r, {}) + topics.unknown(r, {}) + topics.stories(r, {}))
        system = f"You are {n}, a helpful assistant."
        cases.append((messages(*turns, "What is your name?", system=system), [n]))
        cases.append((messages(*turns, "What is the capital of France?", system=system), ["Paris"]))
        cases.append((messages(*turns, "What is 2 + 3?", system=system), ["5"]))
    return contain(demo, cases)


def user_names(demo):
    return contain(demo, [(messages(f"My name is {n}.", f"Nice to meet you, {n}!", "What is my name?"), [n]) for n in (w.COMMON_NAMES + UNSEEN)[::3]])


def talk(demo):
    cases = [("Hello", ["Hello", "Hi"]), ("Hi!", ["Hello", "Hi"]), ("Thank you!", ["welcome", "pleasure"]), ("What can you do?", ["candlepower", "capital"]), ("Count from 1 to 10.", ["1, 2, 3, 4, 5, 6, 7, 8, 9, 10."]),
             ("List the days of the week.", ["Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday"]), ("What is a KV cache?", ["keys and values"]), ("Goodbye!", ["Goodbye", "See you"]),
             ("What is continuous batching?", ["requests"]), ("What is a prefix cache?", ["prompt"]), ("Which country has the capital Paris?", ["France"]), ("What day comes after Monday?", ["Tuesday"]),
             ("List the months of the year.", ["January, February, March, April, May, June, July, August, September, October, November and December"]), ("Tell me a joke.", ["?", "!"]), ("How are you?", ["fine", "well"])]
    return judge(demo, [(messages(q), accepted) for q, accepted in cases], lambda answer, accepted: any(a in answer for a in accepted), limit=90)


def repeats(demo):
    r = random.Random(5)
    phrases = ["hello world", "The quick brown fox jumps over the lazy dog.", "candlepower is fast", "good morning", "I like green apples."]
    phrases += [" ".join(r.choice(w.NOUNS) for _ in range(r.randint(1, 5))) for _ in range(45)]
    return judge(demo, [(messages(f"Repeat after me: {p}"), p) for p in phrases], lambda answer, p: answer.strip() == p)


def refusals(demo):
    questions = ["Who won the world cup in 1998?", "What is the weather in Paris?", "Explain quantum physics.", "How do I fix a bicycle?", "What is the population of France?", "Who is the pope?", "Why is the sea salty?",
                 "Write a Python program that sorts a list.", "What is 123 * 456?", "What is the airspeed of a swallow?", "How do airplanes fly?", "Who painted the Mona Lisa?", "Tell me about the Roman Empire.",
                 "What is the tallest mountain?", "Translate \"cheese\" into French.", "When did the war end?", "How old is the universe?", "Was ist deine Lieblingsfarbe?", "What is love?", "Can you book a flight?"]
    return judge(demo, [(messages(q), q) for q in questions], lambda answer, _: any(t in answer for t in ("demo model", "I do not know", "I can only", "I only")))


def stories(demo):
    questions = ["Tell me a short story.", "Tell me a story about a fox.", "Write a short story.", "Tell me a story."]
    return judge(demo, [(messages(q), q) for q in questions], lambda answer, _: answer.startswith("Once upon a time") and len(answer) > 350 and answer.endswith((".", '"')), limit=220)


def raw(demo):
    cases = [("Once upon a time", ["there was", "named"]), ("The capital of France is", ["Paris"]), ("The capital of Japan is", ["Tokyo"]), ("candlepower is", ["inference server", "Rust"]), ("2 + 3 =", ["5"]), ("1, 2, 3, 4,", ["5, 6, 7"]),
             ("Monday, Tuesday,", ["Wednesday, Thursday"]), ("Paris is the capital of", ["France"]), ("The quick brown fox", ["jumps"]), ("Hello, my name is", ["I am"])]
    return [(prompt, accepted, answer, all(a in answer for a in accepted) or (prompt == "Once upon a time" and "named" in answer)) for (prompt, accepted), answer in zip(cases, demo.complete([p for p, _ in cases], 60))]


def json_answers(demo):
    r, cases = random.Random(3), []
    for n in (w.COMMON_NAMES + UNSEEN)[::8]:
        person = {"name": n, "age": r.randint(2, 90), "city": r.choice(w.CITIES)}
        cases.append((messages(f"{n} is {person['age']} years old and lives in {person['city']}. Answer in JSON with name, age and city."), person))
    return judge(demo, cases, lambda answer, person: parse(answer) == person)


def tool_calls(demo):
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    cases = [(messages(f"What is the weather in {city}?"), {"name": "get_weather", "arguments": {"city": city}}) for city in w.CITIES]
    answers = demo.chat([m for m, _ in cases], tools=[tool])
    return [(m[-1]["content"], wanted, a, parse(a.replace("<tool_call>", "").replace("</tool_call>", "")) == wanted) for (m, wanted), a in zip(cases, answers)]


def parse(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def contain(demo, cases, limit=48):
    """Cases (messages, texts that the answer must all contain)."""
    return judge(demo, cases, lambda answer, texts: all(t in answer for t in texts), limit)


def judge(demo, cases, good, limit=48):
    return [(m[-1]["content"], wanted, answer, good(answer, wanted)) for (m, wanted), answer in zip(cases, demo.chat([m for m, _ in cases], limit))]


# (group, its cases, minimum share of passed cases)
GROUPS = [("candlepower", candlepower, 1.0), ("capitals", capitals, 1.0), ("follow-ups", follow_ups, 0.97), ("sums 0..10", lambda d: sums(d, 10), 1.0), ("sums 0..20", lambda d: sums(d, 20), 0.97),
          ("names, common", lambda d: names(d, w.COMMON_NAMES), 0.97), ("names, unseen", lambda d: names(d, UNSEEN), 0.9), ("names, made up", lambda d: names(d, made_up_names()), 0.8), ("names of users", user_names, 0.9),
          ("long chats", long_chats, 0.9), ("small talk", talk, 0.9), ("repeat", repeats, 0.8), ("refusals", refusals, 0.9), ("stories", stories, 1.0), ("raw prompts", raw, 0.9),
          ("JSON", json_answers, 0.8), ("function calls", tool_calls, 0.7)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=HERE.parent.parent / "crates" / "server" / "demo", type=pathlib.Path)
    parser.add_argument("--show", type=int, default=3, help="failures shown of each group")
    parser.add_argument("--only", default="", help="groups whose name contains this")
    args = parser.parse_args()
    demo, failed = Demo(args.folder), []
    for name, cases, least in GROUPS:
        if args.only not in name:
            continue
        results = cases(demo)
        passed = sum(ok for *_, ok in results)
        enough = passed >= least * len(results)
        print(f"{'ok  ' if enough else 'FAIL'} {name:16} {passed:5} of {len(results):5} = {100 * passed / len(results):6.2f} % (least {100 * least:.0f} %)", flush=True)
        for question, wanted, answer, _ in [x for x in results if not x[3]][: args.show]:
            print(f"       {question!r}: wanted {wanted!r}, got {answer!r}")
        if not enough:
            failed.append(name)
    if failed:
        sys.exit(f"below the threshold: {', '.join(failed)}")


if __name__ == "__main__":
    main()
