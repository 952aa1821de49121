"""Recast the model of the quickstart for its peers: other formats that they may be faster with.

llama.cpp recasts the GGUF file to Q4_0 and Q8_0, in its own environment. OpenVINO's INT8 and INT4
(symmetric, groups of 32) come from Optimum, in an environment with torch, transformers and gguf.

Run: python -m benchmarks.peers.prepare llama.cpp MODEL.gguf FOLDER
     python -m benchmarks.peers.prepare openvino MODEL.gguf FOLDER
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from pathlib import Path


def recast_gguf(model: Path, folder: Path) -> None:
    """Write `q4_0.gguf` and `q8_0.gguf`."""
    import llama_cpp

    kinds = {"q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
    for name, kind in kinds.items():
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = kind
        parameters.allow_requantize = True
        target = str(folder / f"{name}.gguf").encode()
        status = llama_cpp.llama_model_quantize(
            str(model).encode(), target, ctypes.byref(parameters)
        )
        if status:
            raise RuntimeError(f"llama_model_quantize answered {status} for {name}")


def export_openvino(model: Path, folder: Path) -> None:
    """Write `int8/` and `int4/`: weights and a tokenizer, which the pipelines want to see."""
    from gguf import GGUFReader
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    from tests.oracle import llama_from_gguf

    plain = folder / "float32"
    llama_from_gguf(GGUFReader(model)).save_pretrained(plain)
    tokenizer = AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name)
    tokenizer.save_pretrained(plain)
    kinds = {"int8": {"bits": 8}, "int4": {"bits": 4, "sym": True, "group_size": 32}}
    for name, arguments in kinds.items():
        quantization = OVWeightQuantizationConfig(**arguments)
        exported = OVModelForCausalLM.from_pretrained(
            plain, export=True, compile=False, quantization_config=quantization
        )
        exported.save_pretrained(folder / name)
        convert = str(Path(sys.executable).with_name("convert_tokenizer"))
        words = [convert, str(plain), "--output", str(folder / name), "--with-detokenizer"]
        subprocess.run(words, check=True)


def main() -> None:
    """Recast for one peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("llama.cpp", "openvino"))
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    recast = recast_gguf if arguments.peer == "llama.cpp" else export_openvino
    recast(arguments.model, arguments.folder)


if __name__ == "__main__":
    main()
