#!/usr/bin/env bash
# Fills OUT/NAME with seeds for the fuzz target NAME from the data directory, $VPTQ_DATA or
# ../shared/data: whole small files, and the beginnings of larger ones.  Without the directory there are none.
# usage: fuzz_seeds.sh OUT
set -u

src=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?usage: fuzz_seeds.sh OUT}
data=${VPTQ_DATA:-$src/../shared/data}
mkdir -p "$out"
[ -d "$data" ] || { echo "fuzz_seeds.sh: no data directory $data: no seeds from it" >&2; exit 0; }

# seed TARGET BYTES FILE..: the first BYTES of each file; FILE may be compressed with xz
seed() {
    local target=$1 bytes=$2 file
    shift 2
    mkdir -p "$out/$target"
    for file in "$@"; do
        [ -f "$file" ] || continue
        local name=${file#"$data"/}
        case $file in
        *.xz) xz -dc "$file" 2>/dev/null | head -c "$bytes" ;;
        *) head -c "$bytes" "$file" ;;
        esac >"$out/$target/${name//\//_}"
    done
}

small=16384
seed hf_config $small "$data"/models/*/config.json "$data"/golden/*/config.json "$data"/golden/*/*/config.json
seed packed $small "$data"/golden/*/*/config.json
seed safetensors 4096 "$data"/models/*/*.safetensors "$data"/golden/vptq_layout/*/*.safetensors
seed npy 4096 "$data"/golden/*/*.npy "$data"/golden/torch_npz/*
seed torch_file $small "$data"/golden/torch_npz/*.pt*
seed records $small "$data"/golden/serving/records.jsonl
seed gguf $small "$data"/golden/gguf/*.gguf
seed llama2c $small "$data"/models/*/*.bin
seed spm $small "$data"/models/*/tok512.bin "$data"/tokenizers/*/tokenizer.model* "$data"/tokenizers/*/tokenizer.bin
seed tokenizer_json $small "$data"/models/*/tokenizer.json
seed task_file $small "$data"/qa/*
seed text 4096 "$data"/text/*/* "$data"/tokenizers/vectors/*
seed text_file 4096 "$data"/text/*/*
seed model_dir $small "$data"/models/*/config.json
for file in "$data"/tokenizers/*/tokenizer_config.json*; do
    [ -f "$file" ] || continue
    mkdir -p "$out/template"
    case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac |
        python3 -c 'import json, sys; t = json.load(sys.stdin).get("chat_template"); print(t if isinstance(t, str) else "", end="")' \
            >"$out/template/$(basename "$(dirname "$file")")" 2>/dev/null
done
exit 0
