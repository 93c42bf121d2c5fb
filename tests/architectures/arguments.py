"""Arguments of tiny models, one entry per architecture of mlx-lm.

Windows and chunks are 16 tokens, so that they rotate within a test. Head widths are 32 where the
KV can be quantised.
"""

from __future__ import annotations

from typing import Any, Final

VOCABULARY: Final = 96
WINDOW: Final = 16

TINY: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
_DELTA = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_MAMBA2 = {"conv_kernel": 4, "n_groups": 2, "use_bias": False, "use_conv_bias": True}
_LONGCAT = {
    "ffn_hidden_size": 48,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 16,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "zero_expert_type": "identity",
    "num_layers": 2,
    "attention_method": "MLA",
    "routed_scaling_factor": 1.0,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "attention_bias": False,
}
_SLIDING = ["sliding_attention", "full_attention"]

ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {
        "query_pre_attn_scalar": 32,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "num_hidden_layers": 3,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "layer_types": _SLIDING,
        "rope_scaling": None,
    },
    "qwen3_next": _DELTA
    | _EXPERTS
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
    "jamba": _EXPERTS
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
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT | {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 8},
    "llama4": {
        "text_config": TINY
        | {
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "attention_bias": False,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 48,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        }
    },
    "lfm2": {
        "num_attention_heads": 1,
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
    "kimi_linear": _EXPERTS
    | _LATENT
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
    "gemma3n": {
        "text_config": TINY
        | {
            "model_type": "gemma3n_text",
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCABULARY,
            "sliding_window": WINDOW,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": _SLIDING * 2,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 8,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 4,
        }
    },
    "gemma4_text": {
        "global_head_dim": 64,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "sliding_window": WINDOW,
        "layer_types": _SLIDING * 2,
    },
    "cohere2": {
        "hidden_size": 64,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "layer_norm_eps": 1e-5,
    },
    "exaone4": {"sliding_window": WINDOW, "sliding_window_pattern": "LG", "rope_scaling": None},
    "baichuan_m1": {
        "num_attention_heads": 2,
        "num_swa_attention_heads": 4,
        "num_swa_key_value_heads": 2,
        "sliding_window": WINDOW,
        "sliding_window_layers": [0],
        "conv_window": 2,
    },
    "longcat_flash": _LATENT | _LONGCAT,
    "longcat_flash_ngram": _LATENT
    | _LONGCAT
    | {"ngram_vocab_size_ratio": 2, "emb_neighbor_num": 3, "emb_split_num": 2},
    "minimax_m3_vl": {
        "text_config": TINY
        | {
            "dense_intermediate_size": 48,
            "shared_intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_layer_freq": [0, 1],
            "sparse_attention_freq": [0, 1],
            "index_n_heads": 1,
            "index_head_dim": 8,
            "index_block_size": 4,
            "index_topk_blocks": 2,
        }
    },
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
    "iquestloopcoder": {"loop_window_size": WINDOW},
    "mimo_v2_flash": {
        "num_experts_per_tok": 2,
        "hybrid_layer_pattern": [0, 1],
        "moe_layer_freq": [0, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "moe_intermediate_size": 16,
        "n_shared_experts": None,
        "n_routed_experts": 4,
        "routed_scaling_factor": None,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 10000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "v_head_dim": 16,
        "swa_head_dim": 16,
        "swa_v_head_dim": 8,
        "partial_rotary_factor": 0.5,
    },
}
