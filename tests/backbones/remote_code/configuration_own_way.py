"""Configuration of a model that transformers does not know."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig


class OwnWayTextConfig(PretrainedConfig):
    model_type = "own_way_text"
    base_config_key = "text_config"

    def __init__(
        self,
        vocab_size: int = 400,
        hidden_size: int = 64,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        head_dim: int = 16,
        max_position_embeddings: int = 4096,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**{"tie_word_embeddings": False} | kwargs)


class OwnWayConfig(PretrainedConfig):
    model_type = "own_way"
    sub_configs = {"text_config": OwnWayTextConfig}  # noqa: RUF012

    def __init__(self, text_config: Any = None, image_token_id: int = 0, **kwargs: Any) -> None:
        self.text_config = OwnWayTextConfig(**text_config) if isinstance(text_config, dict) else text_config
        if self.text_config is None:
            self.text_config = OwnWayTextConfig()
        self.image_token_id = image_token_id
        super().__init__(**{"tie_word_embeddings": False} | kwargs)
