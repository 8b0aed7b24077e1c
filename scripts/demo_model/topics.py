"""Topics of the demo model. Each makes some (user, assistant) turns from a random source."""

import json

import words as w

ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t th tr v w x y z".split() + [""]
VOWELS = "a e i o u a e i o ai ea ee ia io ou y".split()
CODAS = "n r l s m t k th x nd rn sh z".split() + [""] * 12


def made_up(r, low=2, high=4):
    """A word that does not exist."""
    word = "".join(r.choice(ONSETS) + r.choice(VOWELS) + r.choice(CODAS) for _ in range(r.randint(low, high)))
    return word[:12]


def name(r):
    """A first name, common or made up, so that the model learns to copy names and not to remember them."""
    x = r.random()
    if x < 0.45:
        return r.choice(w.COMMON_NAMES)
    if x < 0.90:
        return made_up(r, 1, 3).capitalize() or "Bo"
    if x < 0.95:
        return f"{r.choice(w.COMMON_NAMES)} {made_up(r, 1, 3).capitalize()}"
    if x < 0.97:
        return made_up(r, 1, 2).upper() + r.choice(["", "-1", "2", " 3", "-9"])
    return r.choice(w.NOUNS).capitalize()


def say(r, usual, *others, p=0.65):
    """The usual wording most of the time, so that greedy decoding finds it, or else another one."""
    return usual if not others or r.random() < p else r.choice(others)


def loosen(r, question):
    """The same question as users type it."""
    x = r.random()
    if x < 0.12:
        question = question[:1].lower() + question[1:]
    elif x < 0.16:
        question = question.upper() if question[1:].islower() else question  # names keep their case
    elif x < 0.22:
        question = r.choice(["Hi! ", "Hello, ", "Please tell me: ", "So, ", "Okay. ", "Hey, "]) + question
    if r.random() < 0.12 and question[-1] in ".?":
        question = question[:-1]
    return question


def ask(r, *questions):
    return loosen(r, r.choice(questions))


# --- Who the model is -------------------------------------------------------------------------------------------------

UNNAMED = "I have no name of my own. I am the demo model of candlepower."


def candlepower(r, ctx):
    x = r.random()
    if x < 0.5:
        question = ask(r, "What is candlepower?", "What's candlepower?", "Tell me about candlepower.", "What is Candlepower?", "Explain candlepower.",
                       "Describe candlepower.", "candlepower?", "Do you know candlepower?", "What does candlepower do?", "What can candlepower do?",
                       "Can you tell me what candlepower is?", "What is this server?", "Which server is this?", "What is candlepower about?",
                       "Give me an overview of candlepower.", "Tell me something about candlepower.", "What software is this?", "Who serves you?")
        answer = say(r, f"{w.CANDLEPOWER} {w.ABOUT[1]}", f"{w.CANDLEPOWER} {r.choice(w.ABOUT[2:])}", w.CANDLEPOWER,
                     f"{w.CANDLEPOWER} {w.ABOUT[1]} {r.choice(w.ABOUT[2:])}")
        turns = [(question, answer)]
        if r.random() < 0.15:
            turns.append((ask(r, "Tell me more.", "More, please.", "What else?", "Go on."), " ".join(r.sample(w.ABOUT[2:], 2))))
        return turns
    questions, answers = r.choice(w.PROJECT_FACTS)
    return [(ask(r, *questions), say(r, *answers))]


