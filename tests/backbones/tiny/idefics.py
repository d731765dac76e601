"""Idefics3 and SmolVLM: fixed-size tiles, a decoder called text_model, answers that begin with a space."""

from __future__ import annotations

from importlib.util import find_spec

from transformers import PreTrainedModel, ProcessorMixin

from tests.backbones.tiny.parts import PATCH, SIDE, hf, text
from tests.backbones.tiny.tokenizer import make_tokenizer

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>",
    "<global-img>", *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)), "<video>",
)  # fmt: skip

TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def build(family: str, tiling: bool) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Idefics3 or SmolVLM with 4 tokens a tile; ``tiling`` cuts each image into rows and columns.

    ``SmolVLMProcessor`` needs ``num2words``; without it the model gets Idefics3's processor, which SmolVLM's
    first release uses and which treats images in the same way.
    """
    tokenizer = make_tokenizer(SPECIAL, bos="<|im_start|>", eos="<end_of_utterance>", pad="<|im_end|>")
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": SIDE, "patch_size": PATCH,
    }  # fmt: skip
    options = {
        "text_config": text(
            "llama",
            len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "pad_token_id": tokenizer.pad_token_id,
        "scale_factor": 2,
        "tie_word_embeddings": False,
    }
    sizes = {"size": {"longest_edge": 4 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    if family == "smolvlm":
        config = hf.SmolVLMConfig(vision_config={"model_type": "smolvlm_vision", **vision}, **options)
        model: PreTrainedModel = hf.SmolVLMForConditionalGeneration(config)
        if find_spec("num2words") is not None:
            processor: ProcessorMixin = hf.SmolVLMProcessor(
                hf.SmolVLMImageProcessor(do_image_splitting=tiling, **sizes),
                tokenizer,
                hf.SmolVLMVideoProcessor(),
                image_seq_len=4,
                chat_template=TEMPLATE,
            )
            return model, processor
    else:
        config = hf.Idefics3Config(vision_config={"model_type": "idefics3_vision", **vision}, **options)
        model = hf.Idefics3ForConditionalGeneration(config)
    image_processor = hf.Idefics3ImageProcessor(do_image_splitting=tiling, **sizes)
    return model, hf.Idefics3Processor(image_processor, tokenizer, image_seq_len=4, chat_template=TEMPLATE)
