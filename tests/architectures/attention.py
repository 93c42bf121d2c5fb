"""Arguments of tiny models that have attention only, some of it in windows or chunks."""

from __future__ import annotations

from typing import Any, Final

from .shared import LATENT, LONGCAT, TINY, VOCABULARY, WINDOW

_SLIDING = ["sliding_attention", "full_attention"]

ATTENTION: Final[dict[str, dict[str, Any]]] = {
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
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT | {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 8},
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
        "head_dim": 8,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "layer_norm_eps": 1e-5,
    },
    "exaone4": {"sliding_window": WINDOW, "sliding_window_pattern": "LG", "rope_scaling": None},
    "longcat_flash": LATENT | LONGCAT,
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