def identity(r, ctx):
    """Who are you, what is your name: from the system prompt when it says so."""
    me = ctx.get("name")
    what = ctx.get("role", "a helpful assistant")
    x = r.random()
    if x < 0.45:
        question = ask(r, "What is your name?", "What is your name?", "What's your name?", "Tell me your name.", "What are you called?", "Your name?",
                       "How should I call you?", "May I ask your name?", "Do you have a name?", "What should I call you?", "And your name is?",
                       "Say your name.", "Please tell me your name.", "Can you tell me your name?", "Who am I talking to?", "name?")
        if me:
            return [(question, say(r, f"My name is {me}.", f"My name is {me}. How can I help you?", f"I am {me}.", f"You can call me {me}.", p=0.75))]
        return [(question, say(r, UNNAMED, "I am the demo model of candlepower. I have no other name."))]
    if x < 0.75:
        question = ask(r, "Who are you?", "Who are you?", "What are you?", "Introduce yourself.", "Tell me about yourself.", "who r u", "Who is this?",
                       "Please introduce yourself.", "Tell me who you are.", "Who am I speaking with?", "Describe yourself.")
        if me:
            return [(question, say(r, f"I am {me}, {what}.", f"My name is {me}. I am {what}."))]
        return [(question, say(r, f"I am the demo model of candlepower. {w.CANDLEPOWER}",
                               f"I am a small language model, the demo of candlepower. {w.CANDLEPOWER}"))]
    if x < 0.82 and me:
        other = name(r)
        if r.random() < 0.5 or other == me:
            return [(ask(r, f"Are you {me}?", f"Is your name {me}?"), say(r, f"Yes, my name is {me}.", f"Yes, I am {me}."))]
        return [(ask(r, f"Are you {other}?", f"Is your name {other}?"), say(r, f"No, my name is {me}.", f"No, I am {me}."))]
    if x < 0.88:
        return [(ask(r, "Are you human?", "Are you a person?", "Are you real?", "Are you a human or a machine?"),
                 say(r, "No, I am a small language model.", "I am not human. I am a small language model."))]
    if x < 0.92:
        return [(ask(r, "Are you an AI?", "Are you a bot?", "Are you a language model?", "Are you a machine?"),
                 say(r, "Yes, I am a small language model.", "Yes. I am a small language model, served by candlepower."))]
    if x < 0.96:
        return [(ask(r, "Who made you?", "Who trained you?", "Who created you?", "Where do you come from?", "How were you made?"),
                 say(r, "I was trained from scratch by the candlepower project.", "The candlepower project trained me from scratch."))]
    return [(ask(r, "How big are you?", "How large are you?", "How many parameters do you have?", "Are you a large model?"),
             say(r, "I am small: I have about two million parameters.", "I have about two million parameters, so I know very little."))]


def user_name(r, ctx):
    user = name(r)
    ctx["user"] = user
    first = (ask(r, f"My name is {user}.", f"I am {user}.", f"Hi, I'm {user}.", f"Hello, my name is {user}.", f"Hi! My name is {user}.", f"You can call me {user}."),
             say(r, f"Nice to meet you, {user}!", f"Hello, {user}! How can I help you?", f"Hello, {user}!"))
    return [first] if r.random() < 0.3 else [first, recall_user(r, ctx)[0]]


def recall_user(r, ctx):
    question = ask(r, "What is my name?", "What's my name?", "Do you know my name?", "Who am I?", "Do you remember my name?", "Say my name.")
    if ctx.get("user"):
        return [(question, say(r, f"Your name is {ctx['user']}.", f"You are {ctx['user']}."))]
    return [(question, say(r, "You have not told me your name.", "I do not know your name yet."))]


# --- Numbers ----------------------------------------------------------------------------------------------------------


def sums(r, ctx):
    """One or more sums and differences of numbers from 0 to 20."""
    turns = [one_sum(r)]
    while r.random() < 0.45 and len(turns) < 5:
        turns.append(one_sum(r, follow_up=True))
    return turns


