"""Configurations of transformers for small models, for tests and benchmarks."""

from __future__ import annotations

from typing import Any

IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
SAM: dict[str, Any] = {
    "vision_config": {
        **IMAGE,
        "image_size": 64,
        "output_channels": 16,
        "window_size": 2,
        "mlp_dim": 32,
        "num_pos_feats": 8,
        "global_attn_indexes": [1],
    },
    "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {
        "hidden_size": 16,
        "mlp_dim": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    },
}
SAM2: dict[str, Any] = {
    "vision_config": {
        "model_type": "sam2_vision_model",
        "backbone_config": {
            "model_type": "sam2_hiera_det_model",
            "hidden_size": 8,
            "image_size": [64, 64],
            "blocks_per_stage": [1, 1, 2, 1],
            "embed_dim_per_stage": [8, 16, 32, 64],
            "num_attention_heads_per_stage": [1, 1, 2, 2],
            "window_size_per_stage": [4, 4, 4, 4],
            "global_attention_blocks": [3],
        },
        "backbone_channel_list": [64, 32, 16, 8],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "fpn_hidden_size": 16,
    },
    "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "mask_input_channels": 4},
    "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16},
}
CODECS: dict[str, dict[str, Any]] = {
    "encodec": {
        "num_filters": 4,
        "hidden_size": 16,
        "codebook_dim": 16,
        "codebook_size": 32,
        "upsampling_ratios": [4, 2],
    },
    "dac": {
        "encoder_hidden_size": 8,
        "decoder_hidden_size": 32,
        "downsampling_ratios": [2, 4],
        "n_codebooks": 3,
        "upsampling_ratios": [4, 2],
        "codebook_size": 32,
        "codebook_dim": 4,
    },
    "mimi": {
        "hidden_size": 32,
        "num_filters": 4,
        "upsampling_ratios": [4, 2],
        "codebook_size": 32,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 4,
        "num_hidden_layers": 1,
        "head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 32,
        "upsample_groups": 32,
    },
}
VITS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "flow_size": 16,
    "spectrogram_bins": 8,
    "upsample_initial_channel": 16,
    "upsample_rates": [4, 2],
    "upsample_kernel_sizes": [8, 4],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
    "duration_predictor_filter_channels": 16,
    "duration_predictor_num_flows": 2,
    "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 2,
}
