"""Trains the demo model from scratch and writes it as a folder that any loader of Llama checkpoints can read."""

import argparse
import json
import pathlib
import random
import shutil
import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

import corpus

HERE = pathlib.Path(__file__).parent
SEED = 20
VOCAB = 1280
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128, 384, 4, 8, 4, 32
CONTEXT, ROPE_THETA, NORM_EPS = 2048, 10000.0, 1e-5
EMBEDDING_STD, LOGIT_SCALE = 0.4, 0.25
BATCH_TOKENS = 2048  # of one process in one step
# Words with the space before them, single digits, punctuation, line breaks: the splitting rule of the Qwen family.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


# --- Tokenizer --------------------------------------------------------------------------------------------------------


def train_tokenizer(documents=12000):
    """A byte-level BPE tokenizer of the corpus. Its alphabet has every byte, so any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    size = VOCAB - len(corpus.SPECIAL) - len(corpus.MARKERS)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    marks = corpus.SPECIAL + corpus.MARKERS

    def texts():
        for _, (_, text) in zip(range(documents), corpus.documents(SEED)):
            for mark in marks:
                text = text.replace(mark, "\n")
            yield text

    tokenizer.train_from_iterator(texts(), trainer)
    assert tokenizer.get_vocab_size() == size
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in corpus.SPECIAL])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in corpus.MARKERS])
    return tokenizer


# --- Model ------------------------------------------------------------------------------------------------------------


def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        """`x` is [batch, length, HIDDEN]. Attention is causal, and each row is one document."""
        batch, length, _ = x.shape
        split = lambda y, heads: y.view(batch, length, heads, HEAD_DIM).transpose(1, 2)
        q, k, v = split(self.q_proj(x), HEADS), split(self.k_proj(x), KV_HEADS), split(self.v_proj(x), KV_HEADS)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, HEADS * HEAD_DIM))


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return rms_norm(x, self.weight)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(), Attention()
        self.post_attention_layernorm, self.mlp = Norm(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The Llama decoder with tied embeddings. Its parameters have the checkpoint's names without `model.`."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=EMBEDDING_STD if "embed" in name else HIDDEN**-0.5 * (0.03 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0))
        with torch.no_grad():
            self.norm.weight.fill_(LOGIT_SCALE)
            start_with_copying(self)
        angles = torch.outer(torch.arange(CONTEXT).float(), ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        """Final hidden states [batch, length, HIDDEN] of ids [batch, length]."""
        x, cos, sin = self.embed_tokens(ids), self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def loss(self, ids, targets, weights):
        """The weighted sum of cross entropies. Logits are computed only for nonzero weights."""
        hidden = self(ids).flatten(0, 1)
        kept = weights.flatten().nonzero().squeeze(1)
        logits = F.linear(hidden[kept], self.embed_tokens.weight).float()
        return (F.cross_entropy(logits, targets.flatten()[kept], reduction="none") * weights.flatten()[kept]).sum()


def start_with_copying(model, near=8.0, match=4.0, write=6.0):
    """Initializes the first two layers as an induction circuit, which predicts that the token after an earlier
    occurrence comes again.

    A small model finds this circuit only after many million tokens, but every answer that repeats a name or a number
    needs it. In layer 0 each head attends to the previous token through the fast rotations of RoPE, and adds a
    rotated copy of it to its position. In layer 1 each head attends, through the slow rotations, to positions whose
    previous token is the current one, and adds the token found there. Training starts from there and changes all of
    it.
    """
    half, fast = HEAD_DIM // 2, HEAD_DIM // 4
    group = HEADS // KV_HEADS
    turn, keep, content = (torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0] for _ in range(3))
    spread = lambda out: out.view(HIDDEN, KV_HEADS, HEAD_DIM).repeat_interleave(group, dim=1).reshape(HIDDEN, HEADS * HEAD_DIM) / group
    model.embed_tokens.weight[:, 0] = EMBEDDING_STD  # the one feature that all tokens share: position is found through it
    theta = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    first, second = model.layers[0].self_attn, model.layers[1].self_attn

    query, key = torch.zeros(HEAD_DIM), torch.zeros(HEAD_DIM)
    query[:fast], key[:fast], key[half : half + fast] = near, near * theta[:fast].cos(), near * theta[:fast].sin()
    for projection, vector, heads in ((first.q_proj, query, HEADS), (first.k_proj, key, KV_HEADS)):
        projection.weight.zero_()
        projection.weight[:, 0] = vector.repeat(heads)
    first.v_proj.weight.copy_(keep)
    first.o_proj.weight.copy_(EMBEDDING_STD * spread(turn @ keep.T))

    slow = torch.cat([torch.arange(fast, half), torch.arange(half + fast, HEAD_DIM)])
    query, key = torch.zeros(KV_HEADS, HEAD_DIM, HIDDEN), torch.zeros(KV_HEADS, HEAD_DIM, HIDDEN)
    rows = match * content[: KV_HEADS * len(slow)].view(KV_HEADS, len(slow), HIDDEN)
    query[:, slow], key[:, slow] = rows, rows @ turn.T
    second.q_proj.weight.copy_(query.repeat_interleave(group, dim=0).reshape(HEADS * HEAD_DIM, HIDDEN))
    second.k_proj.weight.copy_(key.reshape(KV_HEADS * HEAD_DIM, HIDDEN))
    second.v_proj.weight.copy_(keep)
    second.o_proj.weight.copy_(write * EMBEDDING_STD * spread(keep.T))


# --- Optimizer --------------------------------------------------------------------------------------------------------


class Team:
    """The processes that train one model. Each has one thread, and its own part of every batch."""

    def __init__(self, size, numbers):
        self.size, self.barrier, self.parts = size, mp.get_context("spawn").Barrier(size), torch.zeros(size, numbers).share_memory_()

    def sum(self, rank, tensors):
        """Replaces the tensors by their sums over all processes. The order of addition is fixed, so all get the same
        bits.
        """
        flat = torch.cat([t.flatten() for t in tensors])
        self.parts[rank, : flat.numel()] = flat
        self.barrier.wait()
        flat = self.parts[:, : flat.numel()].sum(0)
        self.barrier.wait()
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            t.copy_(part.view_as(t))


class Muon:
    """SGD with momentum, whose update is orthogonalized by Newton-Schulz steps. Source: Jordan et al., Muon (2024)."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.01):
        self.params, self.momentum, self.weight_decay = params, momentum, weight_decay
        self.param_groups, self.buffers = [{"lr": lr}], [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, team, rank):
        lr, updates = self.param_groups[0]["lr"], []
        for i, (p, m) in enumerate(zip(self.params, self.buffers)):
            m.lerp_(p.grad, 1 - self.momentum)
            updates.append(orthogonal(p.grad.lerp(m, self.momentum)) if i % team.size == rank else torch.zeros_like(p))
        team.sum(rank, updates)
        for p, update in zip(self.params, updates):
            p.mul_(1 - lr * self.weight_decay)
            p.add_(update, alpha=-lr * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.T if g.shape[0] > g.shape[1] else x


# --- Training ---------------------------------------------------------------------------------------------------------


def batches(tokenizer, rank, stage, pool=3000):
    """An endless stream of batches (ids, targets, weights), each [rows, length] with documents of similar length."""
    r, source = random.Random(SEED + 2 + rank + 100 * stage), corpus.samples(SEED + 1000 * (rank + 1) + 100 * stage, tokenizer, stage)
    while True:
        items = sorted((next(source) for _ in range(pool)), key=lambda s: len(s[0]) + r.random() * 16)
        groups, group = [], []
        for item in items:
            if group and (len(group) + 1) * len(item[0]) > BATCH_TOKENS:
                groups.append(group)
                group = []
            group.append(item)
        r.shuffle(groups)
        for group in groups:
            length = max(len(ids) for ids, _ in group)
            ids = torch.zeros(len(group), length, dtype=torch.long)
            weights = torch.zeros(len(group), length)
            for row, (tokens, loss) in enumerate(group):
                ids[row, : len(tokens)] = torch.tensor(tokens)
                weights[row, : len(tokens)] = torch.tensor(loss)
            yield ids[:, :-1], ids[:, 1:], weights[:, 1:]


def rate(step, steps):
    """The learning rate as a fraction of its peak: a short rise, a constant half, a linear decay to zero."""
    return min(1.0, (step + 1) / 40, 1.8 * (steps - step) / steps)


def work(rank, team, stage, steps, folder):
    """One process of the training. The first one writes the folder from time to time, and at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer, model = Tokenizer.from_file(str(folder / "tokenizer.json")), Llama()
    model.load_state_dict({name.removeprefix("model."): p.float() for name, p in load_file(folder / "model.safetensors").items()})
    team.barrier.wait()  # the folder is read before it is written
    muon = Muon([p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n], lr=0.012)
    adam = torch.optim.AdamW([p for n, p in model.named_parameters() if p.ndim == 1 or "embed" in n], lr=0.002, betas=(0.9, 0.95), weight_decay=0.0)
    peaks = [(group, group["lr"]) for optimizer in (muon, adam) for group in optimizer.param_groups]
    source, start, seen, mean = batches(tokenizer, rank, stage), time.time(), 0, 0.0
    for step in range(steps):
        for group, peak in peaks:
            group["lr"] = peak * rate(step, steps)
        ids, targets, weights = next(source)
        loss = model.loss(ids, targets, weights)
        loss.backward()
        counts = torch.tensor([loss.item(), weights.sum(), ids.numel()])
        team.sum(rank, [counts] + [p.grad for p in model.parameters()])
        for p in model.parameters():
            p.grad /= counts[1]
        muon.step(team, rank)
        adam.step()
        model.zero_grad()
        mean += (counts[0] / counts[1] - mean).item() * max(0.03, 1 / (step + 1))
        seen += int(counts[2])
        if rank == 0 and (step % 20 == 0 or step == steps - 1):
            seconds = time.time() - start
            print(f"stage {stage + 1} step {step} loss {mean:.4f} tokens {seen} seconds {seconds:.0f} tokens/s {seen / seconds:.0f}", flush=True)
        if rank == 0 and ((step + 1) % 200 == 0 or step == steps - 1):
            write_folder(folder, model, tokenizer)


# --- Files ------------------------------------------------------------------------------------------------------------


def write_folder(folder, model, tokenizer):
    """config.json, generation_config.json, the tokenizer's files, the chat template and the weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    write = lambda name, value: (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    end, turn_end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rope_theta": ROPE_THETA, "rope_scaling": None, "rms_norm_eps": NORM_EPS, "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": None, "eos_token_id": turn_end, "pad_token_id": end, "initializer_range": 0.02, "torch_dtype": "bfloat16", "use_cache": True})
    write("generation_config.json", {"eos_token_id": [turn_end, end], "pad_token_id": end})
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "add_bos_token": False, "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(tokenizer.token_to_id(mark)): {"content": mark, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": mark in corpus.SPECIAL}
                                 for mark in corpus.SPECIAL + corpus.MARKERS}})
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(HERE / "chat_template.jinja", folder / "chat_template.jinja")
    weights = {f"model.{name}": p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent.parent / "crates" / "server" / "demo")
    parser.add_argument("--steps", type=int, nargs=2, default=[2000, 1600], help="steps of the two stages")
    parser.add_argument("--stage", type=int, choices=[1, 2], default=1, help="start with this stage; the second one goes on with the model in the folder")
    parser.add_argument("--processes", type=int, default=2, help="part of the recipe: another number gives another model")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    model = Llama()
    numbers = sum(p.numel() for p in model.parameters())
    if args.stage == 1:
        write_folder(args.out, model, train_tokenizer())
    team = Team(args.processes, numbers + 3)
    for stage, steps in list(enumerate(args.steps))[args.stage - 1 :]:
        mp.spawn(work, (team, stage, steps, args.out), nprocs=args.processes)


if __name__ == "__main__":
    main()