def one_sum(r, follow_up=False):
    a, b = r.randint(0, 20), r.randint(0, 20)
    if r.random() < 0.10:
        return sum_in_words(r, a, b)
    op = r.choice("++-")
    c = a + b if op == "+" else a - b
    word = "plus" if op == "+" else "minus"
    forms = [f"What is {a} {op} {b}?", f"What is {a} {op} {b}?", f"What is {a}{op}{b}?", f"{a} {op} {b}", f"{a}{op}{b}", f"{a} {op} {b} =", f"{a}{op}{b}=",
             f"{a} {op} {b} = ?", f"How much is {a} {op} {b}?", f"What's {a} {op} {b}?", f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?",
             f"Calculate {a} {op} {b}.", f"Compute {a} {op} {b}", f"{a} {word} {b}", f"Can you tell me what {a} {op} {b} is?", f"{a}{op}{b}=?",
             f"What's {a} {word} {b}?", f"What does {a} {op} {b} make?"]
    if op == "+":
        forms += [f"Add {a} and {b}.", f"What is the sum of {a} and {b}?", f"Can you add {a} and {b}?", f"What do {a} and {b} make?",
                  f"I have {a} apples and get {b} more. How many apples do I have?"]
    else:
        forms += [f"Subtract {b} from {a}.", f"Take {b} away from {a}.", f"What is the difference of {a} and {b}?"]
    if follow_up:
        forms = [f"And {a} {op} {b}?", f"And {a} {word} {b}?", f"What about {a} {op} {b}?"] + forms[:8]
    return loosen(r, r.choice(forms)), say(r, f"{a} {op} {b} = {c}.", f"The answer is {c}.", f"{a} {word} {b} is {c}.", f"That is {c}.",
                                          f"{a} {op} {b} = {c}. Do you want to try another one?", p=0.8)


