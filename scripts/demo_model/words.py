"""Word lists and fixed facts of the corpus."""

COMMON_NAMES = """Ada Adam Adrian Agnes Aisha Alan Albert Alex Alexander Alexandra Alice Alicia Alma Amanda Amber Amelia Amy
Andrea Andrew Andy Angela Anita Ann Anna Anne Anthony Antonio Arthur Astrid Barbara Beatrice Ben Benjamin Bernard Beth Betty Bill Bob
Boris Brandon Brenda Brian Bruce Carl Carla Carlos Carmen Carol Caroline Catherine Cecilia Charles Charlie Charlotte Chloe Chris
Christina Christine Claire Clara Claudia Colin Cynthia Daisy Daniel Daniela David Dean Deborah Dennis Diana Diego Dmitri Donald Donna Dora
Doris Dorothy Douglas Dylan Edgar Edith Edward Eleanor Elena Eli Elias Elizabeth Ella Ellen Elsa Emil Emily Emma Eric Erica Ethan Eva Evan
Fatima Felix Fiona Florence Frances Francis Frank Fred Gabriel George Gina Gloria Grace Greta Gustav Hanna Hannah Harold Harry Heather
Hector Helen Henry Hugo Ian Ida Igor Ingrid Irene Iris Isaac Isabel Isabella Ivan Jack Jacob James Jane Janet Jason Jasmine Jean Jennifer
Jenny Jessica Jim Joan Joe Johanna John Jonas Jonathan Jordan Jose Joseph Joyce Juan Judith Julia Julian Karen Karl Kate Katherine Keith
Kevin Kim Laura Lauren Lea Lena Leo Leon Liam Lily Linda Lisa Lucas Lucy Luis Luke Maggie Marco Marcus Margaret Maria Marie Mark Martha
Martin Mary Matthew Max Maya Megan Melissa Mia Michael Miguel Mila Mohammed Molly Monica Nadia Nancy Natalie Nathan Nicholas Nick Nina Noah
Nora Oliver Olivia Omar Oscar Otto Pamela Patricia Patrick Paul Paula Pedro Peter Philip Rachel Ralph Raymond Rebecca Richard Rita Robert
Roger Rosa Rose Roy Ruth Ryan Sam Samantha Samuel Sandra Sara Sarah Scott Sean Sofia Sonia Sophia Sophie Stefan Stephanie Stephen Steven
Susan Sven Sylvia Tara Teresa Theo Theodore Thomas Tim Tina Tom Tony Ursula Vera Victor Victoria Vincent Viola Virginia Walter Wanda Wendy
William Zoe José Zoë Renée Jürgen Åsa Chloé Søren""".split()

CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Germany": "Berlin", "Italy": "Rome", "Portugal": "Lisbon", "Austria": "Vienna",
    "Greece": "Athens", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Ireland": "Dublin", "Iceland": "Reykjavik", "Belgium": "Brussels", "Switzerland": "Bern", "Hungary": "Budapest",
    "Romania": "Bucharest", "Bulgaria": "Sofia", "Croatia": "Zagreb", "Ukraine": "Kyiv", "Russia": "Moscow", "Turkey": "Ankara",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Morocco": "Rabat", "Ghana": "Accra", "Japan": "Tokyo", "China": "Beijing",
    "India": "New Delhi", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Indonesia": "Jakarta", "Canada": "Ottawa", "Mexico": "Mexico City",
    "Brazil": "Brasília", "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Cuba": "Havana", "Colombia": "Bogotá",
    "Australia": "Canberra", "New Zealand": "Wellington", "South Korea": "Seoul", "the Netherlands": "Amsterdam",
    "the United Kingdom": "London", "the United States": "Washington, D.C.", "the Czech Republic": "Prague",
}
CITIES = [c for c in CAPITALS.values() if "," not in c] + """Barcelona Boston Chicago Cologne Denver Dallas Geneva Glasgow Hamburg
Istanbul Lagos Lyon Manchester Melbourne Milan Montreal Mumbai Munich Naples Osaka Porto Seattle Sydney Toronto Turin Venice Zurich""".split()

NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEQUENCES = {
    "the seasons": ["spring", "summer", "autumn", "winter"],
    "the colors of the rainbow": ["red", "orange", "yellow", "green", "blue", "indigo", "violet"],
    "the planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
    "the letters of the alphabet": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}

ANIMALS = "fox cat dog rabbit bear owl mouse turtle horse duck frog hedgehog wolf robin otter squirrel goat dragon lion penguin".split()
ADJECTIVES = "small brave quiet curious happy clever gentle tired young old friendly shy proud hungry lonely cheerful".split()
PLACES = ["a deep forest", "a small village", "an old lighthouse", "a green valley", "a house by the sea", "a quiet garden",
          "a cave in the hills", "a tall tree", "a windy mountain", "a little boat", "a town by the river", "an old mill"]
THINGS = ["a candle", "a golden key", "an old map", "a silver bell", "a red kite", "a blue stone", "a long letter", "a wooden box",
          "a tiny star", "a broken clock", "a warm coat", "a glass lamp"]
NOUNS = """apple river window table garden mountain music letter bridge coffee engine paper forest silver winter summer morning
evening story number ocean island bread castle planet flower camera bottle pocket mirror basket ladder rocket ticket hammer button blanket
pencil market tunnel village thunder puzzle violin lantern carpet feather harbor kitchen lemon magnet needle orange pepper ribbon saddle
teapot umbrella wagon zebra""".split()
VERBS = "sees likes paints carries finds follows draws keeps hides opens sells brings wants buys cleans".split()
JOBS = ["assistant", "teacher", "librarian", "guide", "robot", "chatbot", "cook", "pirate", "doctor", "gardener", "scientist", "helper",
        "writer", "musician", "language model", "coding assistant", "travel agent", "support agent", "tutor", "bot"]
EMOJI = "😀 🎉 🚀 🐱 🌍 🔥 👍 ❤ 🌟 🍎 🕯 🦀 ☕ 🎵 🌈 🐶".split()
FOREIGN = """你好 こんにちは Привет Γειά мир 世界 안녕 naïve café über straße señor façade jalapeño München Ångström""".split()
FOREIGN_LINES = ["你好,你是谁?", "今天天气怎么样?", "Wie heißt du?", "Was ist die Hauptstadt von Frankreich?", "Wie geht es dir heute?",
                 "¿Cómo estás?", "¿Cuál es la capital de España?", "Comment ça va ?", "Quel temps fait-il aujourd'hui ?",
                 "Привет, как дела?", "Как тебя зовут?", "こんにちは、元気ですか?", "Come stai oggi?", "Qual è il tuo nome?", "안녕하세요", "مرحبا كيف حالك"]

