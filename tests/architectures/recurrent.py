"""Arguments of tiny models that have states: nothing can be cut out of these, only copied whole."""

from __future__ import annotations

from typing import Any, Final

from .shared import EXPERTS, LATENT, LONGCAT, TINY, WINDOW

_DELTA = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_MAMBA2 = {"conv_kernel": 4, "n_groups": 2, "use_bias": False, "use_conv_bias": True}

RECURRENT: Final[dict[str, dict[str, Any]]] = {
    "qwen3_next": _DELTA
    | EXPERTS
    | {
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 16,
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.25,
    },
    "qwen3_5": {"text_config": TINY | _DELTA},
    "mamba": {
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
    "mamba2": _MAMBA2
    | {
        "num_heads": 4,
        "head_dim": 16,
        "intermediate_size": 64,
        "state_size": 8,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": (0.0, 10.0),
        "time_step_rank": 4,
    },
    "jamba": EXPERTS
    | {
        "num_hidden_layers": 4,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    },
    "nemotron_h": _MAMBA2
    | {
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "hybrid_override_pattern": ["M", "*", "-", "M"],
    },
    "falcon_h1": {
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 8,
        "mamba_n_heads": 4,
        "mamba_chunk_size": 8,
    },
    "lfm2": {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_hidden_layers": 3,
    },
    "rwkv7": {
        "head_dim": 16,
        "norm_eps": 1e-5,
        "a_low_rank_dim": 4,
        "v_low_rank_dim": 4,
        "gate_low_rank_dim": 4,
        "decay_low_rank_dim": 4,
    },
    "recurrent_gemma": {
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "recurrent", "attention"],
        "num_hidden_layers": 3,
    },
    "kimi_linear": EXPERTS
    | LATENT
    | {
        "linear_attn_config": {
            "kda_layers": [1, 2],
            "full_attn_layers": [3],
            "num_heads": 2,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
        "num_hidden_layers": 3,
        "model_max_length": 512,
        "num_experts_per_token": 2,
    },
    "granitemoehybrid": {
        "attention_bias": False,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_hidden_layers": 3,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    },
    "baichuan_m1": {
        "num_attention_heads": 2,
        "num_swa_attention_heads": 4,
        "num_swa_key_value_heads": 2,
        "sliding_window": WINDOW,
        "sliding_window_layers": [0],
        "conv_window": 2,
    },
    "longcat_flash_ngram": LATENT
    | LONGCAT
    | {"ngram_vocab_size_ratio": 2, "emb_neighbor_num": 3, "emb_split_num": 2},
    "plamo2": {
        "hidden_size_per_head": 16,
        "mamba_d_state": 8,
        "mamba_num_heads": 4,
        "mamba_step": 2,
        "num_hidden_layers": 2,
    },
    "deepseek_v41": {
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "o_groups": 2,
        "o_lora_rank": 8,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "num_hidden_layers": 3,
        "compress_ratios": (0, 5, 5),
        "kv_source_layer_ids": (1,),
        "index_source_layer_ids": (1,),
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 4,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 2,
    },
}