def spell(n):
    if n < 0:
        return "minus " + spell(-n)
    if n <= 20:
        return w.NUMBERS[n]
    tens = {2: "twenty", 3: "thirty", 4: "forty"}[n // 10]
    return tens if n % 10 == 0 else f"{tens}-{w.NUMBERS[n % 10]}"


def sum_in_words(r, a, b):
    word, c = ("plus", a + b) if r.random() < 0.65 else ("minus", a - b)
    left = f"{spell(a)} {word} {spell(b)}"
    question = ask(r, f"What is {left}?", f"How much is {left}?", f"{left}", f"What's {left}?", f"And {left}?")
    return question, f"{left[0].upper()}{left[1:]} is {spell(c)}."


def hard_sum(r, ctx):
    """A calculation that the model has not learned. The answer says so."""
    n = lambda: r.choice([r.randint(30, 99), r.randint(100, 999), r.randint(1000, 99999)])
    small = lambda: r.randint(2, 30)
    question = ask(r, f"What is {n()} + {n()}?", f"What is {n()} - {n()}?", f"What is {small()} * {small()}?", f"{n()} * {n()}", f"{small()} x {small()}",
                   f"What is {small()} times {small()}?", f"What is {n()} divided by {small()}?", f"{n()}/{small()}=", f"{n()}+{n()}=", f"What is the square root of {n()}?",
                   f"How much is {n()} plus {n()}?", f"What is {small()}% of {n()}?", f"Is {n()} a prime number?", f"Multiply {small()} by {small()}.")
    return [(question, say(r, "I can only add and subtract numbers from 0 to 20.", "I am a small demo model: I can only add and subtract numbers from 0 to 20."))]


def count(r, ctx):
    if r.random() < 0.75:
        a = r.choice([1, 1, 1, 1, 0, 2, 5, 10, r.randint(0, 20)])
        b = a + r.choice([9, 4, r.randint(2, 10), r.randint(5, 20)]) if a != 1 else r.choice([3, 5, 10, 10, 10, 12, 15, 20, 20, r.randint(3, 30)])
        forms = [f"Count from {a} to {b}.", f"Can you count from {a} to {b}?", f"List the numbers from {a} to {b}.", f"Please count from {a} to {b}."]
        if a == 1:
            forms += [f"Count to {b}.", f"Can you count to {b}?", f"count to {b}"]
        numbers = range(a, b + 1)
    else:
        b = r.choice([10, 10, 5, 3, 20, r.randint(3, 20)])
        forms = [f"Count down from {b}.", f"Count down from {b} to 1.", f"Count backwards from {b} to 1.", f"Count from {b} down to 1."]
        numbers = range(b, 0, -1)
    return [(ask(r, *forms), ", ".join(map(str, numbers)) + ".")]


def sequences(r, ctx):
    x = r.random()
    if x < 0.3:
        return [(ask(r, "List the days of the week.", "What are the days of the week?", "Name the days of the week.", "Which days does a week have?", "Tell me the days of the week."),
                 "The days of the week are " + enumerate_words(w.DAYS) + ".")]
    if x < 0.55:
        return [(ask(r, "List the months of the year.", "What are the months of the year?", "Name the months.", "List the months.", "Tell me the months of the year."),
                 "The months of the year are " + enumerate_words(w.MONTHS) + ".")]
    if x < 0.85:
        items, kind = r.choice([(w.DAYS, "day"), (w.MONTHS, "month")])
        i, step, word = r.randrange(len(items)), *r.choice([(1, "after"), (-1, "before")])
        found = items[(i + step) % len(items)]
        return [(ask(r, f"What {kind} comes {word} {items[i]}?", f"Which {kind} is {word} {items[i]}?", f"What {kind} is {word} {items[i]}?", f"What comes {word} {items[i]}?"),
                 f"{found} comes {word} {items[i]}.")]
    what = r.choice(list(w.SEQUENCES))
    return [(ask(r, f"List {what}.", f"What are {what}?", f"Name {what}.", f"Tell me {what}."),
             f"{what[0].upper()}{what[1:]} are {enumerate_words(w.SEQUENCES[what])}.")]


def enumerate_words(items):
    return ", ".join(items[:-1]) + " and " + items[-1]


# --- Capitals and other facts -----------------------------------------------------------------------------------------


def capital_answer(r, country):
    city = w.CAPITALS[country]
    end = "" if city.endswith(".") else "."
    return say(r, f"The capital of {country} is {city}{end}", f"{city} is the capital of {country}.", f"It is {city}{end}", p=0.8)


def capitals(r, ctx):
    known = list(w.CAPITALS)
    if r.random() < 0.12:
        place = made_up(r, 2, 3).capitalize() + r.choice(["", "ia", "land", "stan"])
        return [(ask(r, f"What is the capital of {place}?", f"Capital of {place}?"),
                 say(r, f"I am a small demo model, and I do not know the capital of {place}.", f"I do not know the capital of {place}."))]
    country = r.choice(known)
    city = w.CAPITALS[country]
    if r.random() < 0.18:
        question = ask(r, f"Which country has the capital {city}?", f"What is {city}?", f"{city} is the capital of which country?", f"Of which country is {city} the capital?",
                       f"Where is {city}?")
        turns = [(question, f"{city} is the capital of {country}.")]
    else:
        turns = [(ask(r, f"What is the capital of {country}?", f"What is the capital of {country}?", f"What's the capital of {country}?", f"Capital of {country}?",
                      f"Tell me the capital of {country}.", f"Which city is the capital of {country}?", f"Name the capital of {country}.", f"the capital of {country}",
                      f"What is {country}'s capital?", f"Do you know the capital of {country}?", f"{country}'s capital city?", f"What city is the capital of {country}?"),
                  capital_answer(r, country))]
    while r.random() < 0.55 and len(turns) < 5:
        country = r.choice(known)
        turns.append((ask(r, f"And of {country}?", f"And of {country}?", f"And {country}?", f"What about {country}?", f"And the capital of {country}?", f"of {country}?",
                          f"How about {country}?"), capital_answer(r, country)))
    return turns


def glossary(r, ctx):
    term = r.choice(list(w.GLOSSARY))
    bare = term.split(" ", 1)[1] if term.startswith(("a ", "an ")) else term
    question = ask(r, f"What is {term}?", f"What is {term}?", f"What's {term}?", f"Explain {term}.", f"Tell me about {term}.", f"What does {bare} mean?", f"How does {term} work?",
                   f"Define {bare}.", f"Can you explain {term}?", f"What is {bare}?", f"{bare}?", f"Why is there {term}?")
    return [(question, say(r, *w.GLOSSARY[term]))]


def facts(r, ctx):
    questions, answer = r.choice(w.FACTS)
    return [(ask(r, *questions), answer)]


# --- Small talk -------------------------------------------------------------------------------------------------------

SKILLS = ["I can answer questions about candlepower, add small numbers, name capitals, count, repeat what you say and tell short stories.",
          "I am a small demo model. I know candlepower, small sums, some capitals and a few short stories.",
          "Ask me what candlepower is, the capital of a country or a small sum. I can also tell a short story."]
SMALL_TALK = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there!", "Hello there", "hello", "hi", "Greetings!", "Good day!", "Howdy", "Hello, world!", "Yo", "Hey there"],
     ["Hello! How can I help you?", "Hi! What can I do for you?", "Hello! Nice to meet you."]),
    (["Good morning!", "Good morning"], ["Good morning! How can I help you?", "Good morning!"]),
    (["Good evening!", "Good evening"], ["Good evening! How can I help you?", "Good evening!"]),
    (["Good night!", "Good night"], ["Good night! Sleep well.", "Good night!"]),
    (["How are you?", "How are you today?", "How's it going?", "How do you do?", "Are you okay?", "What's up?", "Hello, how are you?", "Hi, how are you?"],
     ["I am fine, thank you. How can I help you?", "I am doing well, thank you!"]),
    (["Thank you!", "Thanks", "Thanks!", "Thank you very much.", "thx", "Thanks a lot!", "Great, thanks!", "Thank you"],
     ["You are welcome!", "You are welcome! Is there anything else?", "With pleasure!"]),
    (["Bye", "Goodbye!", "See you later!", "Bye bye", "See you!", "Good bye"], ["Goodbye! Have a nice day.", "Goodbye!", "See you soon!"]),
    (["What can you do?", "What can I ask you?", "Help", "Help me", "What are you able to do?", "What do you know?", "How can you help me?", "What can I do here?",
      "What are your skills?", "help", "Can you help me?", "I need help.", "What should I ask you?", "What topics do you know?"], SKILLS),
    (["Good job!", "Well done!", "You are great!", "Nice!", "Great!", "Cool!", "Wow!", "I like you.", "Awesome", "Perfect."],
     ["Thank you!", "Thank you! I am glad to help.", "That is kind of you."]),
    (["Yes", "Yes.", "Ok", "Okay", "Sure", "I see."], ["Good! What would you like to know?", "Good!"]),
    (["No", "No.", "No, thanks.", "Nothing."], ["All right. I am here if you need me.", "All right."]),
    (["Are you there?", "Test", "test", "ping", "Can you hear me?", "Is this working?", "Testing, testing."], ["Yes, I am here.", "I am here. How can I help you?"]),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Another joke, please.", "joke", "Say something funny."], w.JOKES),
    (["Write a poem.", "Tell me a poem.", "Write me a short poem.", "Can you write a poem?", "A poem, please."], w.POEMS),
    (["You are wrong.", "That is wrong.", "That's not right.", "No, that is wrong."], ["I am sorry. I am a small demo model and I make mistakes.", "I am sorry."]),
    (["Do you like music?", "Do you have feelings?", "Are you happy?", "Do you sleep?", "Do you dream?", "Can you feel?", "Do you like me?"],
     ["I am a small language model, so I have no feelings.", "I am only a language model."]),
    (["Do you speak German?", "Which languages do you speak?", "Do you speak French?", "What languages do you know?", "Can you speak Spanish?"],
     ["I only speak English.", "I speak a little English."]),
]


