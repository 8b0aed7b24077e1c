"""Trains small sentencepiece vocabularies and tokenizes the strings of tokenizer_fixtures.py with each.

The results of the sentencepiece package are written to crates/tokenizer/tests/data/sentencepiece.

    .venv/bin/python scripts/goldens/sentencepiece_fixtures.py

Texts are compared as messages, in which no special token is searched. Two kinds of string are left out. Other
tokenizers cut user-defined tokens out of a text first. The package `tokenizers` drops a combining character together
with a character before it that has a rule.
"""

import contextlib
import json
import pathlib
import re
import tempfile

import sentencepiece
from tokenizer_fixtures import CORPUS, OUT, digest, strings

# A selection of NFKC's rules. All of them would be most of the file.
RULES = [("Ａ", "A"), ("ﬁ", "fi"), ("e\u0301", "é"), ("Ⅷ", "VIII"), ("½", "1⁄2"), ("\t", " "), ("\n", " "), ("\u3000", " ")]
RULES += [("\u00a0", " "), ("\u200b", ""), ("ﷺ", "صلى")]
COMMON = dict(hard_vocab_limit=False, character_coverage=0.98, num_threads=1, minloglevel=2, train_extremely_large_corpus=False)
VOCABULARIES = {
    # T5 and XLM-RoBERTa have such vocabularies.
    "unigram": dict(model_type="unigram", vocab_size=360, pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
    # Models for Japanese have such vocabularies, with byte fallback and all spaces kept.
    "unigram-bytes": dict(
        model_type="unigram", vocab_size=620, byte_fallback=True, remove_extra_whitespaces=False, user_defined_symbols=["<|user|>"]
    ),
    # Byte pairs with normalization rules.
    "byte-pairs": dict(model_type="bpe", vocab_size=400),
}
LEFT_OUT = re.compile(r"<\|user\|>|[\u00a0\u3000\t\nＡﬁⅧ½\u200bﷺ][\u0300-\u036f]")


def main() -> None:
    for name, settings in VOCABULARIES.items():
        folder = OUT / "sentencepiece" / name
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            rules = [" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) for a, b in RULES]
            (place / "rules.tsv").write_text("\n".join(rules) + "\n")
            normalized = {} if name == "unigram-bytes" else dict(normalization_rule_tsv="rules.tsv")
            identity = dict(normalization_rule_name="identity")
            trained = dict(sentence_iterator=iter(CORPUS), model_prefix="m")
            # The model contains the paths. Relative ones name no folder of a machine.
            with contextlib.chdir(place):
                sentencepiece.SentencePieceTrainer.train(**trained, **COMMON, **identity, **settings, **normalized)
            (folder / "tokenizer.model").write_bytes((place / "m.model").read_bytes())
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        digests = ["-" * 8 if LEFT_OUT.search(text) else digest(processor.encode(text)) for text in strings()]
        (folder / "ids.json").write_text(json.dumps({"digests": "".join(digests)}) + "\n")
        print(f"{folder}: {processor.vocab_size()} tokens, {len(digests)} strings, {digests.count('-' * 8)} left out")


if __name__ == "__main__":
    main()
