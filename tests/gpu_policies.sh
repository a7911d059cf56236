# tests/gpu_policies.sh: random policies for gpu.sh, which sources this file. They are made in the
# background during the first rows.

configuration() { # SIZE
    local hidden inner layers=28 heads=16 kv_heads=8 head=128 tied=true
    case $1 in
        tiny) hidden=64 inner=128 layers=2 heads=4 kv_heads=2 head=32 ;;
        0.6B) hidden=1024 inner=3072 ;;
        1B) hidden=2048 inner=8192 layers=16 heads=32 head=64 ;;
        1.7B) hidden=2048 inner=6144 ;;
        8B) hidden=4096 inner=12288 layers=36 heads=32 tied=false ;;
        *) echo "no such size: $1"; return 2 ;;
    esac
    cat <<JSON
{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":$hidden,"intermediate_size":$inner,
"num_hidden_layers":$layers,"num_attention_heads":$heads,"num_key_value_heads":$kv_heads,"head_dim":$head,
"vocab_size":$vocabulary,"max_position_embeddings":40960,"rms_norm_eps":1e-6,"rope_theta":1000000,"hidden_act":"silu",
"attention_bias":false,"tie_word_embeddings":$tied,"torch_dtype":"bfloat16"}
JSON
}
make_policy() { # SIZE: random weights, and a tokenizer of the same vocabulary size
    local made=$work/unfinished-$1
    configuration "$1" >"$work/$1.json" || return
    [ -d "$work/$1" ] && return 0
    rm -rf "$made"
    policy init "$made" --config "$work/$1.json" --seed 1 || return
    cp "$here/$tokenizer"/*.json "$made/current/" &&
        sed -i -E "s/\"(eos|pad)_token_id\": *[0-9]+/\"\1_token_id\": $((vocabulary - 291))/" "$made/current/config.json" &&
        policy check "$made" && mv "$made" "$work/$1"
}
make_policies() { # SIZES...: a policy of 1.7B takes a minute of one core
    local size
    for size; do
        {
            make_policy "$size" >"$work/making-$size" 2>&1
            echo $? >"$work/made-$size"
        } &
    done
    wait
}
policy_of() { # SIZE: waits until it is made
    until [ -e "$work/made-$1" ]; do
        kill -0 "$making" 2>/dev/null || [ -e "$work/made-$1" ] || { echo "what makes $1 was killed"; return 1; }
        sleep 0.2
    done
    cat "$work/making-$1"
    return "$(cat "$work/made-$1")"
}
adapters_of() { # SIZE: two adapters of different ranks and targets
    policy_of "$1" && rm -rf "$work/adapter-tool" "$work/adapter-planner" &&
        policy init "$work/adapter-tool" --from "$work/$1" --adapter rank=16,alpha=32 --seed 1 &&
        policy init "$work/adapter-planner" --from "$work/$1" --adapter rank=8,alpha=16,targets=q_proj+v_proj+down_proj --seed 2
}
drop_optimizer() { # SIZES...: optimizer state takes ten bytes a weight, is not needed again and would fill a small disk
    local size
    for size; do rm -f "$work/$size"/step-*/optimizer.safetensors "$work/$size"/step-*/trainer_state.json; done
}