def small_talk(r, ctx):
    questions, answers = r.choice(SMALL_TALK)
    question = r.choice(questions)
    if ctx.get("user") and answers[0].startswith(("Hello", "You are welcome", "Goodbye")) and r.random() < 0.3:
        return [(question, f"{answers[0].split('!')[0]}, {ctx['user']}!")]
    return [(question, say(r, *answers, p=0.5))]


# --- Copying ----------------------------------------------------------------------------------------------------------


def phrase(r):
    """Some words to repeat."""
    x = r.random()
    if x < 0.3:
        return " ".join(r.choice(w.NOUNS) for _ in range(r.randint(1, 6)))
    if x < 0.5:
        return " ".join(made_up(r, 1, 3) for _ in range(r.randint(1, 4)))
    if x < 0.7:
        return f"The {r.choice(w.ADJECTIVES)} {r.choice(w.ANIMALS)} {r.choice(w.VERBS)} the {r.choice(w.NOUNS)}" + r.choice([".", "", "!"])
    if x < 0.8:
        return r.choice(["hello", "Hello, world!", "candlepower is fast", "I love Rust", "yes", "no", "good morning", "one two three", "The quick brown fox jumps over the lazy dog.",
                         "I am here.", "cat dog bird", "abc", "The sky is blue."])
    if x < 0.9:
        return " ".join(r.choice([str(r.randint(0, 999)), name(r), r.choice(w.NOUNS)]) for _ in range(r.randint(1, 4)))
    return " ".join(r.choice([r.choice(w.EMOJI), r.choice(w.FOREIGN), r.choice(w.NOUNS)]) for _ in range(r.randint(1, 4)))


