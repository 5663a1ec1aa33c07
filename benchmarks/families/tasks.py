"""Families of models for other tasks than text generation, each as a tiny model with random weights.

For each family, the model is saved to a folder, `etbuild init --huggingface FOLDER` writes its manifest, and `etbuild
build` builds it. ExecuTorch's runtime then runs its methods, and their outputs have to be those of transformers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from benchmarks.families import run as steps
from tests.helpers import single_calls
from tests.helpers.runtime import run
from tests.helpers.small_configurations import CODECS, IMAGE, SAM, SAM2, VITS

Row = dict[str, Any]
Calls = list[tuple[str, list[torch.Tensor]]]
RESULTS = steps.ROOT / "benchmarks/results/families-of-tasks.jsonl"
_COLUMNS = {
    "family": "family",
    "task": "task",
    "written": "what `init` wrote",
    "difference": "largest difference",
    "size": "size",
    "memory": "planned memory",
    "note": "note",
}
_TOLERANCE = 1e-3  # of the largest output: the roundings of float32
_LARGEST_SEED = 2
_LENGTHS = (2, 7, 30)  # tokens
_VOCABULARY = 64
_TOKENS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
_TEXT: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    **_TOKENS,
}
_DISTIL = {"vocab_size": _VOCABULARY, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
_DECODER = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_TEXT_TOWER = {**_TEXT, "projection_dim": 16}
_IMAGE_TOWER = {**IMAGE, "projection_dim": 16}
_STAGES: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 32, 32]}
_RESNET = {"model_type": "resnet", **_STAGES, "embedding_size": 8}
_MAPS = ["stage2", "stage3", "stage4"]
_DETR: dict[str, Any] = {
    "backbone_config": {**_RESNET, "out_features": ["stage4"]},
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 6,
}
_RT_DETR: dict[str, Any] = {
    **{key: _DETR[key] for key in _DETR if key.startswith(("d_model", "decoder", "encoder_att", "encoder_ffn"))},
    "backbone_config": {
        **_RESNET,
        "model_type": "rt_detr_resnet",
        "hidden_sizes": [8, 16, 32, 64],
        "layer_type": "basic",
        "out_features": _MAPS,
    },
    "encoder_in_channels": [16, 32, 64],
    "decoder_in_channels": [32, 32, 32],
    "encoder_hidden_dim": 32,
    "num_queries": 6,
}
_HGNET = {
    "model_type": "hgnet_v2",
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 16, 32, 64],
    "embedding_size": 8,
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 16, 16, 32],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [16, 16, 32, 64],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
    "out_features": _MAPS,
}
_SOUND: dict[str, Any] = {
    **{key: _TEXT[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
    "vocab_size": 29,
    "pad_token_id": 0,
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
_FRAMES = {key: _SOUND[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
_PARAKEET = {**_FRAMES, "num_mel_bins": 16, "subsampling_conv_channels": 8, "conv_kernel_size": 5}
_WHISPER = {
    **{key: _DETR[key] for key in _DETR if key.startswith(("d_model", "decoder", "encoder"))},
    "vocab_size": _VOCABULARY,
    "num_mel_bins": 16,
    "max_source_positions": 50,
    "max_target_positions": 32,
    **_TOKENS,
    "decoder_start_token_id": 0,
}
_MOONSHINE = {
    **{key: _TEXT[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")},
    "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    **_TOKENS,
    "decoder_start_token_id": 0,
}
_SEQUENCES, _WORDS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
_PICTURES, _BOXES, _CTC = "AutoModelForImageClassification", "AutoModelForObjectDetection", "AutoModelForCTC"
_SPEECH = "AutoModelForSpeechSeq2Seq"
_SEQ2SEQ, _ANSWERS, _CHOICES = "AutoModelForSeq2SeqLM", "AutoModelForQuestionAnswering", "AutoModelForMultipleChoice"
_DEPTH, _AREAS, _WORD = "AutoModelForDepthEstimation", "AutoModelForSemanticSegmentation", "AutoModelForMaskedLM"
_FINDER, _VOICE, _CAPTIONS = "AutoModelForZeroShotObjectDetection", "VitsModel", "BlipForConditionalGeneration"
_VIDEOS, _QUERIES = "AutoModelForVideoClassification", "AutoModelForUniversalSegmentation"
_RANKER = "sentence-transformers, a cross-encoder"
_EMBEDDER, _TWO_LAYERS = "sentence-transformers", "sentence-transformers, with two `Dense`"

_BART: dict[str, Any] = {
    **{key: _DETR[key] for key in _DETR if key.startswith(("d_model", "decoder", "encoder"))},
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 66,
    "decoder_start_token_id": 2,
    **_TOKENS,
}
_T5: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 1,
    **_TOKENS,
}
_MIXTURE = {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
_PROPHET = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 160,
    "decoder_start_token_id": 2,
    **_TOKENS,
}
_T5_GEMMA = {
    **{key: _TEXT[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")},
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 66,
    **_TOKENS,
}
_CLIP = {"text_config": _TEXT_TOWER, "vision_config": _IMAGE_TOWER, "projection_dim": 16}
_SWIN = {
    "model_type": "swin",
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 2],
    "window_size": 2,
    "image_size": 64,
    "out_features": ["stage1", *_MAPS],
}
_QUERIES_OF_MASKS = {
    "backbone_config": _SWIN,
    "hidden_dim": 32,
    "encoder_feedforward_dim": 32,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "num_attention_heads": 4,
    "dim_feedforward": 32,
    "num_queries": 6,
}
_SPEECH_T5: dict[str, Any] = {
    **{key: _DETR[key] for key in _DETR if key.startswith(("decoder", "encoder"))},
    **{key: _SOUND[key] for key in ("hidden_size", "conv_dim") if key in _SOUND},
    **{key: _SOUND[key] for key in _SOUND if key.startswith("num_conv")},
    "vocab_size": _VOCABULARY,
    "num_mel_bins": 8,
    "speech_decoder_prenet_units": 16,
    "speaker_embedding_dim": 8,
    "speech_decoder_postnet_layers": 2,
    "speech_decoder_postnet_units": 16,
    "max_speech_positions": 64,
    "max_text_positions": 66,
}
_FAST_SPEECH = {
    "hidden_size": 32,
    "vocab_size": _VOCABULARY,
    "num_mel_bins": 8,
    "encoder_layers": 1,
    "encoder_linear_units": 32,
    "decoder_layers": 1,
    "decoder_linear_units": 32,
    "speech_decoder_postnet_layers": 2,
    "speech_decoder_postnet_units": 16,
    "duration_predictor_channels": 16,
    "energy_predictor_channels": 16,
    "pitch_predictor_channels": 16,
    "pitch_predictor_layers": 2,
}
_PAST: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 16,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
}
_DPT = {
    **IMAGE,
    "backbone_out_indices": [0, 1, 2, 3],
    "num_hidden_layers": 4,
    "neck_hidden_sizes": [8, 8, 16, 16],
    "fusion_hidden_size": 8,
    "is_hybrid": False,
}

FAMILIES: dict[tuple[str, str], dict[str, Any]] = {
    ("bert", "AutoModel"): _TEXT,
    ("roberta", "AutoModel"): _TEXT,
    ("xlm-roberta", "AutoModel"): _TEXT,
    ("distilbert", "AutoModel"): _DISTIL,
    ("mpnet", "AutoModel"): _TEXT,
    ("modernbert", "AutoModel"): {**_TEXT, "local_attention": 8},
    ("deberta", "AutoModel"): _TEXT,
    ("deberta-v2", "AutoModel"): _TEXT,
    ("electra", "AutoModel"): {**_TEXT, "embedding_size": 32},
    ("albert", "AutoModel"): {**_TEXT, "embedding_size": 16},
    ("nomic_bert", "AutoModel"): _TEXT,
    ("eurobert", "AutoModel"): _DECODER,
    ("bert", _EMBEDDER): _TEXT,
    ("xlm-roberta", _EMBEDDER): _TEXT,
    ("qwen3", _EMBEDDER): _DECODER,
    ("gemma3_text", _TWO_LAYERS): {**_DECODER, "use_bidirectional_attention": True, "sliding_window": 8},
    ("vit", "AutoModel"): IMAGE,
    ("dinov2", "AutoModel"): {**IMAGE, "mlp_ratio": 2},
    ("dinov3_vit", "AutoModel"): IMAGE,
    ("dinov3_convnext", "AutoModel"): {**_STAGES, "image_size": 64},
    ("siglip_vision_model", "AutoModel"): IMAGE,
    ("clip_vision_model", "AutoModel"): _IMAGE_TOWER,
    ("clip_text_model", "AutoModel"): _TEXT_TOWER,
    ("siglip", "AutoModel"): {"text_config": {**_TEXT, "projection_size": 32}, "vision_config": IMAGE},
    ("clip", "AutoModel"): {"text_config": _TEXT_TOWER, "vision_config": _IMAGE_TOWER, "projection_dim": 16},
    ("bert", _SEQUENCES): _TEXT,
    ("roberta", _SEQUENCES): _TEXT,
    ("distilbert", _SEQUENCES): _DISTIL,
    ("deberta-v2", _SEQUENCES): _TEXT,
    ("modernbert", _SEQUENCES): {**_TEXT, "local_attention": 8},
    ("qwen3", _SEQUENCES): _DECODER,
    ("distilbert", _WORDS): _DISTIL,
    ("xlm-roberta", _WORDS): _TEXT,
    ("deberta", _WORDS): _TEXT,
    ("modernbert", _WORDS): {**_TEXT, "local_attention": 8},
    ("vit", _PICTURES): IMAGE,
    ("dinov2", _PICTURES): {**IMAGE, "mlp_ratio": 2},
    ("siglip", _PICTURES): {"vision_config": IMAGE},
    ("resnet", _PICTURES): {**_STAGES, "embedding_size": 8},
    ("convnext", _PICTURES): {**_STAGES, "image_size": 64},
    ("swin", _PICTURES): {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2, "image_size": 32},
    ("mobilenet_v2", _PICTURES): {"depth_multiplier": 0.25, "image_size": 64},
    ("efficientnet", _PICTURES): {
        "width_coefficient": 0.2,
        "depth_coefficient": 0.2,
        "hidden_dim": 256,
        "image_size": 64,
    },
    ("yolos", _BOXES): {**IMAGE, "image_size": [32, 48], "num_detection_tokens": 6},
    ("detr", _BOXES): _DETR,
    ("conditional_detr", _BOXES): _DETR,
    ("deformable_detr", _BOXES): {
        **_DETR,
        "backbone_config": {**_RESNET, "out_features": _MAPS},
        "disable_custom_kernels": True,
    },
    ("dab-detr", _BOXES): {**_DETR, "hidden_size": 32},
    ("table-transformer", _BOXES): _DETR,
    ("rt_detr", _BOXES): _RT_DETR,
    ("rt_detr_v2", _BOXES): _RT_DETR,
    ("d_fine", _BOXES): {**_RT_DETR, "backbone_config": _HGNET},
    ("rf_detr", _BOXES): {
        "backbone_config": {
            **IMAGE,
            "model_type": "rf_detr_dinov2",
            "image_size": 64,
            "out_features": ["stage2"],
            "num_windows": 2,
        },
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_self_attention_heads": 4,
        "decoder_cross_attention_heads": 4,
        "decoder_ffn_dim": 32,
        "num_queries": 6,
    },
    ("segformer", "AutoModelForSemanticSegmentation"): {
        "hidden_sizes": [8, 16, 16, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4],
        "decoder_hidden_size": 16,
    },
    ("depth_anything", "AutoModelForDepthEstimation"): {
        "backbone_config": {
            "model_type": "dinov2",
            **IMAGE,
            "image_size": 56,
            "patch_size": 14,
            "out_indices": [1, 2],
            "reshape_hidden_states": False,
        },
        "reassemble_hidden_size": 32,
        "neck_hidden_sizes": [8, 16],
        "reassemble_factors": [2, 1],
        "fusion_hidden_size": 8,
        "patch_size": 14,
    },
    ("dpt", _DEPTH): _DPT,
    ("glpn", _DEPTH): {
        "hidden_sizes": [8, 16, 16, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4],
        "decoder_hidden_size": 16,
    },
    ("dpt", _AREAS): _DPT,
    ("beit", _AREAS): {**IMAGE, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "pool_scales": [1, 2]},
    ("mobilevit", _AREAS): {
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 16],
        "image_size": 64,
        "num_attention_heads": 2,
        "aspp_out_channels": 16,
        "atrous_rates": [2, 3, 4],
    },
    ("vitpose", "AutoModelForPoseEstimation"): {
        "backbone_config": {
            "model_type": "vitpose_backbone",
            "image_size": [32, 32],
            "patch_size": [8, 8],
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "out_indices": [2],
        },
    },
    **{(name, "AutoModel"): _TEXT for name in ("camembert", "roformer", "esm", "ernie", "megatron-bert", "mobilebert")},
    ("squeezebert", "AutoModel"): {**_TEXT, "embedding_size": 32},
    ("convbert", "AutoModel"): {**_TEXT, "embedding_size": 32},
    ("big_bird", "AutoModel"): {**_TEXT, "attention_type": "original_full"},
    ("layoutlm", "AutoModel"): {**_TEXT, "max_2d_position_embeddings": 64},
    **{(name, _PICTURES): IMAGE for name in ("deit", "vit_msn", "beit", "ijepa")},
    ("mobilenet_v1", _PICTURES): {"depth_multiplier": 0.25, "image_size": 64},
    ("mobilevit", _PICTURES): {
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 16],
        "image_size": 64,
        "num_attention_heads": 2,
    },
    ("regnet", _PICTURES): {**_STAGES, "embedding_size": 8, "groups_width": 8},
    ("poolformer", _PICTURES): {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    ("pvt", _PICTURES): {
        "image_size": 64,
        "hidden_sizes": [8, 16, 16, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4],
    },
    ("convnextv2", _PICTURES): {**_STAGES, "image_size": 64},
    ("focalnet", _PICTURES): {"embed_dim": 8, "depths": [1, 1], "hidden_sizes": [8, 16], "image_size": 32},
    ("swinv2", _PICTURES): {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2, "image_size": 32},
    ("audio-spectrogram-transformer", "AutoModelForAudioClassification"): {
        **{key: IMAGE[key] for key in IMAGE if key != "image_size"},
        "max_length": 64,
        "num_mel_bins": 16,
        "frequency_stride": 8,
        "time_stride": 8,
    },
    ("wav2vec2", "AutoModelForAudioClassification"): {**_SOUND, "classifier_proj_size": 16},
    **{(name, _CTC): _SOUND for name in ("data2vec-audio", "unispeech")},
    ("videomae", _VIDEOS): {**IMAGE, "num_frames": 4, "tubelet_size": 2},
    ("timesformer", _VIDEOS): {**IMAGE, "num_frames": 4},
    ("vivit", _VIDEOS): {**IMAGE, "num_frames": 4, "tubelet_size": [2, 8, 8]},
    ("eomt", _QUERIES): {**IMAGE, "num_blocks": 1, "num_upscale_blocks": 1, "num_queries": 6},
    ("mask2former", _QUERIES): {**_QUERIES_OF_MASKS, "feature_size": 32, "mask_feature_size": 32},
    ("oneformer", _QUERIES): {
        **_QUERIES_OF_MASKS,
        "conv_dim": 32,
        "mask_dim": 32,
        "task_seq_len": 8,
        "text_encoder_width": 16,
        "text_encoder_context_length": 8,
        "text_encoder_num_layers": 1,
        "text_encoder_vocab_size": _VOCABULARY,
        "text_encoder_n_ctx": 2,
    },
    **{(name, _ANSWERS): _TEXT for name in ("bert", "roberta", "deberta-v2")},
    ("distilbert", _ANSWERS): _DISTIL,
    **{(name, _CHOICES): _TEXT for name in ("bert", "xlm-roberta")},
    **{(name, _RANKER): _TEXT for name in ("bert", "xlm-roberta")},
    ("modernbert", _RANKER): {**_TEXT, "local_attention": 8},
    **{(name, _WORD): _TEXT for name in ("bert", "roberta")},
    ("modernbert", _WORD): {**_TEXT, "local_attention": 8},
    ("altclip", "AutoModel"): {**_CLIP, "text_config": {**_TEXT, "project_dim": 16}},
    ("chinese_clip", "AutoModel"): {**_CLIP, "text_config": _TEXT},
    ("metaclip_2", "AutoModel"): _CLIP,
    **{(name, _FINDER): {**_CLIP, "projection_dim": 32} for name in ("owlvit", "owlv2")},
    ("grounding-dino", _FINDER): {
        **{key: _DETR[key] for key in _DETR if key.startswith(("d_model", "decoder", "encoder", "num_queries"))},
        "backbone_config": {**_SWIN, "out_features": _MAPS},
        "text_config": {"model_type": "bert", **_TEXT, "vocab_size": 1100},  # it looks for the tokens 101, 102 and 1012
        "max_text_len": 16,
    },
    ("siglip2", "AutoModel"): {
        "text_config": {**_TEXT, "projection_size": 32},
        "vision_config": {**{key: IMAGE[key] for key in IMAGE if key != "image_size"}, "num_patches": 16},
    },
    ("kosmos-2", "AutoModelForImageTextToText"): {
        "text_config": {
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": 66,
            "embed_dim": 32,
            "layers": 1,
            "ffn_dim": 32,
            "attention_heads": 4,
        },
        "vision_config": IMAGE,
        "latent_query_num": 4,
    },
    ("blip", _CAPTIONS): {"text_config": {**_TEXT, "encoder_hidden_size": 32}, "vision_config": IMAGE},
    ("vits", _VOICE): {**VITS, "vocab_size": _VOCABULARY},
    ("speecht5", "SpeechT5ForTextToSpeech"): _SPEECH_T5,
    ("speecht5", _SPEECH): _SPEECH_T5,
    ("fastspeech2_conformer", "FastSpeech2ConformerModel"): _FAST_SPEECH,
    ("sam", "AutoModelForMaskGeneration"): SAM,
    ("sam2", "AutoModelForMaskGeneration"): SAM2,
    ("encodec", "AutoModel"): {**CODECS["encodec"], "sampling_rate": 160},
    ("mimi", "AutoModel"): {**CODECS["mimi"], "sampling_rate": 160},
    ("dac", "AutoModel"): {**CODECS["dac"], "sampling_rate": 160},
    ("patchtst", "PatchTSTForPrediction"): {
        "num_input_channels": 2,
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "prediction_length": 6,
        "num_hidden_layers": 2,
        "d_model": 16,
        "num_attention_heads": 4,
        "ffn_dim": 32,
    },
    ("patchtsmixer", "PatchTSMixerForPrediction"): {
        "num_input_channels": 2,
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "prediction_length": 6,
        "num_layers": 2,
        "d_model": 16,
    },
    ("timesfm", "TimesFmModelForPrediction"): {
        "patch_length": 8,
        "context_length": 32,
        "horizon_length": 16,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
        "head_dim": 8,
        "num_attention_heads": 4,
    },
    ("informer", "InformerForPrediction"): _PAST,
    ("autoformer", "AutoformerForPrediction"): {**_PAST, "moving_average": 3},
    **{
        (name, _SEQ2SEQ): _BART
        for name in ("bart", "mbart", "marian", "pegasus", "m2m_100", "blenderbot", "blenderbot-small", "plbart", "mvp")
    },
    ("led", _SEQ2SEQ): {
        **_BART,
        "max_encoder_position_embeddings": 66,
        "max_decoder_position_embeddings": 66,
        "attention_window": 8,
    },
    ("bigbird_pegasus", _SEQ2SEQ): {**_BART, "attention_type": "original_full"},
    ("nllb-moe", _SEQ2SEQ): {**_BART, "encoder_layers": 4, "decoder_layers": 4},  # of each 4, one has 128 experts
    **{(name, _SEQ2SEQ): _T5 for name in ("t5", "mt5", "umt5", "longt5")},
    ("pegasus_x", _SEQ2SEQ): {**_BART, "block_size": 8, "num_global_tokens": 4},
    ("fsmt", _SEQ2SEQ): {
        **{key: _BART[key] for key in _BART if key != "vocab_size"},
        "src_vocab_size": _VOCABULARY,
        "tgt_vocab_size": _VOCABULARY,
        "langs": ["en", "de"],
    },
    ("switch_transformers", _SEQ2SEQ): {**_T5, **_MIXTURE},
    ("prophetnet", _SEQ2SEQ): _PROPHET,
    ("t5gemma", _SEQ2SEQ): {"encoder": _T5_GEMMA, "decoder": _T5_GEMMA, **_TOKENS, "vocab_size": _VOCABULARY},
    ("wav2vec2", _CTC): {**_SOUND, "feat_extract_norm": "layer", "do_stable_layer_norm": True},
    ("hubert", _CTC): _SOUND,
    ("wavlm", _CTC): _SOUND,
    ("unispeech-sat", _CTC): _SOUND,
    ("wav2vec2-conformer", _CTC): {**_SOUND, "conv_depthwise_kernel_size": 5},
    ("wav2vec2-bert", _CTC): {**_FRAMES, "vocab_size": 29, "pad_token_id": 0, "feature_projection_input_dim": 16},
    ("parakeet_ctc", _CTC): {"encoder_config": _PARAKEET, "vocab_size": 29, "pad_token_id": 0},
    ("lasr_ctc", _CTC): {"encoder_config": _PARAKEET, "vocab_size": 29, "pad_token_id": 0},
    ("whisper", _SPEECH): _WHISPER,
    ("speech_to_text", _SPEECH): {**_WHISPER, "input_feat_per_channel": 16, "conv_channels": 16},
    ("moonshine", _SPEECH): _MOONSHINE,
    ("moonshine_streaming", _SPEECH): {
        **{key: _TEXT[key] for key in _TEXT if key not in ("cls_token_id", "sep_token_id")},
        "num_key_value_heads": 4,
        "decoder_start_token_id": 0,
        "encoder_config": {**_FRAMES, "num_key_value_heads": 4, "sliding_windows": [[6, 2], [6, 0]]},
    },
}
"""The configuration of each family, by its `model_type` and the Auto class, or by what wrote the folder."""
_LABELLED = (_SEQUENCES, _WORDS, _PICTURES, _BOXES, _AREAS, _VIDEOS, _QUERIES, "AutoModelForAudioClassification")
NAMES = {f"{family}:{auto}": (family, auto) for family, auto in FAMILIES}


def _layers() -> list[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """Two `Dense` modules of sentence-transformers: their configurations and their weights."""
    sizes, numbers = ((32, 48), (48, 16)), torch.Generator().manual_seed(3)
    common = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    return [
        (
            {"in_features": before, "out_features": after, **common},
            {"linear.weight": torch.randn((after, before), generator=numbers) / 8},
        )
        for before, after in sizes
    ]


def write(family: str, auto: str, folder: Path) -> Any:
    """Writes a tiny model to a folder as a hub has it, and returns the model."""
    config = {"model_type": family, **FAMILIES[family, auto]}
    if auto == _RANKER:
        config |= {"num_labels": 1}
    elif auto in _LABELLED:
        config |= {"id2label": {0: "bad", 1: "good", 2: "other"}, "label2id": {"bad": 0, "good": 1, "other": 2}}
    kind = {_RANKER: _SEQUENCES, _EMBEDDER: "AutoModel", _TWO_LAYERS: "AutoModel"}.get(auto, auto)
    made = single_calls.model(kind, config)
    made.save_pretrained(folder)
    if auto in (_EMBEDDER, _TWO_LAYERS):
        _write_modules(folder, _layers() if auto == _TWO_LAYERS else [])
    return made


def _write_modules(folder: Path, layers: list[tuple[dict[str, Any], dict[str, torch.Tensor]]]) -> None:
    """Writes what sentence-transformers has beside a model: a mean, layers, and vectors of the length 1."""
    kinds = ["Transformer", "Pooling", *("Dense" for _ in layers), "Normalize"]
    modules = [
        {"path": f"{number}_{kind}" if number else "", "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    for number, (config, weights) in enumerate(layers, start=2):
        (folder / f"{number}_Dense").mkdir()
        (folder / f"{number}_Dense/config.json").write_text(json.dumps(config))
        save_file(weights, folder / f"{number}_Dense/model.safetensors")


def attempt(name: str, builder: steps.Builder, seconds: float, scratch: Path) -> Row:
    """The row of a family, which is one of `NAMES`."""
    family, auto = NAMES[name]
    row: Row = {"name": name, "family": family, "task": auto, "works": False}
    folder = scratch / family.replace("-", "_")
    folder.mkdir()
    try:
        steps.in_fork(_write, seconds, family, auto, str(folder))
        manifest = builder.init(folder, scratch)
        written = yaml.safe_load(manifest.read_text("utf-8"))
        row |= {"task": task_of(written, auto), "written": shown(written)}
        program = builder.build(manifest, scratch / "out")
        size, memory = steps.sizes(program)
        row |= {"size": f"{size / 1e3:.0f} kB", "memory": f"{memory / 1e3:.0f} kB"}
        found = steps.in_fork(difference, seconds, family, auto, str(program), str(scratch))
    except (steps.NotMade, subprocess.TimeoutExpired) as error:
        return {**row, "note": steps.shortened(str(error), scratch)}
    works = found < _TOLERANCE
    return {**row, "difference": f"{found:.1g}", "works": works, "note": "" if works else "other outputs"}


def _write(family: str, auto: str, folder: str) -> None:
    write(family, auto, Path(folder))


def task_of(manifest: dict[str, Any], auto: str) -> str:
    """The task that `init` wrote, or how the model was made if there is none."""
    return str(manifest["model"]["huggingface"].get("task", f"none, `{auto}`"))


def shown(manifest: dict[str, Any]) -> str:
    """What `init` wrote about the inputs of a model."""
    huggingface = manifest["model"]["huggingface"]
    said = [f"`{key}: {huggingface[key]}`" for key in ("pooling", "max_source_length") if key in huggingface]
    said += ["`dense`"] if "dense" in huggingface else []
    for method in manifest.get("methods", {}).values():
        shapes = [each["shape"] for each in method.get("example_inputs", []) if "shape" in each]
        said += [f"`{each}`" for each in shapes]
        dims = [dim for dims in method.get("dynamic_shapes", []) for dim in dims or [] if dim is not None]
        said += [f"{dim['dim']} {dim['min']} to {dim['max']}" for dim in dims]
    return ", ".join(said)


def difference(family: str, auto: str, program: str, scratch: str) -> float:
    """The largest difference of a program's outputs from those of transformers, as a part of the largest output."""
    report = json.loads(Path(program).with_suffix(".report.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        made = write(family, auto, Path(directory) / "net")
        make = next((make for names, make in _BY_METHODS if names <= report["methods"].keys()), _of_single_call)
        calls, expected = make(made, auto, report["methods"])
        [found] = run(Path(program), [calls], Path(scratch))
    return max(_difference(one, other) for one, other in zip(found, expected, strict=True))


def _difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    if [each.shape for each in found] != [each.shape for each in expected]:
        raise ValueError(f"other shapes: {[tuple(each.shape) for each in found]}")
    pairs = [(one.double(), other.double()) for one, other in zip(found, expected, strict=True)]
    return max(float((one - other).abs().max() / other.abs().max().clamp(min=1e-9)) for one, other in pairs)


def _inputs(given: dict[str, Any]) -> list[torch.Tensor]:
    """Inputs of a method, of several lengths if its report says that they are dynamic."""
    place = len(given["shape"]) - 1 if given["dtype"] == "int64" else 1
    shape, lengths = given["shape"], [given["shape"][place]]
    if given["dynamic"]:
        longest = shape[place]
        lengths = [each for each in _LENGTHS if each < longest] if given["dtype"] == "int64" else [longest // 7]
        lengths.append(longest)
    made = []
    for seed, length in enumerate(lengths if len(lengths) > 1 else lengths * _LARGEST_SEED):
        numbers, size = torch.Generator().manual_seed(seed), [*shape[:place], length, *shape[place + 1 :]]
        tokens = torch.randint(3, _VOCABULARY, size, generator=numbers)
        made.append(tokens if given["dtype"] == "int64" else torch.randn(size, generator=numbers))
    return made


def _of_single_call(made: Any, auto: str, methods: dict[str, Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """The calls of `forward`, and what transformers says."""
    given = methods["forward"]["inputs"]
    if len(given) > 1 and len(given[0]["shape"]) == len(("batch", "channels", "rows", "columns")):
        return _of_image_and_tokens(made, auto, given)
    if "decoder_input_ids" in signature(made.forward).parameters and len(methods["forward"]["inputs"]) > 1:
        return _of_pair(made, auto, methods)
    inputs = _inputs(methods["forward"]["inputs"][0])
    others = [torch.arange(each.shape[-1]).ge(3).long().expand(each.shape) for each in inputs]  # the types of tokens
    pairs = [{"token_type_ids": each} if len(methods["forward"]["inputs"]) > 1 else {} for each in others]
    calls: Calls = [("forward", [each, *pair.values()]) for each, pair in zip(inputs, pairs, strict=True)]
    return calls, [_expected(made, auto, each, pair) for each, pair in zip(inputs, pairs, strict=True)]


def _of_image_and_tokens(made: Any, auto: str, given: list[Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """An image, and tokens: of a task, or of a text of two words and what fills it up."""
    image = torch.randn(given[0]["shape"], generator=torch.Generator().manual_seed(1))
    length = given[1]["shape"][1]
    words = [101, 5, 9, 1012, 7, 1012, 102]
    tokens = torch.tensor([(words + [1] * length)[:length] if len(given) > 2 else [5, 3, 9, 1] * (length // 4)])
    inputs = [image, tokens, *([torch.arange(length)[None].lt(len(words)).long()] if len(given) > 2 else [])]
    names = ["pixel_values", "input_ids", "attention_mask"] if len(given) > 2 else ["pixel_values", "task_inputs"]
    outputs = made(**dict(zip(names, inputs, strict=True)), return_dict=True)
    if auto == _QUERIES:
        return [("forward", inputs)], [[outputs.class_queries_logits, outputs.masks_queries_logits]]
    return [("forward", inputs)], [[each for each in outputs.to_tuple() if isinstance(each, torch.Tensor)]]


def _of_pair(made: Any, auto: str, methods: dict[str, Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """A call of `forward` with a text for the encoder, maybe a mask of what fills it up, and one for the decoder."""
    del auto
    inputs, numbers = methods["forward"]["inputs"], torch.Generator().manual_seed(1)
    sizes = [min(_LENGTHS[-1], each["shape"][1]) if each["dynamic"] else each["shape"][1] for each in inputs]
    texts = [torch.randint(3, _VOCABULARY, (1, size), generator=numbers) for size in sizes]
    given = [texts[0], *(torch.arange(size)[None].lt(size - 5).long() for size in sizes[1:-1]), texts[-1]]
    names = ["input_ids", *(["attention_mask"] if len(given) > 2 else []), "decoder_input_ids"]
    outputs = made(**dict(zip(names, given, strict=True)), use_cache=False, return_dict=True)
    return [("forward", given)], [[each for each in outputs.to_tuple() if isinstance(each, torch.Tensor)]]


def _expected(made: Any, auto: str, given: torch.Tensor, others: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    outputs = made(given, **others, return_dict=True)
    if auto in (_EMBEDDER, _TWO_LAYERS):
        features = outputs.last_hidden_state.mean(dim=1)
        for _, weights in _layers() if auto == _TWO_LAYERS else []:
            features = features @ weights["linear.weight"].T
        return [torch.nn.functional.normalize(features, dim=-1)]
    if auto == "AutoModel" and made.main_input_name == "pixel_values":
        return [outputs.pooler_output.flatten(1)]
    names = {
        _BOXES: ("logits", "pred_boxes"),
        _DEPTH: ("predicted_depth",),
        _ANSWERS: ("start_logits", "end_logits"),
        _QUERIES: ("class_queries_logits", "masks_queries_logits"),
        "AutoModelForPoseEstimation": ("heatmaps",),
        "PatchTSTForPrediction": ("prediction_outputs",),
        "PatchTSMixerForPrediction": ("prediction_outputs",),
        "TimesFmModelForPrediction": ("mean_predictions",),
    }.get(auto, ("logits",))
    if auto == "AutoModel":
        made.config.use_cache = False
        return [each for each in outputs.to_tuple() if isinstance(each, torch.Tensor)]
    return [getattr(outputs, name) for name in names]


def _of_speech(made: Any, auto: str, methods: dict[str, Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """A call of `encoder` with a sound, a text or an image, and one of `text_decoder` for each token after it with what
    transformers' encoder says."""
    del auto
    given, numbers = methods["encoder"]["inputs"][0], torch.Generator().manual_seed(1)
    of_text = given["dtype"] == "int64"
    shape = [1, min(_LENGTHS[-1], given["shape"][1])] if of_text else given["shape"]
    sound = (
        torch.randint(3, _VOCABULARY, shape, generator=numbers) if of_text else torch.randn(shape, generator=numbers)
    )
    is_pair, tokens = made.config.is_encoder_decoder, torch.tensor([[0, 5, 9, 7]])
    encoder = made.get_encoder() if is_pair else made.vision_model
    states = encoder(sound, return_dict=True).last_hidden_state
    of_decoder = {"decoder_input_ids" if is_pair else "input_ids": tokens}
    scores = made(sound, **of_decoder, use_cache=False, return_dict=True).logits
    places = range(tokens.shape[1])
    calls: Calls = [("encoder", [sound])]
    calls += [("text_decoder", [tokens[:, place : place + 1], states, torch.tensor([place])]) for place in places]
    return calls, [[states], *([scores[:, place]] for place in places)]


def _of_towers(made: Any, auto: str, methods: dict[str, Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """An image and three texts, each in a call, and their scores."""
    del auto
    image = torch.randn(methods["image_encoder"]["inputs"][0]["shape"], generator=torch.Generator().manual_seed(1))
    texts = torch.randint(3, _VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(2))
    wanted = made(input_ids=texts, pixel_values=image, return_dict=True)
    if hasattr(wanted, "pred_boxes"):
        return _of_boxes(image, texts, wanted)
    calls: Calls = [("image_encoder", [image]), *(("text_encoder", [text[None]]) for text in texts)]
    calls.append(("scores", [wanted.image_embeds, wanted.text_embeds]))
    return calls, [[wanted.image_embeds], *([each[None]] for each in wanted.text_embeds), [wanted.logits_per_image]]


def _of_boxes(image: torch.Tensor, texts: torch.Tensor, wanted: Any) -> tuple[Calls, list[list[torch.Tensor]]]:
    """An image and three texts, each in a call, and the scores of boxes."""
    features, vectors = wanted.image_embeds.flatten(1, 2), wanted.text_embeds[0]
    objects = getattr(wanted, "objectness_logits", None)
    of_image = [features, wanted.pred_boxes, *([] if objects is None else [objects])]
    calls: Calls = [("image_encoder", [image]), *(("text_encoder", [text[None]]) for text in texts)]
    return [*calls, ("scores", [features, vectors])], [of_image, *([each[None]] for each in vectors), [wanted.logits]]


def _of_voice(made: Any, auto: str, methods: dict[str, Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """A text, and the sound of transformers with the same random numbers."""
    del auto, methods
    text = torch.randint(3, _VOCABULARY, (1, _LENGTHS[-1]), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    noise = torch.randn(1, 2, text.shape[1])
    mask = torch.ones(1, text.shape[1], 1)
    found = made.text_encoder(input_ids=text, padding_mask=mask)
    states, ones = found.last_hidden_state.transpose(1, 2), mask.transpose(1, 2)
    torch.manual_seed(1)
    options = {"reverse": True, "noise_scale": made.noise_scale_duration}
    durations = made.duration_predictor(states, ones, None, **options).exp().div(made.speaking_rate).ceil().long()[:, 0]
    rows = [each.repeat_interleave(durations[0], 1) for each in (found.prior_means, found.prior_log_variances)]
    drawn = torch.randn_like(torch.empty(rows[0].shape).transpose(1, 2))  # transposed, as in transformers
    later = drawn.transpose(1, 2).contiguous()
    torch.manual_seed(1)
    heard = made(text, return_dict=True).waveform
    calls: Calls = [("text_encoder", [text, noise]), ("speech_decoder", [*rows, later])]
    return calls, [[found.prior_means, found.prior_log_variances, durations], [heard]]


def _of_codec(made: Any, auto: str, methods: dict[str, Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """A sound, and the codes of transformers."""
    del auto
    sound = torch.randn(methods["encoder"]["inputs"][0]["shape"], generator=torch.Generator().manual_seed(1)) / 3
    found = made.encode(sound, return_dict=True)
    scales = {"audio_scales": found.audio_scales} if hasattr(found, "audio_scales") else {}
    heard = made.decode(audio_codes=found.audio_codes, **scales, return_dict=True).audio_values
    return [("encoder", [sound]), ("decoder", [found.audio_codes])], [[found.audio_codes], [heard]]


def _of_masks(made: Any, auto: str, methods: dict[str, Any]) -> tuple[Calls, list[list[torch.Tensor]]]:
    """An image, and two points in it."""
    del auto
    image = torch.randn(methods["image_encoder"]["inputs"][0]["shape"], generator=torch.Generator().manual_seed(1))
    points, kinds = torch.tensor([[[[9.0, 20.0], [30.0, 5.0]]]]), torch.tensor([[[1, 0]]])
    features = made.get_image_embeddings(image)
    wanted = made(image_embeddings=features, input_points=points, input_labels=kinds)
    maps = [features] if isinstance(features, torch.Tensor) else [each.contiguous() for each in features]
    calls: Calls = [("image_encoder", [image]), ("mask_decoder", [*maps, points, kinds])]
    return calls, [maps, [wanted.pred_masks, wanted.iou_scores]]


_BY_METHODS = (
    ({"encoder", "text_decoder"}, _of_speech),
    ({"encoder", "decoder"}, _of_codec),
    ({"scores"}, _of_towers),
    ({"mask_decoder"}, _of_masks),
    ({"speech_decoder"}, _of_voice),
)
"""What compares a program, by the methods that it has."""


def section(rows: list[Row]) -> str:
    """The part of the page about these families; empty without rows."""
    lines = ["| " + " | ".join(_COLUMNS.values()) + " |", "|---" * len(_COLUMNS) + "|"]
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in _COLUMNS) + " |" for row in rows]
    text = f"""
## Other tasks

`python -m benchmarks.families.run --tasks --write docs/families.md` writes this table, from
`benchmarks/results/families-of-tasks.jsonl`. Families are tried in the same way: `etbuild init --huggingface`,
`etbuild build`, and the outputs of ExecuTorch's runtime for inputs of several lengths, or for two images, compared with
those of transformers. The column has the largest difference divided by the largest output; up to {_TOLERANCE} counts as
the same. A model without a task has the outputs of its class. If a family does not work, the note has the error of
`init` or of the build.

{sum(row["works"] for row in rows)} of {len(rows)} give what transformers gives.
The others of {len(FAMILIES)} have not been tried yet.

<!-- age of families-of-tasks: python -m benchmarks.run --only families-of-tasks --write -->
<!-- end of age of families-of-tasks -->

"""
    return text + "\n".join(lines) + "\n" if rows else ""


def measure(names: list[str], seconds: float, results: Path) -> None:
    """Tries families, and adds their rows to the file of results.

    Args:
        names: Some of `NAMES`; those without a row if there are none.
        seconds: The time limit of one step.
        results: The file.
    """
    known, builder = rows(results), steps.Builder(Path(tempfile.gettempdir()), seconds)
    try:
        for name in names or [name for name in NAMES if name not in known]:
            row = steps.in_own_directory(attempt, name, builder, seconds)
            steps.add(results, row)
            print("  ".join(str(row.get(key, "")) for key in _COLUMNS), flush=True)
    finally:
        builder.end()


def rows(results: Path = RESULTS) -> dict[str, Row]:
    """The rows of a file of results, by name, in the order of `NAMES`. The last one of a family counts."""
    if not results.is_file():
        return {}
    found = {row["name"]: row for row in map(json.loads, results.read_text("utf-8").splitlines())}
    return {name: found[name] for name in NAMES if name in found}
