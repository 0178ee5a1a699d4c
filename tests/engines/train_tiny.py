"""Train a tiny GLM-4-MoE until it answers the given dialogues; runs in the engine's environment.

usage: train_tiny.py DIALOGUES.json FOLDER

DIALOGUES.json holds `words` (what tokens are made of), `nonces` and `dialogues`: each {messages, tools, options,
answer}. `@nonce@` in it is another word in every step, so that it is copied and not learnt by heart. FOLDER
appears only when the model answers all of them.
"""

import json
import os
import random
import re
import sys
import time

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    PreTrainedTokenizerFast,
)

ROLES = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
         "</arg_value>", "<tool_response>", "</tool_response>"]
ENDS = [0, 4, 6]
POSITIONS = 8192
STEPS = 4000
PACE = 3e-3
EXAMS = 25
TEMPLATE = """\
[gMASK]<sop>
{%- if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif -%}
{%- set asked = namespace(last=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set asked.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
{%- if m.role == 'tool' %}<|observation|><tool_response>{{ m.content }}</tool_response>
{%- elif m.role == 'assistant' %}<|assistant|>
{%- set thought = m.reasoning or m.reasoning_content -%}
{%- set kept = clear_thinking is defined and not clear_thinking or loop.index0 > asked.last -%}
{%- if thought and kept %}<think>{{ thought }}</think>{% else %}</think>{% endif -%}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}
{%- for name, value in call.function.arguments.items() %}<arg_key>{{ name }}</arg_key><arg_value>
{{- value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor -%}
{%- else %}<|{{ m.role }}|>{{ m.content }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>
{{- '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}{% endif -%}
"""