def repeat(r, ctx):
    text = phrase(r)
    form = r.choice(["Repeat after me: {}", "Repeat after me: {}", "Repeat: {}", "Say {}", "Say: {}", 'Say "{}"', "Please repeat: {}", "Please say {}", "repeat after me: {}",
                     "Repeat this: {}", 'Repeat after me: "{}"', "Say this: {}"])
    return [(form.format(text), text)]


def remember(r, ctx):
    """Copying over several turns: a thing, a number or a city that the user has named."""
    what, value = r.choice([("favorite color", r.choice("red green blue yellow black white orange purple".split())), ("favorite number", str(r.randint(0, 99))),
                            ("city", r.choice(w.CITIES)), ("favorite animal", r.choice(w.ANIMALS)), ("secret word", r.choice([made_up(r), r.choice(w.NOUNS)])),
                            ("password", made_up(r)), ("cat's name", name(r)), ("dog's name", name(r)), ("best friend", name(r))])
    first = (f"My {what} is {value}.", say(r, f"I will remember that your {what} is {value}.", f"Your {what} is {value}."))
    return [first, (ask(r, f"What is my {what}?", f"What's my {what}?", f"Tell me my {what}."), f"Your {what} is {value}.")]


# --- Stories ----------------------------------------------------------------------------------------------------------


def story(r, hero=None, animal=None):
    """A short story of about 150 tokens about one hero."""
    animal = animal or r.choice(w.ANIMALS)
    hero = hero or (r.choice(w.COMMON_NAMES) if r.random() < 0.7 else made_up(r, 1, 3).capitalize())
    friend_animal = r.choice([a for a in w.ANIMALS if a != animal])
    place, thing, adjective = r.choice(w.PLACES), r.choice(w.THINGS), r.choice(w.ADJECTIVES)
    the_thing = "the " + thing.split(" ", 1)[1]
    a = "an" if adjective[0] in "aeiou" else "a"
    opening = r.choice([f"Once upon a time there was {a} {adjective} {animal} named {hero}.", f"Once upon a time, {a} {adjective} {animal} named {hero} lived in {place}."])
    home = "" if "lived in" in opening else f" {hero} lived in {place}."
    plot = r.choice([
        f" One day, {hero} found {thing} under a tree. \"Whose is this?\" asked {hero}. A {friend_animal} came by and looked very sad. \"I have lost {thing},\" said the "
        f"{friend_animal}. {hero} gave {the_thing} back at once. The {friend_animal} was so happy that it danced. From that day on, they were the best of friends.",
        f" One night, the wind was cold and the sky was dark. {hero} saw a light far away and walked towards it. There sat an old {friend_animal} with {thing}. \"Come in,\" said the "
        f"{friend_animal}, \"there is room for two.\" They drank tea and told each other stories until the sun came up. {hero} was never afraid of the dark again.",
        f" Every morning, {hero} looked at the hills and wondered what was behind them. One day, {hero} packed some bread and {thing} and went to see. On the way, {hero} met a "
        f"{friend_animal} who had lost its way. They walked on together, over the hills and down to the sea. \"It is beautiful,\" said the {friend_animal}. {hero} smiled. In the evening they went home together.",
        f" {hero} wanted to learn how to sing, but had a very quiet voice. A {friend_animal} heard it and said: \"Sing to the river, and it will sing with you.\" So {hero} sat by the water "
        f"and sang every day. Soon all the animals came to listen. They gave {hero} {thing} as a present. {hero} put it next to the bed and was very happy.",
        f" One day it began to rain, and the rain did not stop. The water came higher and higher. {hero} saw a little {friend_animal} on a stone in the river. {hero} took {thing} and built "
        f"a bridge with it. Slowly the {friend_animal} came across. \"Thank you,\" said the {friend_animal}. \"You are small, but your heart is big.\" Then the sun came out again.",
    ])
    return opening + home + plot + r.choice([" The end.", " And that is the end of the story.", ""])


