"""Plain causal language models, which read texts only: Llama and Qwen2, with a chat template or without."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.backbones.tiny.parts import hf, text
from tests.backbones.tiny.peaked import peak
from tests.backbones.tiny.tokenizer import make_tokenizer

LANGUAGE: tuple[str, ...] = ("llama", "qwen2")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>")

TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first %}BOS<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_language(name: str, *, chat: bool = True, seed: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Make a language model and its tokenizer.

    Args:
        name: One of ``LANGUAGE``. Llama's tokenizer writes a start token, and so does its template.
        chat: Whether the tokenizer has a chat template, as those of base models have not.
        seed: Of the weights.

    Returns:
        A model in float32 and evaluation mode with peaked attention, and its tokenizer.
    """
    starts = name == "llama"
    tokenizer = make_tokenizer(
        SPECIAL,
        plain=("<tool_call>", "</tool_call>"),
        bos="<s>" if starts else None,
        eos="<|im_end|>",
        pad="<|endoftext|>",
        writes_bos=starts,
    )
    tokenizer.chat_template = TEMPLATE.replace("BOS", "<s>" if starts else "") if chat else None
    settings = text(name, len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    settings.pop("model_type")
    config = {"llama": hf.LlamaConfig, "qwen2": hf.Qwen2Config}[name](**settings, bos_token_id=tokenizer.bos_token_id)
    # Construction draws random numbers; the caller's generator is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = {"llama": hf.LlamaForCausalLM, "qwen2": hf.Qwen2ForCausalLM}[name](config)
    return peak(model, seed), tokenizer
