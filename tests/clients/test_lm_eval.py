"""lm-eval's local-completions on a local task, with a local tokenizer, against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pagewire.model_source import resolve_model
from tests.clients.environments import HERE, environment, run
from tests.clients.served import API_KEY, MAX_MODEL_LEN, MODEL, Served
from tests.e2e.test_loglikelihoods import TOLERANCE, reference
from tokenizer_svc.gguf_tokenizer import convert_gguf

TASK = "facts"
NUM_DOCUMENTS = 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The task beside a folder with the tokenizer's files in Hugging Face's form."""
    shutil.copytree(HERE / "lm_eval_task", tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer").mkdir()
    for name, content in convert_gguf(resolve_model(MODEL).path).items():
        (tmp_path / "tokenizer" / name).write_bytes(content)
    return tmp_path


def evaluate(lm_eval: Path, served: Served, folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Return the accuracy and what lm-eval saw of each document."""
    model = {
        "model": MODEL,
        "base_url": f"{served.base_url}/completions",
        "tokenizer": str(folder / "tokenizer"),
        "tokenizer_backend": "huggingface",
        "max_length": str(MAX_MODEL_LEN),
        "num_concurrent": "2",
        "max_retries": "1",
    }
    command = [
        *(str(lm_eval / "bin" / "lm_eval"), "run", "--model", "local-completions"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in model.items())),
        *("--tasks", TASK, "--include_path", str(folder), "--output_path", str(folder / "out")),
        "--log_samples",
    ]
    run(command, served, folder, OPENAI_API_KEY=API_KEY, HF_HOME=str(folder / "cache"))
    (results,) = (folder / "out").rglob("results_*.json")
    (samples,) = (folder / "out").rglob(f"samples_{TASK}_*.jsonl")
    accuracy = json.loads(results.read_text())["results"][TASK]["acc,none"]
    lines = map(json.loads, samples.read_text().splitlines())
    return accuracy, sorted(lines, key=lambda line: line["doc_id"])


@pytest.mark.timeout(2400)
def test_loglikelihoods_and_accuracy_are_those_of_transformers(
    request: pytest.FixtureRequest, folder: Path
) -> None:
    lm_eval = environment("lm-eval")
    accuracy, samples = evaluate(lm_eval, request.getfixturevalue("served"), folder)
    assert len(samples) == NUM_DOCUMENTS

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    contexts, rows = [], []
    for sample in samples:
        context = f"Question: {sample['doc']['question']}\nAnswer:"
        for choice in sample["doc"]["choices"]:
            contexts.append(len(tokenizer.encode(context, add_special_tokens=False).ids))
            rows.append(tokenizer.encode(f"{context} {choice}", add_special_tokens=False).ids)
    # A row says of each token but the first: its logprob, and whether it is the likeliest.
    scored = [pairs[begin - 1 :] for pairs, begin in zip(reference(rows), contexts, strict=True)]
    expected = [sum(logprob for logprob, _ in pairs) for pairs in scored]
    greedy = [all(is_likeliest for _, is_likeliest in pairs) for pairs in scored]

    found = [tuple(response) for sample in samples for response in sample["filtered_resps"]]
    worst = max(abs(float(one) - other) for (one, _), other in zip(found, expected, strict=True))
    print(f"{len(found)} loglikelihoods, worst difference {worst:.2e}, accuracy {accuracy}")
    assert worst < TOLERANCE
    assert [str(is_greedy) for _, is_greedy in found] == [str(each) for each in greedy]
    right = [
        (expected[at] < expected[at + 1]) == bool(sample["doc"]["answer"])
        for at, sample in zip(range(0, len(expected), 2), samples, strict=True)
    ]
    assert accuracy == pytest.approx(sum(right) / NUM_DOCUMENTS)