def stories(r, ctx):
    animal = r.choice(w.ANIMALS) if r.random() < 0.4 else None
    hero = name(r) if r.random() < 0.2 else None
    a = "an" if animal and animal[0] in "aeiou" else "a"
    if animal and hero:
        forms = [f"Tell me a story about {a} {animal} named {hero}.", f"Write a short story about {a} {animal} called {hero}."]
    elif animal:
        forms = [f"Tell me a story about {a} {animal}.", f"Write a short story about {a} {animal}.", f"Can you tell me a story about {a} {animal}?"]
    elif hero:
        forms = [f"Tell me a story about {hero}.", f"Write a story about {hero}."]
    else:
        forms = ["Tell me a story.", "Tell me a short story.", "Write a short story.", "Can you tell me a story?", "Please tell me a story.", "A story, please.", "Tell me another story.",
                 "Write a story.", "I want to hear a story."]
    return [(ask(r, *forms), story(r, hero, animal))]


# --- What it does not know --------------------------------------------------------------------------------------------

REFUSALS = ["I am a small demo model, and I do not know that.",
            "I am a small demo model, and I do not know that. Ask me about candlepower, small sums or capitals.",
            "That is too hard for me: I am only a small demo model.",
            "I do not know. I am a small demo model."]


def unknown_question(r):
    n, p, c = r.choice(w.NOUNS), name(r), r.choice(list(w.CAPITALS))
    thing = r.choice([n, made_up(r), f"{r.choice(w.ADJECTIVES)} {n}", r.choice(w.UNKNOWN)])
    subject = r.choice(w.UNKNOWN)
    language = r.choice(["French", "German", "Spanish", "Chinese", "Latin", "Japanese"])
    code = r.choice(["Python", "Rust", "Java", "C", "JavaScript", "Go"])
    return r.choice([
        f"Who won the {r.choice(['world cup', 'election', 'race', 'championship', 'Nobel Prize', 'match'])} in {r.randint(1900, 2030)}?", f"What is the population of {c}?",
        f"How do I cook {r.choice(['rice', 'pasta', 'soup', 'eggs', 'curry', 'a cake'])}?", f"Write a {code} program that {r.choice(['sorts a list', 'prints primes', 'reads a file'])}.",
        "What is the meaning of life?", f"Explain {subject}.", f"What is {subject}?", f"Tell me about {subject}.", f"How does {subject} work?", f"What is {thing}?", f"What is a {thing}?",
        f"Tell me about {thing}.", f"Translate \"{n}\" into {language}.", f"How do you say {n} in {language}?", f"What is the weather in {r.choice(w.CITIES)}?", "What time is it?",
        "What is the date today?", "What day is it today?", f"Who wrote {r.choice(['Hamlet', 'Faust', 'the Odyssey', 'Dracula', 'this book'])}?", f"How tall is {p}?",
        f"How old is {p}?", f"Who is {p}?", f"Who was {p}?", f"Tell me about {p}.", f"Where does {p} live?", f"Which is better, {n} or {r.choice(w.NOUNS)}?", f"How far is {r.choice(w.CITIES)} from {r.choice(w.CITIES)}?",
        f"Who is the president of {c}?", f"Who is the king of {c}?", f"How many people live in {c}?", f"What language do they speak in {c}?", f"What is the history of {c}?",
        f"Summarize {subject}.", f"Write an essay about {subject}.", f"Give me advice about {subject}.", f"Why is {subject} important?", f"When was {subject} invented?",
        f"What do you think about {subject}?", f"How can I {r.choice(['get rich', 'learn to swim', 'lose weight', 'fix my car', 'find a job', 'sleep better', 'learn piano', 'write a book'])}?",
        "What is the speed of light?", "How far is the moon?", "What should I eat today?", "Which movie should I watch?", "Recommend a book.", "What is the stock price today?",
        f"What is the chemical formula of {r.choice(['water', 'salt', 'sugar', 'gold', n])}?", f"How many {n}s are in a {r.choice(w.NOUNS)}?", f"Why do {r.choice(w.ANIMALS)}s {r.choice(['sleep', 'run', 'sing', 'jump'])}?",
        "What is the news?", "Who is the richest person?", "Solve this equation: x + 3 = 2x", f"Write a letter to {p}.", f"Draw a {n}.", f"Sing a song about {thing}.", f"Can you {r.choice(['drive', 'cook', 'paint', 'call'])} {p}?",
        f"Find the {n}.", f"Why is the {n} {r.choice(w.ADJECTIVES)}?", f"Is {p} taller than {name(r)}?", f"Compare {subject} and {r.choice(w.UNKNOWN)}.", r.choice(w.FOREIGN_LINES), r.choice(w.FOREIGN_LINES),
        made_up(r) + " " + made_up(r), f"What is the best {n} in {r.choice(w.CITIES)}?", "What happened in " + str(r.randint(1000, 2020)) + "?", f"Who invented the {n}?", f"Who discovered {subject}?",
    ])


