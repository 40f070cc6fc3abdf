"""Any configuration of the transformers library, made tiny by what its attributes are called."""
import inspect
import re

HEADS, HEAD_DIM = 6, 8
HIDDEN = HEADS * HEAD_DIM
VOCABULARY = 101
POSITIONS = 64

# The first pattern that matches a name gives its value. Sizes are no powers of two where that is allowed.
SIZES = [(re.compile(pattern), value) for pattern, value in [
    (r"^pad_token_id$", 0),
    (r"^(bos|cls|decoder_start)_token_id$", 1),
    (r"^(eos|sep)_token_id$", 2),
    (r"^type_vocab_size$", 2),
    (r"vocab_size", VOCABULARY),
    (r"^(max_position_embeddings|n_positions|n_ctx|max_seq_len|max_target_positions|max_source_positions)$", POSITIONS),
    (r"^(sliding_window|window_size|attention_window|local_attention|attention_window_size)$", 6),
    (r"^attention_chunk_size$", 8),
    (r"key_value_heads|kv_heads|^n_head_kv$|^multi_query_group_num$", 2),
    (r"^qk_nope_head_dim$|^v_head_dim$", HEAD_DIM),
    (r"^qk_rope_head_dim$", 4),
    (r"^qk_head_dim$", 12),
    (r"^q_lora_rank$", 20),
    (r"^kv_lora_rank$", 12),
    (r"head_dim$|^d_kv$|^kv_channels$|^attention_head_size$|^head_size$", HEAD_DIM),
    (r"^rotary_dim$", 4),
    (r"^(attn|expert)_layer_offset$", 1),
    (r"^first_k_dense_replace$|^num_nextn_predict_layers$|^mlp_only_layers$", 1),
    (r"^(n_group|topk_group|num_expert_group)$", 1),
    (r"experts_per_tok|^moe_topk$|^moe_k$|^top_k_experts$|^num_selected_experts$", 2),
    (r"shared_experts$", 1),
    (r"experts$|^moe_num_experts$", 4),
    (r"^(num_hidden_groups|inner_group_num)$", 1),
    (r"heads?$", HEADS),
    (r"^(num_)?(hidden_)?layers?$|_layers?$|^depth$", 2),
    (r"intermediate|ffn|inner_dim|^n_inner$|^d_ff|^ff_dim$|mlp_hidden|mlp_size", 100),
    (r"^expert_(layer_)?period$|^attn_layer_period$", 2),
    (r"hidden_(size|dim)|^d_model$|^n_embd$|^dim$|^embed_dim|^projection_dim$|^emb_dim$|^embedding_size$|^lru_width$", HIDDEN),
    (r"^image_size$", 32),
    (r"^patch_size$", 8),
]]


# What names do not tell.
OWN = {
    "convnext": {"hidden_sizes": [12, 24, 36, 48], "depths": [1, 1, 2, 1]},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0, "mask_token_id": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "intermediate_size": 100},
}


def tiny_value(name, default):
    """The value for an argument of a configuration, or None where it keeps its own."""
    if isinstance(default, bool) or not (default is None or isinstance(default, (int, list, tuple))):
        return None
    size = next((value for pattern, value in SIZES if pattern.search(name)), None)
    if name.endswith("_token_id"):
        return size if size is not None or not isinstance(default, int) else 3
    if size is None:
        return None
    if default is None:
        return size if re.search(r"head_dim$|experts", name) else None
    if isinstance(default, int):
        return min(size, default) if default > 0 else None
    return tiny_list(name, list(default))


def tiny_list(name, default):
    """Sizes of stages."""
    if not default or not all(type(v) is int for v in default):
        return None
    if "layers" in name or "depth" in name:
        return [1] * len(default)
    if "size" in name or "dim" in name:
        return [12 * (i + 1) for i in range(len(default))]
    if "heads" in name:
        return [2] * len(default)
    return None


def arguments(config_class):
    """Names and defaults of all arguments, those of its bases too."""
    found = {}
    for cls in reversed(config_class.__mro__):
        if "__init__" in vars(cls) and cls.__module__.startswith("transformers.models"):
            for name, parameter in inspect.signature(cls.__init__).parameters.items():
                if parameter.default is not inspect.Parameter.empty:
                    found[name] = parameter.default
    return found


def tiny_config(config_class, **given):
    """A configuration with two layers, 6 heads and a hidden size of 48, as far as its names tell; `given` is over that."""
    sizes = {}
    for name, default in arguments(config_class).items():
        value = tiny_value(name, default)
        if value is not None:
            sizes[name] = value
    if config_class.sub_configs:
        whole = config_class()
        for name in config_class.sub_configs:
            part = getattr(whole, name, None)
            if part is not None:
                sizes[name] = tiny_config(type(part)).to_dict()
    if "kv_lora_rank" in sizes:  # latent attention: heads are of its own sizes
        sizes |= {k: v for k, v in {"num_key_value_heads": HEADS, "head_dim": 4}.items() if k in sizes}
    # Layers of several kinds take turns: enough of them to have each kind.
    alternates = next((n for n in ("layer_types", "sliding_window_pattern", "global_attn_every_n_layers", "attention_types",
                                   "expert_layer_period") if n in arguments(config_class)), None)
    if alternates:
        for name in ("num_hidden_layers", "num_layers"):
            if name in sizes:
                sizes[name] = 4
    return config_class(**sizes | OWN.get(config_class.model_type, {}) | given)
