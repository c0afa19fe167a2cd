"""Writes the files of tests/tokenizer.rs: small tokenizers and what Hugging Face's `tokenizers` makes of some texts with them.

    pip install tokenizers
    python make.py FOLDER_WITH_ENGLISH_TEXTS
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "",
    "The memory of the arena is limited, isn't it? We'll see.",
    "  two  spaces\n\n\nlines\t\ttabs \r\n end   ",
    "Grüße, Ærøskøbing — naïve café ½ ² Ⅷ 12345 3.14",
    "日本語のテキスト、それから 中文 and 한국어 🦀🦀 e\u0301",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "one<|endoftext|>two <|endoftext|><|endoftext|> three<|end|>of<|end",
    "x=1;y==2!!=3 // \u00a0\u2003 \u200b\x00\x7f",
    "HE'S they'Re WE'VE i'm",
]


def pre_tokenizer(name):
    level = pre_tokenizers.ByteLevel
    return {
        "gpt2": lambda: level(add_prefix_space=False),
        "prefix": lambda: level(add_prefix_space=True),
        "llama3": lambda: pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA), "isolated"), level(add_prefix_space=False, use_regex=False)]
        ),
        "digits": lambda: pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)]
        ),
    }[name]()


texts = [path.read_text() for path in sorted(Path(sys.argv[1]).glob("*.md"))]
for name in ["gpt2", "prefix", "llama3", "digits"]:
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("<|end|>", normalized=False)])
    content = json.loads(tokenizer.to_str())
    if name == "gpt2":
        # As older files have them.
        content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    expected = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in TEXTS]
    out = json.dumps({"expected": expected, "tokenizer": content}, ensure_ascii=True, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(out + "\n")