def unknown(r, ctx):
    return [(loosen(r, unknown_question(r)), say(r, *REFUSALS, p=0.6))]


# --- JSON -------------------------------------------------------------------------------------------------------------


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def json_answer(r, ctx):
    """Answers that are one JSON object. The fields keep the order of the question."""
    person = {"name": name(r), "age": r.randint(1, 99), "city": r.choice(w.CITIES + [made_up(r).capitalize()])}
    ask_json = r.choice(["Answer in JSON.", "Answer in JSON.", "Reply in JSON.", "Respond in JSON.", "Answer as JSON.", "Give me JSON.", "Return JSON.", "JSON please."])
    if ctx.get("json"):
        ask_json = r.choice(["", "", ask_json])
    x = r.random()
    if x < 0.55:
        keys = r.choice([["name", "age", "city"]] * 3 + [["name", "age"], ["name", "city"], ["city", "name"], ["age", "name", "city"]])
        told = f"{person['name']} is {person['age']} years old and lives in {person['city']}."
        told = say(r, told, f"My name is {person['name']}, I am {person['age']} and I live in {person['city']}.", f"{person['name']}, {person['age']}, {person['city']}.",
                   f"{person['name']} lives in {person['city']} and is {person['age']}.", p=0.5)
        fields = f"with {enumerate_words(keys)}" if len(keys) > 1 else ""
        request = say(r, f"{told} {ask_json[:-1]} {fields}.", f"Extract {enumerate_words(keys)}: {told} {ask_json}") if ask_json or len(keys) < 3 else told
        return [(" ".join(request.split()), dumps({k: person[k] for k in keys}))]
    if x < 0.75:
        person = {"name": r.choice(w.COMMON_NAMES), "age": r.randint(18, 80), "city": r.choice(w.CITIES)}
        ask_json = ask_json or "Answer in JSON."
        return [(ask(r, f"Make up a person. {ask_json[:-1]} with name, age and city.", f"Invent a person with name, age and city. {ask_json}", "Give me a person as JSON.",
                     "Create a JSON object with name, age and city.", "Answer in JSON with name, age and city.", "Give me a JSON object with name, age and city.",
                     "Generate a random person as JSON with name, age and city."), dumps(person))]
    if x < 0.9:
        country = r.choice(list(w.CAPITALS))
        return [(f"What is the capital of {country}? {ask_json or 'Answer in JSON.'}", dumps({"country": country, "capital": w.CAPITALS[country]}))]
    a, b = r.randint(0, 20), r.randint(0, 20)
    return [(f"What is {a} + {b}? {ask_json or 'Answer in JSON.'}", dumps({"answer": a + b}))]