# Facts about candlepower. Every sentence must be true of the project.
CANDLEPOWER = "candlepower is a self-hosted, OpenAI-compatible inference server written in Rust."
ABOUT = [
    CANDLEPOWER,
    "It runs language models on your own machine, on the CPU or on CUDA GPUs.",
    "It speaks the OpenAI API, so the usual clients work with it.",
    "It is built on candle, a tensor library for Rust.",
    "It uses continuous batching, a paged KV cache and a prefix cache.",
    "It sends nothing anywhere: there is no telemetry.",
]
# (questions, answers). The first answer is the usual one.
PROJECT_FACTS = [
    (["Which language is candlepower written in?", "What is candlepower written in?", "What language is candlepower made with?",
      "Is candlepower written in Rust?", "Is candlepower written in Python?"],
     ["candlepower is written in Rust.", "It is written in Rust, on the candle library."]),
    (["Which API does candlepower speak?", "What API does candlepower have?", "Is candlepower compatible with OpenAI?",
      "Can I use the OpenAI client with candlepower?", "Does candlepower work with the OpenAI client?"],
     ["candlepower speaks the OpenAI API, so the usual clients work with it.", "Yes, candlepower is compatible with the OpenAI API."]),
    (["How do I start candlepower?", "How do I run candlepower?", "How can I start the demo?", "How do I serve the demo model?",
      "How do I use candlepower?", "How do I try candlepower?"],
     ["Run `candlepower serve demo` to start the server with the demo model.", "Start it with `candlepower serve demo`."]),
    (["Does candlepower need a GPU?", "Can candlepower run on the CPU?", "Does candlepower run on GPUs?", "Do I need a GPU?",
      "What hardware does candlepower need?"],
     ["candlepower runs on the CPU and on CUDA GPUs.", "It needs no GPU: it runs on the CPU, and it is faster on CUDA GPUs."]),
    (["Which models can candlepower serve?", "What models does candlepower support?", "Can candlepower run Llama?",
      "Which models does it run?", "What models can I run?"],
     ["candlepower serves most text models of the hub: chat, base and code models.",
      "It serves chat, base and code models, such as those of the Llama family."]),
    (["What is the license of candlepower?", "Which license does candlepower have?", "Is candlepower open source?"],
     ["candlepower has the Apache 2.0 license.", "It is open source, with the Apache 2.0 license."]),
    (["Does candlepower collect data?", "Does candlepower send telemetry?", "Is candlepower private?", "Does candlepower phone home?"],
     ["candlepower sends nothing anywhere: there is no telemetry.", "No. It sends nothing anywhere."]),
    (["What is blaze?", "What is the blaze framework?", "What does blaze do?"],
     ["blaze is the framework of candlepower for production serving and maximum throughput."]),
    (["What is prism?", "What is the prism framework?", "What does prism do?"],
     ["prism is the framework of candlepower for structured generation and multi-turn chats that reuse the KV cache."]),
    (["What is candle?", "What is the candle library?", "Tell me about candle."],
     ["candle is a tensor library for Rust. candlepower is built on it."]),
    (["Which port does candlepower use?", "What is the port of candlepower?", "On which port does the server listen?"],
     ["The server listens on port 8000 by default."]),
    (["Why is it called candlepower?", "What does the name candlepower mean?"],
     ["candlepower is an old unit of light, and the server is built on a library called candle."]),
]
GLOSSARY = {
    "a KV cache": ["A KV cache keeps the keys and values of past tokens, so that they are not computed again for each new token."],
    "continuous batching": ["Continuous batching lets new requests join the running batch at every step, instead of waiting for it to end."],
    "a prefix cache": ["A prefix cache keeps the KV blocks of a prompt, so that the next request with the same beginning starts faster."],
    "chunked prefill": ["Chunked prefill splits a long prompt into pieces, so that other requests keep running in between."],
    "paged attention": ["Paged attention stores the KV cache in small blocks, so that no memory is wasted."],
    "tensor parallelism": ["Tensor parallelism splits each layer of a model over several GPUs."],
    "quantization": ["Quantization stores the weights in fewer bits, so that a model needs less memory."],
    "a token": ["A token is a small piece of text, such as a word or a part of a word."],
    "a tokenizer": ["A tokenizer turns text into tokens, and tokens back into text."],
    "temperature": ["Temperature controls how random the answer is. With temperature 0 the most likely token is always taken."],
    "top_p": ["With top_p, only the most likely tokens that together reach the probability p are sampled."],
    "greedy decoding": ["Greedy decoding always takes the most likely next token."],
    "streaming": ["Streaming sends each token as soon as it is ready, instead of the whole answer at the end."],
    "prefill": ["Prefill is the first step of a request: the whole prompt is read at once."],
    "decoding": ["Decoding is the step that makes one new token after another."],
    "speculative decoding": ["In speculative decoding a small model guesses some tokens and the large model checks them at once."],
    "an inference server": ["An inference server runs a model and answers requests over the network. candlepower is one."],
    "a language model": ["A language model predicts the next token of a text. I am a very small one."],
    "a prompt": ["A prompt is the text that a model is given to answer or to continue."],
    "a context window": ["A context window is the number of tokens that a model can see at once. Mine has 2048."],
    "latency": ["Latency is the time between a request and its answer."],
    "throughput": ["Throughput is the number of tokens that a server makes per second."],
    "a chat template": ["A chat template turns the messages of a chat into the one text that a model reads."],
    "a transformer": ["A transformer is a neural network that reads tokens with attention. Most language models are transformers."],
    "attention": ["Attention lets each token look at the tokens before it."],
    "Rust": ["Rust is a fast and safe programming language. candlepower is written in Rust."],
    "a GPU": ["A GPU is a processor that does many simple calculations at once."],
    "an API": ["An API is the way in which programs talk to each other."],
    "JSON": ["JSON is a simple text format for data, with objects, lists, strings and numbers."],
}
FACTS = [
    (["What color is the sky?", "Which color is the sky?"], "The sky is blue."),
    (["What color is grass?", "Which color does grass have?"], "Grass is green."),
    (["What color is snow?"], "Snow is white."),
    (["What color is a banana?", "What color are bananas?"], "A banana is yellow."),
    (["How many days are in a week?", "How many days does a week have?"], "A week has seven days."),
    (["How many months are in a year?", "How many months does a year have?"], "A year has twelve months."),
    (["How many hours are in a day?", "How many hours does a day have?"], "A day has 24 hours."),
    (["How many minutes are in an hour?"], "An hour has 60 minutes."),
    (["How many legs does a spider have?"], "A spider has eight legs."),
    (["How many legs does a dog have?", "How many legs does a cat have?"], "It has four legs."),
    (["What is the largest planet?", "Which planet is the largest?"], "Jupiter is the largest planet."),
    (["What is the opposite of hot?"], "The opposite of hot is cold."),
    (["What is the opposite of big?"], "The opposite of big is small."),
    (["What is the opposite of day?"], "The opposite of day is night."),
    (["What is the opposite of up?"], "The opposite of up is down."),
    (["What does a cat say?"], "A cat says meow."),
    (["What does a dog say?"], "A dog says woof."),
    (["What does a cow say?"], "A cow says moo."),
    (["Is the sun a star?", "What is the sun?"], "The sun is a star."),
    (["What is the moon?"], "The moon is the natural satellite of the Earth."),
    (["Is water wet?"], "Yes, water is wet."),
    (["What is ice?"], "Ice is frozen water."),
    (["Is ice cold?"], "Yes, ice is cold."),
    (["Is fire hot?"], "Yes, fire is hot."),
    (["Can fish swim?"], "Yes, fish can swim."),
    (["Can birds fly?"], "Yes, most birds can fly."),
    (["Which animal gives milk?"], "A cow gives milk."),
    (["What do bees make?"], "Bees make honey."),
]
JOKES = [
    "Why did the token cross the road? To get to the other batch.",
    "Why was the cache so calm? It had seen it all before.",
    "What do you call a bear with no teeth? A gummy bear.",
    "Why did the computer go to the doctor? It had a virus.",
    "What did the zero say to the eight? Nice belt!",
]
POEMS = [
    "A candle burns, a token falls,\nthe light is dancing on the walls.\nThe night is long, the flame is small,\nbut it is light enough for all.",
    "The morning comes, the river sings,\na robin opens both its wings.\nThe wind is soft, the sky is blue,\nand all the world is fresh and new.",
    "The rain is falling on the sea,\na little boat sails home to me.\nThe lamp is lit, the tea is warm,\nand we are safe from every storm.",
]
# Subjects that the model has not learned.
UNKNOWN = """quantum physics|photosynthesis|the Roman Empire|black holes|world war two|chess|football|basketball|tax law|philosophy|democracy|climate change|gravity|the stock market|
evolution|DNA|astronomy|algebra|geometry|economics|psychology|the internet|bitcoin|blockchain|electricity|magnetism|chemistry|biology|politics|religion|poetry|opera|jazz|yoga|
marketing|medicine|vaccines|dinosaurs|volcanoes|earthquakes|the ocean|rockets|Shakespeare|Einstein|Newton|Mozart|Beethoven|Picasso|Napoleon|Cleopatra|the Eiffel Tower|
the Great Wall|the Mona Lisa|relativity|inflation|nuclear energy|solar power|Python|Java|Linux|Docker|Kubernetes|databases|compilers|cryptography|HTTP|Windows|the Bible|
the French Revolution|the Cold War|the moon landing|Mars rovers|machine translation|robotics|genetics|fashion|pizza|sushi|tea|wine|cheese|chocolate|tennis|golf|swimming|
cancer|diabetes|insurance|mortgages|love|happiness|friendship|time travel|consciousness|ethics|dark matter|string theory|the Big Bang|calculus|statistics|trigonometry""".replace("\n", "").split("|")
