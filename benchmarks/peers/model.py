"""The embedded model as a Hugging Face folder, for peers that read no GGUF file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pagewire.model_source import resolve_model


def export_hugging_face(folder: Path) -> None:
    """Write configuration, tokenizer and weights in bfloat16, unless the folder is there.

    The weights are those of the 4-bit file, dequantized: peers that run bfloat16 compute with the
    numbers that the others unpack.
    """
    if folder.exists():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = resolve_model("smollm2").path
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    # What was read from a GGUF file counts as quantized, and so refuses to be written.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(**where).save_pretrained(partial)
    os.replace(partial, folder)