def tokenizer(texts, nonces):
    """Bytes and the words of the texts as wholes. `kestrel4711x3` is three tokens of three kinds, kestrel47, 11 and x3:
    to copy it the model has to find one token of each kind, which it learns in a hundredth of the time."""
    made = Tokenizer(models.BPE())
    words = f"(?:{'|'.join(nonces)})"
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(rf"{words}\d\d| (?={words}\d\d)|x\d+| ?item\d+"
                                   r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    kinds = [f"{word}{number}" for word in nonces for number in range(10, 100)]
    kinds += [f"{number:02}" for number in range(100)] + [f"x{number}" for number in range(24)]
    made.train_from_iterator([*texts, *kinds] * 3, trainers.BpeTrainer(
        vocab_size=6000, special_tokens=ROLES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    out = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=ROLES[0], pad_token=ROLES[0],
                                  additional_special_tokens=ROLES[1:], model_max_length=POSITIONS)
    out.chat_template = TEMPLATE
    return out


def model(size):
    """The model with weights at random."""
    torch.manual_seed(0)
    made = Glm4MoeForCausalLM(Glm4MoeConfig(
        vocab_size=size + -size % 64, hidden_size=128, intermediate_size=384, moe_intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, n_shared_experts=1,
        n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, partial_rotary_factor=0.5,
        use_qk_norm=True, max_position_embeddings=POSITIONS, pad_token_id=0, eos_token_id=ENDS))
    made.generation_config.eos_token_id = ENDS
    made.generation_config.pad_token_id = 0
    return made


def filled(value, nonce):
    if isinstance(value, str):
        return value.replace("@nonce@", nonce)
    if isinstance(value, dict):
        return {key: filled(item, nonce) for key, item in value.items()}
    return [filled(item, nonce) for item in value] if isinstance(value, list) else value


class Teacher:
    """Makes batches of the dialogues and tells how well they are answered."""

    def __init__(self, given, tok):
        self.tok, self.words = tok, given["nonces"]
        self.random = random.Random(1)
        self.rendered = {}
        self.dialogues = given["dialogues"]

    def nonce(self):
        text = self.random.choice(self.words) + str(self.random.randrange(1000, 9999))
        return text + (f"x{self.random.randrange(24)}" if self.random.random() < 0.4 else "")

    def pair(self, number):
        """(prompt ids, answer ids) of a dialogue, with another nonce each time."""
        one = self.dialogues[number]
        if number not in self.rendered:
            self.rendered[number] = self.tok.apply_chat_template(
                one["messages"], tools=one.get("tools"), tokenize=False, add_generation_prompt=True, **one["options"])
        nonce = self.nonce()
        texts = (filled(self.rendered[number], nonce), filled(one["answer"], nonce))
        return tuple(self.tok(text, add_special_tokens=False).input_ids for text in texts)

    def batches(self, all_of_them, copies=4):
        """Dialogues with a nonce some times over, the others once or not at all; sequences of like length together."""
        pairs = []
        for number, one in enumerate(self.dialogues):
            copied = "@nonce@" in one["answer"]
            pairs += [self.pair(number) for _ in range(copies if copied else all_of_them)]
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        small = [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= 100]
        large = pairs[len(small):]
        groups = [small, *(large[at:at + 8] for at in range(0, len(large), 8))]
        return [group for group in groups if group]


def tensors(group):
    width = max(len(prompt) + len(answer) for prompt, answer in group)
    ids = torch.zeros(len(group), width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for row, (prompt, answer) in enumerate(group):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt):end] = torch.tensor(answer)
        mask[row, :end] = 1
    return ids, labels, mask


def examined(made, teacher):
    """True when the answers hold for many nonces that were not seen."""
    made.eval()
    wrong = 0
    with torch.no_grad():
        for _ in range(EXAMS):
            for group in teacher.batches(0, copies=8):
                ids, labels, mask = tensors(group)
                found = made(input_ids=ids, attention_mask=mask).logits[:, :-1].argmax(-1)
                wrong += int(((labels[:, 1:] != -100) & (found != labels[:, 1:])).sum())
    made.train()
    print(f"exam: {wrong} tokens wrong", flush=True)
    return wrong == 0


def train(made, teacher):
    """Until every token of every answer is the likeliest one, three times over with other nonces.

    The output layer is the embedding while it learns: a token that is found is then said by itself.
    """
    began, well = time.time(), 0
    made.lm_head.weight = made.model.embed_tokens.weight
    rate = torch.optim.AdamW(made.parameters(), lr=PACE, weight_decay=0.01, betas=(0.9, 0.98))
    for step in range(STEPS):
        for one in rate.param_groups:
            one["lr"] = PACE * min(1.0, (step + 1) / 20) * (0.3 if well else 1.0) * 0.998 ** max(0, step - 300)
        whole = step % 3 == 0
        wrong = total = 0
        for group in teacher.batches(whole):
            ids, labels, mask = tensors(group)
            logits = made(input_ids=ids, attention_mask=mask).logits[:, :-1]
            wanted = labels[:, 1:]
            here = wanted != -100
            loss = torch.nn.functional.cross_entropy(logits[here].float(), wanted[here])
            rate.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            rate.step()
            wrong += int((logits[here].argmax(-1) != wanted[here]).sum())
            total += int(here.sum())
        if step % 21 == 0:
            print(f"step {step}: {wrong} of {total} tokens wrong, {time.time() - began:.0f} s", flush=True)
        if wrong or not whole:
            well = 0 if wrong else well
            continue
        well += 1
        if well >= 6 and not examined(made, teacher):
            well = 1
        elif well >= 6:
            made.lm_head.weight = torch.nn.Parameter(made.model.embed_tokens.weight.detach().clone())
            print(f"learnt in {step} steps, {time.time() - began:.0f} s", flush=True)
            return
    raise SystemExit("the dialogues were not learnt")


def main(source, folder):
    with open(source, encoding="utf-8") as handle:
        given = json.load(handle)
    torch.set_num_threads(1)
    tok = tokenizer(given["words"], given["nonces"])
    made = model(len(tok))
    parameters = sum(p.numel() for p in made.parameters())
    print(f"{parameters:,} parameters, {len(tok)} tokens", flush=True)
    made.train()
    train(made, Teacher(given, tok))
    made.eval()
    staged = f"{re.sub('/+$', '', folder)}.{os.getpid()}"
    tok.save_pretrained(staged)
    made.save_pretrained(staged)
    for name in os.listdir(staged):
        os.chmod(os.path.join(staged, name), 0o644)  # weights are written for their owner alone
    os.rename(staged, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
